"""Nine peers in three rows take the same steps as one plain loop, to the rounding of float32."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.swarm.rounds import optimizer
from tests.swarm.rounds.nine_in_rows import PEERS, ROWS, NineInRows, Peer, nine_in_rows
from tests.tiny import tiny_run

EXACT = {"overlap": False, "compression": "none"}
STEPS = 14
EVERY = 3
"""So often somebody is gone in the middle of a round."""


@pytest.fixture(autouse=True)
def _nobody_waits_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "AHEAD_SECONDS", 0.0)


def check(nine: NineInRows, steps: int) -> None:
    """All have the same bits, which are those of one plain loop but for the order of sums."""
    found = [torch.cat([p.detach().flatten() for p in peer.state.parameters]) for peer in nine.peers]
    assert all(torch.equal(parameters, found[0]) for parameters in found)
    expected = torch.cat([parameter.flatten() for parameter in nine.plainly(steps)])
    assert float((found[0] - expected).norm() / expected.norm()) < 1e-6


def test_steps_in_three_rows_are_those_of_one_plain_loop(tmp_path: Path) -> None:
    with nine_in_rows(tmp_path, tiny_run(global_batch=72, averaging=EXACT)) as nine:
        nine.train(2)
        check(nine, 2)
        assert nine.teams == {ROWS}
        assert max(len(brought) for peer in nine.peers for brought in peer.steps.values()) == PEERS


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_they_are_where_one_is_gone_in_the_middle_of_each_third_round_and_computes_anew(tmp_path: Path) -> None:
    gone: list[tuple[Peer, int]] = []

    def happens(nine: NineInRows) -> None:
        newest = max(peer.optimizer.step for peer in nine.peers)
        if gone and newest > gone[-1][1]:
            nine.in_loop(gone[-1][0].come_again())
        victim = nine.peers[5 * len(gone) % (PEERS - 1)]
        if victim.begun and victim.optimizer.step == newest > EVERY * len(gone):
            gone.append((victim, newest))
            nine.in_loop(victim.leave())

    with nine_in_rows(tmp_path, tiny_run(global_batch=72, averaging=EXACT)) as nine:
        nine.train(STEPS, happens)
        check(nine, STEPS)
        assert len(gone) >= 4
        taken = nine.peers[-1].steps
        assert any(victim.peer not in taken[step + 1] for victim, step in gone)
