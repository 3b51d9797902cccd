"""Which groups have rows."""

from pathlib import Path

from dedloc_kit.swarm.allreduce.plan import MAX_ROW
from dedloc_kit.swarm.allreduce.reduction.reducer import ClipReducer
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.service import Rules
from dedloc_kit.swarm.trust.weight import claimed


def test_a_mean_is_made_in_rows_and_what_needs_the_values_of_all_in_one(tmp_path: Path) -> None:
    assert Rules(claimed).row_of(1000) == MAX_ROW
    assert Rules(claimed, ClipReducer).row_of(1000) == 1000
    pledges = Pledges(Kept(tmp_path / "kept", LOTS), IntroducedRounds(tmp_path / "rounds"))
    assert Rules(claimed, pledges=pledges).row_of(1000) == 1000
