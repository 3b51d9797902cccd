"""A vote is on disk before it is sent, and nobody votes twice in one instance."""

from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.messages import TooFew
from dedloc_kit.swarm.consensus.records import Epoch, Vote
from dedloc_kit.swarm.consensus.votes import VoteBook, Write
from tests.swarm.consensus.table import VERIFIER, decided, entry, instance, voter

WHERE = instance({"p1": 4, "p2": 4, "p3": 4})


def persist(number: int) -> Persist:
    """A promise of this epoch, with a message that waits for it."""
    vote = WHERE.first_vote(voter("p1")).model_copy(update={"promised": Epoch(number, "p1", "")})
    return Persist(vote, (send(number),))


def send(number: int) -> Send:
    return Send("p2", TooFew(group="0" * 64, epoch=Epoch(number, "p1", "")))


def test_nothing_is_sent_before_the_vote_is_written() -> None:
    book = VoteBook(voter("p1"), None)
    assert book.persist(persist(1)) == [Write(persist(1).vote, False)]
    assert book.persist(persist(2)) == []
    assert book.persist(persist(3)) == []
    assert book.written(True) == [send(1), Write(persist(3).vote, False)]
    assert book.written(True) == [send(2), send(3)]


def test_what_waits_for_a_write_that_fails_is_never_sent() -> None:
    book = VoteBook(voter("p1"), None)
    book.persist(persist(1))
    assert book.written(False) == []
    assert book.mute
    assert book.as_voter(WHERE) == voter("p1", 0)
    assert book.retry(WHERE) == [Write(persist(1).vote, False)]
    assert book.written(True) == []
    assert book.as_voter(WHERE) == voter("p1")
    assert book.retry(WHERE) == []


def test_what_was_promised_outlives_a_round_and_a_restart() -> None:
    book = VoteBook(voter("p1", 5), persist(7).vote)
    assert book.voter == voter("p1", 1)
    assert book.vote(WHERE).promised.number == 7
    elsewhere = WHERE.after(decided(WHERE, (entry(WHERE, "p1"), entry(WHERE, "p2")), "p1 p2"), VERIFIER)
    assert book.vote(elsewhere) == elsewhere.first_vote(voter("p1"))


def test_nobody_votes_in_an_instance_that_its_file_has_passed() -> None:
    commit = decided(WHERE, (entry(WHERE, "p1"), entry(WHERE, "p2")), "p1 p2")
    after = WHERE.after(commit, VERIFIER)
    later: Vote = after.first_vote(voter("p1"))
    book = VoteBook(voter("p1"), later)
    assert not book.may_vote(WHERE)
    assert book.may_vote(after)
    assert VoteBook(voter("p1"), later.model_copy(update={"term": (-1, "")})).may_vote(WHERE)
    assert not VoteBook(voter("p1"), WHERE.first_vote(voter("p1")).model_copy(update={"term": (1, "")})).may_vote(after)


def test_who_has_said_goodbye_never_votes_again() -> None:
    book = VoteBook(voter("p1"), None)
    book.persist(persist(1))
    book.leave()
    assert book.written(True) == []
    assert not book.may_vote(WHERE)
