"""Who holds no parameters hears where the others are, and takes no step for the next one that is not."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.alongside import Alongside
from dedloc_kit.swarm.transfer.protocol import Header
from tests.identities import an_identity
from tests.swarm.harness import belief, progress
from tests.swarm.rounds.chained import BATCH, Chains, Coordinator, Impatient, chains, directory, done
from tests.tiny import tiny_run


class Lender:
    """Follows a coordinator, which tells where it is.

    :ivar here: whether that is there
    :ivar header: what it says of its state
    """

    def __init__(self, among: Chains, coordinator: Coordinator, signer: Signer) -> None:
        self.state = NoState(FlatLayout.of([torch.empty(5050)]), coordinator.run)
        self.coordinator, self.rejected = coordinator, list[str]()
        self.here = True
        self.header: Callable[[], Header | None] = coordinator.header
        there: Any = lambda: {coordinator.signer.peer: self.there()} if self.here else {}  # noqa: E731
        tracker: Any = SimpleNamespace(
            newest=lambda own: coordinator.state.position if self.here else own,
            at=lambda *_: there(),
            others=there,
            belief=belief(signer.peer, coordinator.signer.peer),
            reject=self.rejected.append,
            refresh=lambda: None,
            peers=directory(signer.peer, there),
        )
        exchange: Any = SimpleNamespace(transfers=SimpleNamespace(ask_for_state=self.ask))
        self.branch = among.branch(self.state, signer, tracker)
        self.along = Alongside(self.state, exchange, tracker, self.branch, Impatient())

    def there(self) -> Progress:
        state = self.coordinator.state
        return progress(step=state.step, round=state.round, term=self.coordinator.branch.term)

    def ask(self, _: str) -> Future[Header | None]:
        return done(self.header())

    def is_there(self) -> bool:
        """Is it where the coordinator is, with the same voters?"""
        theirs, mine = self.coordinator.branch.head, self.branch.head
        assert mine is not None
        assert theirs is not None
        return self.state.position == self.coordinator.state.position and mine.instance == theirs.instance


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Signer]:
    """The organizer's, and a lender's."""
    folder: Path = tmp_path_factory.mktemp("keys")
    return Signer(an_identity(folder / "organizer")), Signer(an_identity(folder / "lender"))


@pytest.fixture
def among(signers: tuple[Signer, Signer]) -> Iterator[Chains]:
    with chains(signers[0]) as made:
        yield made


@pytest.fixture
def lender(among: Chains, signers: tuple[Signer, Signer]) -> Lender:
    return Lender(among, Coordinator(among, tiny_run(global_batch=BATCH)), signers[1])


def test_it_begins_where_the_others_are_and_learns_of_each_step_that_it_missed(lender: Lender) -> None:
    for _ in range(3):
        lender.coordinator.step()
    assert lender.along.load()
    assert lender.is_there()
    assert not lender.state.receipts
    assert not lender.along.behind()
    commits = [lender.coordinator.step() for _ in range(2)]
    missed = lender.along.follow()
    assert [(step.receipt.step, step.receipt.round) for step in missed] == [(4, commits[0].link), (5, commits[1].link)]
    assert [sum(step.weights.values()) for step in missed] == [BATCH, BATCH]
    assert lender.state.receipts == tuple(step.receipt for step in missed)
    assert lender.is_there()


def test_it_follows_where_voters_were_replaced_and_where_a_person_rolled_back(lender: Lender) -> None:
    coordinator = lender.coordinator
    coordinator.step()
    assert lender.along.load()
    coordinator.replace_voters()
    coordinator.step()
    link = coordinator.roll_back(*coordinator.state.copy(), rate=0.5)
    missed = lender.along.follow()
    assert [step.is_step for step in missed] == [False, True, True]
    assert missed[-1].receipt.round == link
    assert lender.is_there()


@pytest.mark.parametrize("wrong", ["silent", "of another place", "nonsense"])
def test_it_goes_nowhere_by_a_word_that_is_not_signed(
    among: Chains, lender: Lender, wrong: str, signers: tuple[Signer, Signer]
) -> None:
    another = Coordinator(among, lender.coordinator.run)
    another.step()
    lender.coordinator.step()
    headers: dict[str, Callable[[], Header | None]] = {
        "silent": lambda: None,
        "of another place": another.header,
        "nonsense": lambda: Header(answer="here", total=1, metadata=b"nonsense"),
    }
    lender.header = headers[wrong]
    before = lender.state.position
    assert not lender.along.load()
    assert lender.state.position == before
    assert bool(lender.rejected) == (wrong != "silent")
    lender.header = lender.coordinator.header
    assert lender.along.load()
    assert lender.is_there()


def test_it_does_not_begin_where_nobody_says_where_they_are(lender: Lender) -> None:
    lender.here = False
    assert not lender.along.load()


def test_it_counts_a_step_without_looking_at_the_average(lender: Lender) -> None:
    lender.coordinator.step()
    (receipt,) = lender.coordinator.state.receipts
    lender.state.apply(torch.empty(0), receipt)
    assert lender.state.position == lender.coordinator.state.position
    assert lender.state.tensors()[:-4] == []
    assert lender.state.sketch == ()
