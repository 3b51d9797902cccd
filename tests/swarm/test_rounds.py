"""When a peer that gathers begins, and when it gives its group up; the DHT is a dictionary."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.utils import get_dht_time

from dedloc_kit.records import Progress
from dedloc_kit.swarm.directory import Directory
from dedloc_kit.swarm.gradients import Gradients
from dedloc_kit.swarm.identity import Identity
from dedloc_kit.swarm.rounds import Rounds
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.swarm.state import TrainingState
from dedloc_kit.swarm.tracker import TIME_TO_LIVE, Tracker
from dedloc_kit.swarm.troubles import Troubles
from dedloc_kit.training.lamb import Lamb
from tests.swarm.harness import progress, wait_until
from tests.swarm.test_directory import Plain
from tests.tiny import TinyTask, tiny_run


class Averager:
    """Whoever is expected comes at once; what it is asked to do then is noted."""

    client_mode = False

    def __init__(self, size: int) -> None:
        self.asked: list[str] = []
        self._flat = torch.zeros(size)

    @contextmanager
    def get_tensors(self) -> Iterator[tuple[torch.Tensor]]:
        yield (self._flat,)

    def gather(self, *, expected: Mapping[str, Progress], **_: object) -> Any:
        members = frozenset(expected)
        return SimpleNamespace(control=Future(), called=False, gathered=lambda: members, seconds=lambda: 0.1)

    def begin(self, *_: object, **__: object) -> None:
        self.asked.append("begin")

    def call_off(self, _: object) -> None:
        self.asked.append("call off")


@pytest.mark.parametrize(("leaves", "asked"), [(False, "begin"), (True, "call off")])
def test_a_group_begins_though_a_member_is_slow_to_report_but_not_after_one_has_left(
    tmp_path: Path, leaves: bool, asked: str
) -> None:
    run, dht = tiny_run(global_batch=10), Plain()
    state = TrainingState(TinyTask(run).build_model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
    gradients, averager = Gradients(state.parameters, state.layout), Averager(state.layout.size)
    as_averager: Any = averager
    me, other = (Signer(Identity(tmp_path / name)) for name in ("me", "other"))
    troubles = Troubles(pytest.fail)
    tracker = Tracker(dht, me, run.run_id, run.global_batch, (), pytest.fail, troubles)
    rounds = Rounds(
        run,
        state,
        gradients,
        as_averager,
        tracker,
        me,
        follower=False,
        session="ab",
        name="x",
        warn=pytest.fail,
        troubles=troubles,
    )

    def tell(value: object) -> None:
        Directory(dht, f"{run.run_id}_progress").store(other, value, seconds=60.0, peers=1)
        tracker.look()

    nearly_lapsed = get_dht_time() - TIME_TO_LIVE + 3.0
    tell(progress(run_id=run.run_id, step=0, round="", samples=5, time=nearly_lapsed).model_dump())
    gradients.add(1.0, 4, 0)
    rounds.gather_if_due(samples_per_second=100.0)
    assert rounds.under_way
    rounds.advance()
    assert averager.asked == [], "the batch is not full yet"

    if leaves:
        tell(None)
    else:
        wait_until(lambda: not tracker.others(), "its record does not lapse")
    gradients.add(1.0, 6, 0)
    rounds.advance()
    assert averager.asked == [asked]
