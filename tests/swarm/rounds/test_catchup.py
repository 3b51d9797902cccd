"""What a peer takes of steps that others made without it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.state import START, Position, TrainingState
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.rounds import catchup
from dedloc_kit.swarm.rounds.catchup import CatchUp
from dedloc_kit.swarm.rounds.optimizer import CollaborativeOptimizer
from dedloc_kit.swarm.trust.weight import Weigh, allowed, claimed
from tests.swarm.harness import belief, progress
from tests.tiny import tiny_run

BATCH = 10


@pytest.mark.parametrize(
    ("weigh", "samples", "taken"),
    [
        (claimed, (BATCH,), True),
        (claimed, (BATCH - 1,), False),
        (claimed, (1, 1, 60), True),
        (allowed, (1, 1, 60), False),
        (allowed, (4, 4, 60), True),
    ],
)
def test_a_late_average_is_taken_with_what_the_organizer_ordered_and_none_of_too_few_samples(
    weigh: Weigh, samples: tuple[int, ...], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {
        "run_id": "tiny-0123456789abcdef",
        "step": 5,
        "session": "ab",
        "loss": 1.0,
        "name": "",
        "time": 9.0,
    }
    given = {
        f"p{number}": Contribution(**values, samples=count, session_samples=count, decay_order="abcd")
        for number, count in enumerate(samples)
    }
    orders = {("abcd", "tiny-0123456789abcdef", "p", 2): 7}
    monkeypatch.setattr(
        catchup,
        "decay_in",
        lambda _, run_id, brought, who, rewound: orders[next(c.decay_order for c in brought), run_id, who, rewound],
    )
    monkeypatch.setattr(catchup, "opened", lambda *_: given)
    monkeypatch.setattr(catchup, "unpack", lambda _: ())
    monkeypatch.setattr(catchup, "decode_all", lambda *_: torch.ones(3))
    applied: list[tuple[Receipt, int]] = []
    me: Any = SimpleNamespace(
        _state=SimpleNamespace(
            step=4,
            rewound=2,
            receipts=(),
            layout=SimpleNamespace(size=3),
            apply=lambda average, receipt, decay: applied.append((receipt, decay)),
        ),
        _run=SimpleNamespace(run_id=values["run_id"], global_batch=BATCH),
        _exchange=SimpleNamespace(grouping=OneGroup(BATCH, weigh)),
        _tracker=SimpleNamespace(belief=SimpleNamespace(reached=lambda *_: None, organizer="p")),
        _signer=None,
    )
    found: Any = SimpleNamespace(step=5, round="cd", metadata=b"", parts=())
    if taken:
        CatchUp._take(me, found)
    else:
        with pytest.raises(ValueError, match="too few samples"):
            CatchUp._take(me, found)
    assert [(receipt.step, receipt.round, decay) for receipt, decay in applied] == [(5, "cd", 7)] * taken


def test_steps_that_the_swarm_took_in_place_of_ours_are_told_with_those_after_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catchup, "opened", lambda *_: {})
    monkeypatch.setattr(catchup, "rewind_in", lambda *_: None)

    def receipts(*rounds: str) -> tuple[Receipt, ...]:
        return tuple(Receipt(step=11 + n, round=name, time=1, seconds=0, signed=()) for n, name in enumerate(rounds))

    state = SimpleNamespace(position=Position(13, "dd"), step=13, receipts=receipts("aa", "bb", "dd"))

    def load_state() -> bool:
        state.position, state.step, state.receipts = Position(15, "ff"), 15, receipts("aa", "cc", "dc", "ee", "ff")
        return True

    class Lagging(CatchUp):
        def __init__(self) -> None:
            self._state: Any = state
            self._stop: Any = SimpleNamespace(is_set=lambda: False)
            self._run: Any = SimpleNamespace(run_id="", global_batch=BATCH)
            self._signer: Any = None
            self._tracker: Any = SimpleNamespace(belief=SimpleNamespace(organizer="o"))
            self._take_averages: Any = list
            self._load_state: Any = load_state
            self.behind: Any = lambda: True

    told = [(receipt.step, receipt.round) for receipt, _ in Lagging().follow()]
    assert told == [(12, "cc"), (13, "dc"), (14, "ee"), (15, "ff")]


def test_nobody_asks_who_holds_no_state_for_one_nor_thinks_that_it_has_gone_elsewhere() -> None:
    run = tiny_run()
    state = TrainingState(torch.nn.Linear(3, 2), lambda m: Lamb(m.parameters(), lr=0.1), run)
    lender = progress(step=0, round="", sketch=(), holds_state=False)
    at = {"lender": lender, "donor": progress(step=0, round="", sketch=state.sketch)}
    tracker: Any = SimpleNamespace(at=lambda *_: at, belief=belief(), proves=lambda peers: bool(peers))
    catch_up = CatchUp(
        *(state, SimpleNamespace(), tracker, SimpleNamespace(), SimpleNamespace(client_mode=False)),  # type: ignore[arg-type]
        *(threading.Event(), lambda _received, _total: None),
    )
    assert catch_up._donors(START) == ["donor"]
    del at["donor"]
    assert not catch_up._drifted()


def test_samples_in_doubt_are_settled_by_the_steps_that_the_swarm_took_with_them_and_by_the_state_it_is_in() -> None:
    settled, opened, taken = list[list[str]](), list[None](), list[list[str]]()
    gave = SimpleNamespace(samples=3)
    missed = [(SimpleNamespace(round="aa"), {"me": gave}), (SimpleNamespace(round="bb"), {"another": gave})]
    me: Any = SimpleNamespace(
        _catch_up=SimpleNamespace(follow=lambda: missed),
        _accumulator=SimpleNamespace(confirm=lambda rounds: settled.append(list(rounds))),
        _signer=SimpleNamespace(peer="me"),
        state=SimpleNamespace(rounds=("99", "aa", "bb"), rewound=0),
        _rounds=SimpleNamespace(
            batch=SimpleNamespace(open=lambda: opened.append(None), drop_stale=lambda: None),
        ),
        _learn=lambda _, contributions: taken.append(list(contributions)),
        _tell=lambda *_: None,
        _report=lambda: None,
    )
    CollaborativeOptimizer._follow_the_swarm(me)
    assert settled == [["aa"], ["99", "aa"]], "the round bb left this peer's samples out"
    assert taken == [["me"], ["another"]]
    assert opened, "what is fixed may hold what has counted"


@pytest.mark.parametrize(
    ("told", "newest", "downloads"),
    [
        ({"organizer": "same"}, START, False),
        ({"organizer": "other", "peer": "same"}, START, True),
        ({"peer": "same"}, START, True),
        ({"organizer": "same"}, Position(1, "ab"), True),
    ],
)
def test_where_a_run_begins_nobody_downloads_what_the_organizer_says_that_it_has_as_well(
    told: dict[str, str], newest: Position, downloads: bool
) -> None:
    """A hundred who come at once would wait for hours for its line."""
    loads: list[bool] = []

    def load() -> bool:
        loads.append(True)
        return True

    me: Any = SimpleNamespace(
        _state=SimpleNamespace(position=START, differs=lambda sketch: sketch != "same"),
        _tracker=SimpleNamespace(
            at=lambda *position: {p: SimpleNamespace(sketch=s) for p, s in told.items()} if position == START else {},
            newest=lambda mine: newest,
            belief=SimpleNamespace(organizer="organizer"),
        ),
        _look=lambda: None,
        _load_state=load,
    )
    me._holds_first = lambda: CatchUp._holds_first(me)
    assert CatchUp.load(me)
    assert len(loads) == downloads
