"""Who holds no parameters hears where the others are, and takes no step for the next one that is not."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.utils import MSGPackSerializer

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds import alongside
from dedloc_kit.swarm.rounds.alongside import Alongside
from dedloc_kit.swarm.transfer.contents import RecentAverage
from dedloc_kit.swarm.transfer.protocol import Header
from tests.identities import an_identity
from tests.swarm.harness import belief, progress
from tests.swarm.rounds.test_stored import Coordinator, round_of


class Lender:
    """Follows a coordinator, which tells of its averages."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.state = NoState(FlatLayout.of([torch.empty(5050)]), coordinator.run)
        self.coordinator, self.rejected = coordinator, list[str]()
        self.answer: Callable[[str], RecentAverage | None] = coordinator.kept_average
        self.here = True
        there: Any = lambda: {"organizer": self.there()} if self.here else {}  # noqa: E731
        tracker: Any = SimpleNamespace(
            newest=lambda own: coordinator.state.position if self.here else own,
            at=lambda *_: there(),
            others=there,
            belief=belief(),
            reject=self.rejected.append,
            refresh=lambda: None,
        )
        exchange: Any = SimpleNamespace(transfers=SimpleNamespace(ask_for_average=self.ask))
        self.along = Alongside(self.state, exchange, tracker, coordinator.signer, threading.Event())

    def there(self) -> Progress:
        return progress(step=self.coordinator.state.step, round=self.coordinator.state.round)

    def ask(self, _: str, after: str) -> Future[Header | None]:
        told, average = Future[Header | None](), self.answer(after)
        if average is None:
            told.set_result(Header(answer="nothing"))
        else:
            told.set_result(Header(answer="here", version=average.round, total=1, metadata=average.info()))
        return told


@pytest.fixture
def lender(tmp_path: Path) -> Lender:
    return Lender(Coordinator(tmp_path, Signer(an_identity(tmp_path / "key"))))


def test_it_begins_where_the_others_are_and_learns_of_each_step_that_it_missed(lender: Lender) -> None:
    lender.coordinator.step(3)
    assert lender.along.load()
    assert lender.state.position == lender.coordinator.state.position
    assert not lender.state.receipts
    assert not lender.along.behind()
    lender.coordinator.step(2)
    missed = lender.along.follow()
    assert [receipt.step for receipt, _ in missed] == [4, 5]
    assert [sum(each.samples for each in brought.values()) for _, brought in missed] == [32, 32]
    assert lender.state.receipts == tuple(receipt for receipt, _ in missed)
    assert lender.state.position == lender.coordinator.state.position


def test_a_step_that_is_not_the_next_one_is_refused_and_it_goes_where_the_others_are_all_the_same(
    lender: Lender,
) -> None:
    lender.along.load()
    lender.coordinator.step(2)
    right = lender.coordinator.kept_average("")
    assert right is not None
    wrong: dict[str, RecentAverage] = {
        "another round": RecentAverage(round_of(7), right.round, 1, right.metadata, right.parts),
        "another step": RecentAverage("", right.round, 2, right.metadata, right.parts),
        "nobody's": RecentAverage("", right.round, 1, MSGPackSerializer.dumps([b"nonsense"]), right.parts),
    }
    for average in wrong.values():
        lender.state.move(Position(0, ""))
        lender.answer = lambda _, average=average: average  # type: ignore[misc]
        assert lender.along.follow() == []
        assert lender.state.position == lender.coordinator.state.position
    assert len(lender.rejected) == len(wrong)


def test_it_does_not_begin_where_nobody_says_where_they_are(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alongside, "LOAD_PAUSE", 0.0)
    lender.here = False
    assert not lender.along.load()


def test_it_counts_a_step_without_looking_at_the_average(lender: Lender) -> None:
    lender.coordinator.step()
    (receipt,) = lender.coordinator.state.receipts
    lender.state.apply(torch.empty(0), receipt)
    assert lender.state.position == lender.coordinator.state.position
    assert lender.state.tensors()[:-4] == []
    assert lender.state.sketch == ()
