"""Nine peers, whose lines are cut into five and four and joined again: one swarm, whatever each side sees.

The clock runs by what they compute: nobody waits for records to lapse, and none lapses because this machine is slow.
"""

import math
import sys
import time
from pathlib import Path

import pytest

from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.directory.belief import GONE_SECONDS
from dedloc_kit.swarm.directory.tracker import TIME_TO_LIVE
from dedloc_kit.swarm.rounds import optimizer
from tests.swarm.rounds.nine_in_rows import InRows, NineInRows, nine_in_rows
from tests.swarm.rounds.test_nine_in_rows import EXACT, check
from tests.tiny import tiny_run

TURN_SECONDS = 0.2
AWAY_SECONDS = 2.5 * TIME_TO_LIVE
"""Long enough for the records of the other side to lapse, and too short for it to be given up."""
assert AWAY_SECONDS < GONE_SECONDS - TIME_TO_LIVE


class Clock:
    """Of all that is measured here: it stands still but for what passes by turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monotonic, now = time.monotonic, time.time
        self.later, self.end = 0.0, math.inf
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.later)
        for module in [m for name, m in sys.modules.items() if name.startswith("dedloc_kit") and m is not None]:
            if hasattr(module, "get_dht_time"):
                monkeypatch.setattr(module, "get_dht_time", lambda: now() + self.later)

    def turn(self, nine: NineInRows) -> None:
        if not any(peer.begun for peer in nine.peers):  # a round has limits, and takes what this machine needs for it
            self.later = min(self.end, self.later + TURN_SECONDS)


@pytest.fixture(autouse=True)
def _nobody_waits_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "AHEAD_SECONDS", 0.0)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("grouping", "in_a_round"), [(OneGroup, True), (InRows, False)])
def test_one_side_goes_on_and_the_other_takes_no_step_of_its_own_and_then_all_hold_the_same(
    tmp_path: Path, grouping: type[OneGroup], in_a_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with nine_in_rows(tmp_path, tiny_run(global_batch=72, averaging=EXACT), grouping) as nine:
        nine.train(1, clock.turn)
        larger, smaller = nine.peers[4:], nine.peers[:4]
        if in_a_round:
            nine.train(99, clock.turn, lambda: all(peer.begun for peer in nine.peers))
        nine.part(smaller)
        clock.end = clock.later + AWAY_SECONDS
        nine.train(99, clock.turn, lambda: clock.later == clock.end and all(p.optimizer.step > 2 for p in larger))
        assert {peer.state.round for peer in smaller} <= set(larger[0].state.rounds)
        assert max(peer.optimizer.step for peer in smaller) <= 1 + in_a_round
        went_on = max(peer.optimizer.step for peer in larger)
        nine.join()
        nine.train(went_on + 2, clock.turn)
        check(nine, went_on + 2)
