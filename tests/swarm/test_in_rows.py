"""Peers in two rows train one model as one group does: real processes on loopback."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dedloc_kit.events import Left
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.identity import Identity, Signer
from tests.in_rows import ROWS
from tests.swarm.harness import Swarm, assert_ledger_sums, difference
from tests.tiny import tiny_run


def settle(folder: Path, rows: Sequence[Sequence[str]]) -> None:
    """Give peers keys by which they are in these rows."""
    for row, names in enumerate(rows):
        for name in names:
            path = folder / name / IDENTITY_FILE
            while Division(ROWS).row_of(Signer(Identity(path)).peer) != row:
                path.unlink()


@pytest.mark.soak
def test_two_rows_take_the_steps_together_and_all_end_with_the_same_bits(tmp_path: Path) -> None:
    steps = 8
    run = tiny_run(global_batch=96, optimizer={"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 1000})
    rows = ["coordinator", "v1"], ["v2", "v3"]
    settle(tmp_path, rows)
    notes = {"TINY_ROWS": str(tmp_path / "met")}
    together = {"TINY_PAUSE": "0.1", "START_FILE": str(tmp_path / "start"), **notes}
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(notes, until_step=steps)
        volunteers = [swarm.volunteer(name, together, microbatch=2, until_step=steps) for name in ("v1", "v2", "v3")]
        for peer in volunteers:
            assert peer.joined.step == 0
        (tmp_path / "start").touch()
        for peer in volunteers:
            peer.wait_for(Left)
        coordinator.wait_for_step(steps)
        coordinator.worker.stop()
    for peer in volunteers:
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    assert_ledger_sums(coordinator, run.global_batch)
    met = [json.loads(line) for line in (tmp_path / "met").read_text().splitlines()]
    assert [2, 2] in [sizes for _, *sizes in met], "both rows came with all of theirs"
