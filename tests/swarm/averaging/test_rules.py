"""Which groups have rows."""

from pathlib import Path

from dedloc_kit.swarm.allreduce.plan import MAX_ROW
from dedloc_kit.swarm.allreduce.reduction.reducer import ClipReducer
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.service import Rules


def test_a_mean_is_made_in_rows_and_what_needs_the_values_of_all_in_one(tmp_path: Path) -> None:
    group = OneGroup(64)
    assert Rules(group).row_of(1000) == MAX_ROW
    assert Rules(group, ClipReducer).row_of(1000) == 1000
    pledges = Pledges(Kept(tmp_path / "kept", LOTS), IntroducedRounds(tmp_path / "rounds"))
    assert Rules(group, pledges=pledges).row_of(1000) == 1000
