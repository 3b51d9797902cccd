"""How a peer that is behind gets on: whom it asks, what it believes, what it takes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.gathering.catchup import (
    AskRecords,
    CatchUp,
    CatchUpOptions,
    Failed,
    Look,
    NoAnswer,
    NothingKept,
    Records,
    TakeRecord,
    TakeState,
    TooFarBehind,
)
from dedloc_kit.swarm.gathering.peers import PeerTable
from tests.swarm.consensus.table import VERIFIER
from tests.swarm.consensus.test_chain import GENESIS, commits, reset
from tests.swarm.gathering.positions import position

OPTIONS = CatchUpOptions(averages=3)


def at_end_of(records: Sequence[ChainRecord], now: float, **more: Any) -> Any:
    """The position of a peer with these records."""
    made = Chain(GENESIS, VERIFIER)
    made.adopt(records)
    return position(now, made.head.previous, term=made.head.term, step=made.head.step, **more)


class Behind:
    """A peer whose chain has the first of some records, and what it hears."""

    def __init__(self, records: Sequence[ChainRecord] = (), client: bool = False) -> None:
        self.chain, self.table = Chain(GENESIS, VERIFIER), PeerTable("me")
        self.chain.adopt(records)
        self.machine = CatchUp("me", client, self.chain, self.table, OPTIONS)

    def hear(self, now: float, **told: Any) -> list[Any]:
        self.table.look(told, now)
        return self.machine.handle(Look(), now)

    def take(self, effects: list[Any], now: float) -> list[Any]:
        """Do what it asks for; returns what it asks for next."""
        (effect,) = effects
        self.chain.adopt([effect.record] if isinstance(effect, TakeRecord) else effect.records)
        return self.machine.handle(Look(), now)


def test_a_peer_that_missed_some_steps_takes_their_averages_one_after_the_other() -> None:
    records = commits(3)
    me = Behind(records[:1])
    effects = me.hear(0, a=at_end_of(records, 0))
    assert effects == [AskRecords("a", records[0].link)]
    effects = me.machine.handle(Records("a", tuple(records[1:])), 1)
    assert effects == [TakeRecord(records[1], ("p1", "p2", "a"))]
    assert me.machine.behind
    effects = me.take(effects, 2)
    assert effects == [TakeRecord(records[2], ("p1", "p2", "a"))]
    assert me.take(effects, 3) == []
    assert not me.machine.behind
    assert me.chain.records == tuple(records)


def test_a_peer_that_is_further_behind_takes_the_state_of_a_peer_that_holds_it() -> None:
    records = commits(5)
    me = Behind()
    me.hear(0, a=at_end_of(records, 0))
    me.table.look({"b": at_end_of(records[:4], 0), "c": at_end_of(records, 0)}, 0)
    effects = me.machine.handle(Records("a", tuple(records)), 1)
    assert effects == [TakeState(tuple(records), ("a", "c"))]
    assert me.take(effects, 2) == []
    assert not me.machine.behind


def test_a_peer_on_a_branch_that_was_left_goes_back_with_the_state() -> None:
    records = commits(2)
    other = reset(GENESIS.after(records[0], VERIFIER), 1)
    me = Behind(records)
    branch = [records[0], other]
    assert me.hear(0, a=at_end_of(branch, 0)) == [AskRecords("a", records[1].link)]
    effects = me.machine.handle(Records("a", tuple(branch)), 1)
    assert effects == [TakeState((other,), ("a",))]
    assert me.take(effects, 2) == []
    assert me.chain.records == tuple(branch)


def test_a_reset_at_the_own_head_needs_nothing_but_itself() -> None:
    records = commits(1)
    other = reset(GENESIS.after(records[0], VERIFIER), 1)
    me = Behind(records)
    me.hear(0, a=at_end_of([*records, other], 0))
    effects = me.machine.handle(Records("a", (other,)), 1)
    assert effects == [TakeRecord(other, ("a",))]
    assert me.take(effects, 2) == []


def test_a_state_takes_the_place_of_an_average_that_nobody_has() -> None:
    records = commits(2)
    me = Behind()
    me.hear(0, a=at_end_of(records, 0))
    me.machine.handle(Records("a", tuple(records)), 1)
    assert me.machine.handle(Failed(), 2) == [TakeState(tuple(records), ("a",))]
    assert me.machine.handle(Failed(), 3) == []
    assert not me.machine.behind
    assert me.machine.handle(Look(), me.machine.deadline) == [AskRecords("a", "" or GENESIS.previous)], "it tries anew"


FORGED: dict[str, Any] = {
    "nothing": lambda records: (),
    "what it has": lambda records: tuple(records[:1]),
    "a gap": lambda records: tuple(records[2:]),
    "backwards": lambda records: tuple(reversed(records)),
    "unsigned": lambda records: (_without_votes(records[1]),),
}


def _without_votes(record: Commit) -> Commit:
    return record.changed(accepted=tuple(each.changed(signature="") for each in record.accepted))


@pytest.mark.parametrize("forged", FORGED)
def test_a_claim_that_the_chain_does_not_prove_is_not_followed_and_its_author_asked_ever_more_rarely(
    forged: str,
) -> None:
    records = commits(3)
    me, asked = Behind(records[:1]), list[float]()
    now = 0.0
    while now < 100:
        for effect in me.hear(now, liar=at_end_of(records, now)):
            assert effect == AskRecords("liar", records[0].link)
            asked.append(now)
            found = me.machine.handle(Records("liar", FORGED[forged](records)), now)
            assert found in ([], [TooFarBehind("liar")])
        now += 1
    assert not me.machine.behind
    assert me.chain.records == tuple(records[:1])
    assert 3 < len(asked) < 10
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps == sorted(gaps)


def test_a_liar_does_not_keep_a_peer_from_asking_an_honest_one() -> None:
    records = commits(2)
    me = Behind()
    claim = position(0, "ab" * 32, term=(2**40, "cd" * 32), step=10**6)
    for _ in range(2):
        asked = me.hear(0, liar=claim, honest=at_end_of(records, 0))
        asked += me.machine.handle(NoAnswer("liar"), 0)
        if AskRecords("honest", GENESIS.previous) in asked:
            break
    assert [type(effect) for effect in me.machine.handle(Records("honest", tuple(records)), 1)] == [TakeRecord]


def test_part_of_a_claim_that_is_proven_is_taken() -> None:
    records = commits(2)
    me = Behind()
    me.hear(0, a=position(0, "ab" * 32, term=GENESIS.term, step=99))
    effects = me.machine.handle(Records("a", tuple(records)), 1)
    assert effects == [TakeRecord(records[0], ("p1", "p2", "a"))]


def test_a_peer_that_does_not_answer_is_followed_by_another() -> None:
    records = commits(1)
    me = Behind()
    first = me.hear(0, a=at_end_of(records, 0), b=at_end_of(records, 0))
    assert me.machine.handle(Look(), 5) == []
    second = me.machine.handle(Look(), me.machine.deadline)
    a, b = (AskRecords(peer, GENESIS.previous) for peer in "ab")
    assert (first, second) in (([a], [b]), ([b], [a]))
    late = me.machine.handle(Records("a" if first == [a] else "b", tuple(records)), 12)
    assert late == [], "it was given up"


def test_nobody_is_asked_for_what_the_own_round_is_about_to_tell() -> None:
    records = commits(2)
    me = Behind()
    me.table.look({"a": at_end_of(records[:1], 0)}, 0)
    assert me.machine.handle(Look(in_round=True), 0) == []
    assert me.machine.deadline == OPTIONS.grace
    assert me.machine.handle(Look(in_round=True), OPTIONS.grace) == [AskRecords("a", GENESIS.previous)]
    other = Behind()
    other.table.look({"a": at_end_of(records, 0)}, 0)
    assert len(other.machine.handle(Look(in_round=True), 0)) == 1, "two steps ahead: the round is lost"


def test_a_round_that_ends_meanwhile_leaves_nothing_to_take() -> None:
    records = commits(2)
    me = Behind()
    me.hear(0, a=at_end_of(records[:1], 0))
    me.machine.handle(Records("a", tuple(records[:1])), 1)
    me.chain.adopt(records)
    assert me.machine.handle(Look(), 2) == []
    assert not me.machine.behind


def test_two_clients_cannot_ask_each_other() -> None:
    records = commits(1)
    me = Behind(client=True)
    assert me.hear(0, a=at_end_of(records, 0, client=True)) == []
    assert len(me.hear(1, b=at_end_of(records, 1))) == 1


def test_who_is_behind_all_records_hears_of_it_and_asks_the_same_peer_ever_more_rarely() -> None:
    records = commits(4)
    for answer in (Records("a", tuple(records[2:])), NothingKept("a")):
        me = Behind()
        me.hear(0, a=at_end_of(records, 0))
        assert me.machine.handle(answer, 0) == [TooFarBehind("a")]
        assert not me.machine.behind
        assert me.hear(0, a=at_end_of(records, 0)) == []
        assert me.machine.handle(Look(), me.machine.deadline) == [AskRecords("a", GENESIS.previous)]
        assert me.machine.handle(answer, 3) == [TooFarBehind("a")]
        assert me.machine.handle(Look(), 3) == []
        assert me.machine.deadline > 3 + OPTIONS.pause


def test_a_state_that_a_person_has_chosen_is_taken_whole() -> None:
    records = commits(1)
    chosen = reset(GENESIS.after(records[0], VERIFIER), 1, chosen=True)
    me = Behind(records)
    me.hear(0, a=at_end_of([*records, chosen], 0))
    effects = me.machine.handle(Records("a", (chosen,)), 1)
    assert effects == [TakeState((chosen,), ("a",))]
    assert me.take(effects, 2) == []
