"""A run whose coordinator puts state and averages into a bucket; the pieces are tested in test_stored.py."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.bucket.served import files, serving, status
from tests.swarm.harness import Swarm, wait_until
from tests.tiny import tiny_run


@pytest.mark.soak
def test_a_run_goes_on_and_newcomers_join_while_its_bucket_is_away_and_while_it_fails_three_of_ten_times(
    tmp_path: Path,
) -> None:
    run, chance, away = tiny_run(averaging={"state_bucket": "us/down"}), random.Random(1), True
    shown = tmp_path / "shown" / run.run_id
    found = files(lambda name: (shown / name).read_bytes() if (shown / name).is_file() else None)

    def answer(path: str) -> Iterable[bytes]:
        return status(503) if away or chance.random() < 0.3 else found(path)

    with serving(answer) as server, Swarm(run, tmp_path) as swarm:
        environment = {"HF_ENDPOINT": server.address, "TINY_PAUSE": "0.3"}
        coordinator = swarm.coordinator(environment, state_bucket_folder=tmp_path / "shown")
        swarm.volunteer("one", environment, microbatch=4).wait_for_step(1)
        wait_until(shown.is_dir, "nothing was put there")
        early = swarm.volunteer("early", environment, microbatch=4)
        early.wait_for_step(early.joined.step + 1)
        assert server.asked, "it has not tried"
        away = False
        before = len(server.asked)
        late = swarm.volunteer("late", environment, microbatch=4)
        assert late.joined.step > 0
        late.wait_for_step(late.joined.step + 1)
        assert "the run's bucket" not in late.log(), "it fell back though the bucket gave what it should"
        assert len(server.asked) > before + 2
        last = coordinator.steps[-1].step.step
        coordinator.wait_for_step(last + 1)
