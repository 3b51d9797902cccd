"""The page's word on a run whose line is too slow for its volunteers."""

from pathlib import Path

import pytest

from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.live.view import RunView
from dedloc_kit.dashboard.live.waiting import ROUNDS, advice
from dedloc_kit.events import Peers, PeerSeen
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.steps import GlobalStep
from tests.dashboard.runs import COORDINATOR, RUN, joined, seen

MBIT = 1e6 / 8
TOLD = (
    "half of your volunteers' time is spent waiting for the coordinator's line; one auxiliary peer with 100 Mbit/s "
    "would end that (dedloc join --auxiliary)"
)


def peers(rate: float = 1.0, upload: float | None = 50 * MBIT) -> tuple[PeerSeen, ...]:
    """Two volunteers whom nobody reaches and the coordinator, which has 100 Mbit/s."""
    volunteers = [seen(f"Qm{number}", rate=rate).model_copy(update={"upload": upload}) for number in range(2)]
    return (COORDINATOR.model_copy(update={"upload": 100 * MBIT}), *volunteers)


def steps(compute: float = 0.0, average: float | None = 62.0, count: int = ROUNDS) -> list[GlobalStep]:
    return [
        GlobalStep(
            step=step,
            round="ab",
            time=64.0 * step,
            samples=64,
            loss=None,
            peers=3,
            seconds=64.0,
            compute=compute,
            gather=1.0,
            average=average,
            apply=1.0,
        )
        for step in range(1, count + 1)
    ]


def exact() -> RunConfig:
    return RUN.model_copy(update={"averaging": RUN.averaging.model_copy(update={"overlap": False})})


def test_where_rounds_take_twice_as_long_as_computing_one_line_says_which_auxiliary_peer_would_end_that() -> None:
    assert advice(RUN, steps(), peers()) == TOLD, "64 samples take the two 32 s, and a step takes 64"
    assert advice(RUN, steps(), peers(rate=0.5)) == "", "computing takes as long"


def test_where_nobody_computes_during_a_round_it_is_all_waiting() -> None:
    assert advice(exact(), steps(compute=32.0), peers()).startswith("two thirds of your volunteers' time")
    assert advice(exact(), steps(compute=32.0, average=1.0), peers()) == ""


def test_volunteers_who_boast_move_nothing_while_batches_fill_during_rounds() -> None:
    assert advice(RUN, steps(compute=32.0), peers(rate=1e9)) == ""


def test_where_volunteers_own_lines_are_slow_no_helper_is_asked_for() -> None:
    assert advice(RUN, steps(), peers(upload=20 * MBIT)) == ""


@pytest.mark.parametrize(
    ("done", "here"),
    [
        (steps(count=ROUNDS - 1), peers()),
        (steps(average=None), peers()),
        (steps(), peers(upload=None)),
        (steps(), peers()[1:]),
        (steps(), peers(rate=0.0)),
        ([], ()),
    ],
)
def test_nothing_is_said_of_what_is_not_known(done: list[GlobalStep], here: tuple[PeerSeen, ...]) -> None:
    assert advice(RUN, done, here) == ""


def test_the_page_shows_it_as_one_notice_as_long_as_it_holds(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in steps():
        ledger.record_step(step, {})
    ledger.close()
    view = RunView(RUN, tmp_path / "ledger.sqlite")
    view.hear(joined())
    for here, told in [(peers(), [TOLD]), (peers(), [TOLD]), (peers(rate=0.5), [])]:
        view.hear(Peers(peers=here))
        assert [notice.text for notice in view.state().notices] == told
    view.hear(joined().model_copy(update={"addresses": ("/ip4/127.0.0.1/tcp/1/p2p/c",)}))
    view.hear(Peers(peers=peers()))
    assert view.state().notices == [], "on one machine"
    view.close()


def test_the_page_counts_to_the_steps_that_will_be_taken(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    view = RunView(RUN, tmp_path / "ledger.sqlite")
    assert view.state().total_steps == RUN.optimizer.total_steps
    view.count_to(5)
    assert view.state().total_steps == 5
    view.close()
