"""How one peer looks for its group: whom it asks, whom it accepts, and when the group stands."""

from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any

import pytest

from dedloc_kit.records.position import Position
from dedloc_kit.swarm.consensus.chain import Chain
from dedloc_kit.swarm.gathering.batch import BatchFilling
from dedloc_kit.swarm.gathering.gathering import ANSWER_SECONDS, GRACE, PENALTY, SILENT, SLACK, Gathering
from dedloc_kit.swarm.gathering.messages import (
    Answer,
    Answered,
    Ask,
    Asked,
    Attempt,
    Begun,
    Disband,
    Effect,
    Join,
    Leave,
    Lost,
    Member,
    Over,
    Stand,
    Tick,
    Verdict,
)
from dedloc_kit.swarm.gathering.peers import PeerTable
from dedloc_kit.swarm.gathering.timing import FIRST_WINDOW, GatheringTimes
from tests.swarm.consensus.table import decided, entry
from tests.swarm.gathering.positions import chain, position

WAIT, NO = Verdict(verdict="wait", seconds=5), Verdict(verdict="no")


class Peer:
    """One that computes, named `me`, at a head that it decides with others. The batch is full unless `samples` says.

    :ivar at: the time
    """

    def __init__(self, others: str = "p0 a b", client: bool = False, follower: bool = False, samples: int = 10) -> None:
        names = ("me", *(name for name in others.split() if name != "p0"))
        self.chain, self.table = chain(*names), PeerTable("me")
        self.client, self.follower, self.at = client, follower, 0.0
        self.batch = BatchFilling("me", self.position(samples), self.chain, self.table, 10)
        self.times = GatheringTimes()
        me = Member(peer="me", client=client)
        self.machine = Gathering(me, self.chain, self.table, self.batch, self.times, Random(1))

    def position(self, samples: int) -> Position:
        return position(self.at, samples=samples, samples_per_second=1.0, follower=self.follower, client=self.client)

    def hear(self, told: Iterable[str], **more: Any) -> list[Effect]:
        """These tell that they are at the head."""
        self.table.look({name: position(self.at, **more) for name in told}, self.at)
        return self.do(Tick())

    def do(self, event: Any) -> list[Effect]:
        return self.machine.handle(event, self.at)

    def wait(self, seconds: float, hearing: Iterable[str] = (), refusing: str = "") -> list[Effect]:
        """So long, with every tick that it wants, while these go on telling, and that one says no if it is asked."""
        effects, end = list[Effect](), self.at + seconds
        while self.at < end:
            before = self.at
            self.at = min(end, max(self.machine.deadline, before + 1e-6), before + 1)
            found = self.hear(hearing) if hearing else self.do(Tick())
            effects += [*found, *(self.do(Answered(refusing, NO)) if refusing in asked(found) else ())]
        return effects

    def asked_by(self, peer: str, expects: int = 0, **more: Any) -> list[Effect]:
        return self.do(Asked(peer, Join(position=position(self.at, **more), expects=expects)))

    def group(self, members: str) -> Verdict:
        return Verdict(verdict="group", attempt=attempt(self.chain, members))


def attempt(made: Chain, members: str) -> Attempt:
    each = tuple(Member(peer=name) for name in sorted(members.split()))
    return Attempt(nonce="ab" * 16, previous=made.head.previous, members=each)


def peers(effects: list[Effect]) -> list[set[str]]:
    """Of the groups that stand."""
    return [set(effect.attempt.peers) for effect in effects if isinstance(effect, Stand)]


def asked(effects: list[Effect]) -> list[str]:
    return [effect.leader for effect in effects if isinstance(effect, Ask)]


def a_leader() -> Peer:
    """A follower: it ranks before those that compute."""
    return Peer("a b", follower=True, samples=10)


def a_follower(seconds: float = 60) -> Peer:
    """With p0 to follow, who has just accepted it, for so long."""
    me = Peer()
    me.table.look({"p0": position(0, follower=True), "a": position(0), "b": position(0)}, 0)
    assert asked(me.do(Tick())) == ["p0"]
    assert me.do(Answered("p0", Verdict(verdict="wait", seconds=seconds))) == []
    return me


# Leading


def test_a_group_stands_as_soon_as_all_that_are_expected_are_there() -> None:
    me = a_leader()
    assert me.hear("ab") == []
    (wait,) = me.asked_by("a")
    assert isinstance(wait, Answer)
    assert (wait.peer, wait.verdict.verdict) == ("a", "wait")
    assert 0 < wait.verdict.seconds <= FIRST_WINDOW
    effects = me.asked_by("b")
    assert peers(effects) == [{"me", "a", "b"}]
    told = [effect for effect in effects if isinstance(effect, Answer) and effect.verdict.verdict == "group"]
    assert [answer.peer for answer in told] == ["a", "b"]
    assert me.machine.attempt is not None
    assert {answer.verdict.attempt for answer in told} == {me.machine.attempt}


def test_a_group_gathers_shortly_before_the_batch_is_full_and_stays_open_for_half_of_that_time() -> None:
    me = Peer("a b", follower=True, samples=0)
    assert me.hear("ab", samples=1) == []
    assert not me.machine.searching, "eight seconds"
    me.batch.update(position(0, samples=7, samples_per_second=0.5), 0)
    assert me.hear("ab", samples=1) == []
    assert me.machine.searching, "two seconds"
    me.asked_by("a", samples=1)
    assert peers(me.asked_by("b", samples=1)) == []
    assert peers(me.wait(0.8)) == []
    assert peers(me.wait(0.4)) == [{"me", "a", "b"}]


def test_a_peer_that_comes_while_the_group_gathers_is_waited_for() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    me.at = 1
    me.hear("abc")
    assert peers(me.asked_by("b")) == []
    assert peers(me.asked_by("c")) == [{"me", "a", "b", "c"}]


def test_a_leader_that_hears_of_more_peers_than_it_knows_looks_into_the_directory_before_the_group_stands() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a", expects=3)
    me.at = 0.5
    assert peers(me.asked_by("b", expects=2)) == []
    me.at = 1
    assert me.hear("abc") == []
    assert peers(me.asked_by("c")) == [{"me", "a", "b", "c"}]


def test_who_claims_that_there_are_more_peers_holds_up_a_group_until_the_next_look_at_most() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a", expects=1000)
    assert peers(me.asked_by("b")) == []
    me.at = 1
    assert peers(me.hear("ab")) == [{"me", "a", "b"}]


def test_the_first_group_of_a_run_whose_samples_do_not_keep_stands_after_an_answer_asked_for_in_its_search() -> None:
    me = a_leader()
    me.batch.see(me.position(10), said=10)
    me.hear("ab")
    me.asked_by("a")
    assert peers(me.asked_by("b")) == []
    me.at = 1
    assert peers(me.hear("ab")) == []
    me.at = 2
    assert peers(me.hear("ab")) == [{"me", "a", "b"}]


def test_a_peer_that_is_gone_is_not_waited_for_any_longer() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    me.table.look({"b": None}, 1)
    assert peers(me.do(Tick())) == [{"me", "a"}]


def test_a_group_stands_without_those_that_do_not_come_in_time_and_does_not_count_them() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    assert peers(me.wait(FIRST_WINDOW - 1, "ab", refusing="b")) == []
    assert peers(me.wait(2, "a", refusing="b")) == [{"me", "a"}]
    assert list(me.table.counted(me.at)) == ["a"]
    me.at += 1
    me.hear("b")
    assert list(me.table.counted(me.at)) == ["a", "b"], "it speaks again"


def test_a_peer_that_does_not_come_and_does_not_answer_is_not_waited_for_so_long() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    assert peers(me.wait(PENALTY + ANSWER_SECONDS - 0.5, "ab")) == []
    assert peers(me.wait(1, "ab")) == [{"me", "a"}]


def test_no_group_stands_without_a_quorum() -> None:
    me = Peer("a b c", follower=True)
    me.hear("a")
    assert peers(me.asked_by("a")) == []
    effects = me.wait(FIRST_WINDOW + 1, "a")
    assert peers(effects) == []
    assert Answer("a", NO) in effects, "it may look elsewhere"
    assert me.machine.searching
    me.hear("ab")
    me.asked_by("a")
    assert peers(me.asked_by("b")) == [{"me", "a", "b"}]


def test_late_members_of_the_last_step_are_waited_for() -> None:
    me = a_leader()
    head = me.chain.head
    commit = decided(head, (entry(head, "me"), entry(head, "a"), entry(head, "b")), "me a b")
    me.chain.adopt([commit])
    now: dict[str, Any] = {"head": commit.link}
    me.batch.update(position(0, samples=10, follower=True, **now), 0)
    me.table.look({"a": position(0, **now), "b": position(0)}, 0)
    me.do(Tick())
    assert list(me.machine.expected(0)) == ["b", "a"]
    assert peers(me.asked_by("a", **now)) == []
    assert me.asked_by("b") == [Answer("b", NO)], "it is not here yet"
    me.at = 1
    assert peers(me.asked_by("b", **now)) == [{"me", "a", "b"}]


def test_a_peer_that_did_not_count_in_the_last_step_is_waited_for_but_some_seconds() -> None:
    me = a_leader()
    head = me.chain.head
    commit = decided(head, (entry(head, "me"), entry(head, "a"), entry(head, "b")), "me a b")
    me.chain.adopt([commit])
    now: dict[str, Any] = {"head": commit.link}
    me.batch.update(position(0, samples=10, follower=True, **now), 0)
    me.table.look({name: position(0, **now) for name in "abc"}, 0)
    me.do(Tick())
    me.asked_by("a", **now)
    assert peers(me.asked_by("b", **now)) == []
    assert peers(me.wait(GRACE - 0.5)) == []
    assert peers(me.wait(1)) == [{"me", "a", "b"}]


@pytest.mark.parametrize("broken", [True, False])
def test_a_follower_that_breaks_off_is_not_waited_for_and_one_that_goes_elsewhere_is(broken: bool) -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("b")
    me.do(Lost("b", broken))
    me.at = 0.5
    assert peers(me.asked_by("a")) == ([{"me", "a"}] if broken else [])


def test_a_leader_repeats_that_its_followers_are_to_wait() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    waits = [effect for effect in me.wait(9, "ab", refusing="b") if isinstance(effect, Answer)]
    assert len(waits) == 4
    assert {answer.verdict.verdict for answer in waits} == {"wait"}


def test_a_client_or_a_peer_at_another_head_leads_nobody() -> None:
    client, other = Peer(client=True), a_leader()
    client.hear(["a"])
    assert client.asked_by("b") == [Answer("b", NO)]
    other.hear("a")
    assert other.asked_by("a", head="ab" * 32) == [Answer("a", NO)]


def test_a_peer_that_is_backed_off_is_not_accepted() -> None:
    me = a_leader()
    for _ in range(4):
        me.hear("ab")
        me.table.suspect({"b"}, me.at)
    assert me.asked_by("b", samples=1) == [Answer("b", NO)]


def test_a_member_that_has_missed_the_group_is_told_again() -> None:
    me = a_leader()
    me.hear("ab")
    me.asked_by("a")
    me.asked_by("b")
    me.at = 1
    (again,) = me.asked_by("b")
    assert isinstance(again, Answer)
    assert again.verdict.attempt == me.machine.attempt
    me.at = 1 + SLACK
    assert me.asked_by("b") == [Answer("b", NO)], "the others have begun without it"


def test_a_peer_that_never_saw_anyone_stands_alone_once_it_has_looked() -> None:
    me = Peer("")
    assert me.do(Tick()) == []
    assert peers(me.hear(())) == [{"me"}]


def test_a_peer_whose_others_are_gone_stands_alone_once_it_has_looked_for_a_while() -> None:
    me = Peer("", samples=0)
    me.hear("b")
    me.batch.mine = me.position(10)
    effects = list[Effect]()
    while not peers(effects) and me.at < 60:
        me.at += 1
        effects = me.hear(())
    assert peers(effects) == [{"me"}]
    assert 15 < me.at < 35


def test_a_peer_that_cannot_fill_the_batch_alone_does_not_stand_alone() -> None:
    me = Peer("", samples=0)
    assert peers(me.wait(60, ())) == []


# Following


def test_peers_rank_alike_whom_to_follow_and_followers_lead_first() -> None:
    names = list("abcdef")
    first = set()
    for name in names:
        others = [other for other in names if other != name]
        me = Peer(" ".join(others))
        ranked = Gathering(Member(peer=name), me.chain, me.table, me.batch, me.times, Random(0))
        me.table.look({other: position(0) for other in others}, 0)
        leaders = asked(ranked.handle(Tick(), 0))
        first.update(leaders or [name])
    assert len(first) == 1
    me = Peer("a b c d e f")
    assert asked(me.hear("abcdef")) in (list(first), [])
    other = Peer("a b c d e f")
    other.table.look({**{name: position(0) for name in names}, "p0": position(0, follower=True)}, 0)
    assert asked(other.do(Tick())) == ["p0"]


def test_clients_are_never_asked() -> None:
    me = Peer("a b", client=True)
    me.table.look({"a": position(0, client=True), "b": position(0)}, 0)
    assert asked(me.do(Tick())) == ["b"]


def test_a_follower_takes_the_group_that_its_leader_tells_and_sends_its_own_followers_there() -> None:
    me = Peer()
    me.table.look({"p0": position(0, follower=True), "a": position(0), "b": position(0)}, 0)
    me.do(Tick())
    assert [type(effect) for effect in me.asked_by("a")] == [Answer]
    assert me.do(Answered("p0", WAIT)) == [Answer("a", Verdict(verdict="no", leader="p0"))]
    assert me.asked_by("b") == [Answer("b", Verdict(verdict="no", leader="p0"))]
    assert me.do(Answered("p0", me.group("me p0 a b"))) == [Stand(attempt(me.chain, "me p0 a b"))]


@pytest.mark.parametrize("members", ["p0 a b", "me a b", "me p0"])
def test_a_group_without_this_peer_its_leader_or_a_quorum_is_not_taken(members: str) -> None:
    me = a_follower()
    assert me.do(Answered("p0", me.group(members))) == []
    assert me.machine.attempt is None
    assert me.machine.searching


def test_a_group_for_another_step_or_from_a_peer_that_was_not_asked_is_not_taken() -> None:
    me = a_follower()
    assert me.do(Answered("a", me.group("me a b p0"))) == []
    stale = Verdict(verdict="group", attempt=attempt(chain("x"), "me p0 a b").changed(previous="ab" * 32))
    assert me.do(Answered("p0", stale)) == []
    assert me.machine.attempt is None


def test_a_leader_that_falls_silent_is_given_up_within_seconds_and_not_counted() -> None:
    me = a_follower()
    assert me.wait(SILENT - 1, "ab") == []
    assert Leave("p0") in me.wait(2, "ab")
    assert "p0" not in me.table.counted(me.at)


def test_a_leader_that_accepts_and_never_stands_is_given_up_and_then_asked_last() -> None:
    me = a_follower(5)
    gave_up = 0.0
    while not gave_up and me.at < 60:
        me.at += 1
        me.table.look({"p0": position(me.at, follower=True), "a": position(me.at), "b": position(me.at)}, me.at)
        if Leave("p0") in me.do(Answered("p0", Verdict(verdict="wait", seconds=600))):
            gave_up = me.at
    assert gave_up == 5 + SLACK, "what it promised first holds"
    others = asked(me.wait(PENALTY - 1, "ab"))
    assert "p0" not in others


def test_a_leader_that_does_not_answer_is_not_waited_for() -> None:
    me = Peer()
    me.table.look({"p0": position(0, follower=True), "a": position(0)}, 0)
    assert asked(me.do(Tick())) == ["p0"]
    me.at = ANSWER_SECONDS
    assert me.do(Tick())[0] == Leave("p0")


def test_a_leader_whose_stream_breaks_is_not_counted_until_it_speaks_again() -> None:
    me = a_follower()
    me.at = 1
    me.do(Lost("p0", True))
    assert sorted(me.table.counted(1)) == ["a", "b"]


def test_a_leader_that_refuses_is_asked_again_a_bit_later_and_names_another_one() -> None:
    me = Peer("p0 a b")
    me.table.look({"p0": position(0, follower=True), "a": position(0), "b": position(0)}, 0)
    me.do(Tick())
    effects = me.do(Answered("p0", Verdict(verdict="no", leader="a")))
    assert "p0" not in asked(effects)
    while "a" not in asked(effects):
        assert asked(effects), "it was told of a"
        effects = me.do(Answered(asked(effects)[0], NO))
    me.do(Answered("a", NO))
    assert "p0" in asked(me.wait(1, "ab"))


def test_hints_in_a_circle_do_not_make_it_ask_without_pause() -> None:
    me = Peer()
    me.table.look({"p0": position(0, follower=True), "a": position(0), "b": position(0)}, 0)
    effects, count = me.do(Tick()), 0
    while asked(effects) and count < 100:
        leader = asked(effects)[0]
        count += 1
        effects = me.do(Answered(leader, Verdict(verdict="no", leader={"p0": "a", "a": "b", "b": "p0"}[leader])))
    assert count < 10


def test_of_two_that_ask_each_other_one_leads() -> None:
    class Named(Peer):
        def __init__(self, name: str, other: str) -> None:
            super().__init__("a b")
            self.machine = Gathering(Member(peer=name), chain("a", "b"), self.table, self.batch, self.times, Random(0))
            self.table.look({other: position(0, follower=True), "c": position(0)}, 0)
            assert asked(self.do(Tick())) == [other]

    one, two = Named("a", "b"), Named("b", "a")
    answers = [
        effect.verdict.verdict
        for peer, other in ((one, "b"), (two, "a"))
        for effect in peer.asked_by(other, follower=True)
        if isinstance(effect, Answer)
    ]
    assert sorted(answers) == ["no", "wait"]


def test_a_peer_that_nobody_follows_asks_those_that_rank_after_it() -> None:
    me = a_leader()
    assert asked(me.hear("ab")) == []
    assert asked(me.wait(PENALTY - 1, "ab")) == []
    assert len(asked(me.wait(2, "ab"))) == 1


# A group that stands


def stood() -> Peer:
    me = a_follower()
    me.do(Answered("p0", me.group("me p0 a b")))
    return me


def test_a_group_is_given_up_if_a_member_leaves_before_the_round_begins() -> None:
    me = stood()
    me.table.look({"a": None}, 1)
    effects = me.do(Tick())
    assert effects[0] == Disband("a member leaves")
    begun = stood()
    begun.do(Begun())
    begun.table.look({"a": None}, 1)
    assert begun.do(Tick()) == []


def test_a_group_whose_batch_does_not_fill_is_given_up_in_the_end() -> None:
    me = stood()
    assert me.machine.deadline < 60
    me.at = me.machine.deadline
    assert me.do(Tick())[0] == Disband("the batch does not fill")


def test_a_round_that_failed_is_followed_by_another_search_after_a_pause() -> None:
    me = stood()
    me.do(Begun())
    assert me.machine.deadline == inf, "the round has timers of its own"
    me.at = 5
    assert me.do(Over(frozenset("a"))) == []
    assert "a" not in me.table.counted(5)
    assert not me.machine.searching
    assert 5 < me.machine.deadline < 7
    me.at = me.machine.deadline
    me.hear(["p0", "b"])
    assert me.machine.searching


def test_a_new_head_ends_the_search() -> None:
    me = a_follower()
    head = me.chain.head
    commit = decided(head, (entry(head, "a"), entry(head, "b")), "a b")
    me.chain.adopt([commit])
    assert Leave("p0") in me.do(Tick())
    other = a_leader()
    other.hear("ab")
    other.asked_by("a")
    head = other.chain.head
    other.chain.adopt([decided(head, (entry(head, "a"), entry(head, "b")), "a b")])
    assert Answer("a", NO) in other.do(Tick())


def test_a_group_is_found_earlier_the_later_the_last_ones_were() -> None:
    times = GatheringTimes()
    first = times.lead, times.window
    times.stood(30, 6)
    assert (times.lead, times.window) == (9, 60)
    for _ in range(8):
        times.stood(1, 0)
    assert times.lead < first[0]
    assert times.window < first[1]
    assert times.pause == 0
    pauses = []
    for _ in range(8):
        times.ended(False)
        pauses.append(times.pause)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 10)
    times.ended(True)
    assert times.pause == 0


def test_a_peer_that_is_needed_for_a_quorum_is_waited_for_however_often_rounds_with_it_failed() -> None:
    me = Peer("p0 a b")
    me.hear("ab")
    for _ in range(5):
        me.table.suspect({"a", "b"}, me.at)
    me.at += 1
    me.hear("ab")
    assert me.machine.expected(me.at).keys() == {"a", "b"}
