"""How the peers that take a step together find each other: one group at a time. No I/O.

All peers know each other from the directory, and rank alike whom to follow; each asks a few until one accepts. A leader
tells its followers who the members are as soon as all that it expects are there, but not long before the batch is full:
until then another peer may still reach this head. Records reach some sooner than others, so for a while several may
lead; each goes on asking those that rank before it, and hands its followers over to the one that accepts it.

A group is only an attempt: the electorate of the chain decides. So nothing here is agreed upon.
"""

import hashlib
from collections import Counter
from collections.abc import Set
from math import inf

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS
from dedloc_kit.swarm.gathering.batch import POLL, BatchFilling, ChainEnd
from dedloc_kit.swarm.gathering.messages import (
    Answer,
    Answered,
    Ask,
    Asked,
    Attempt,
    Begun,
    Disband,
    Effect,
    Event,
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
from dedloc_kit.swarm.gathering.timing import GatheringTimes
from dedloc_kit.swarm.p2p.seams import Random

MAX_LEADERS = 3
"""Peers that are asked: if all asked all, requests would grow with the square of the peers."""
ANSWER_SECONDS, SLACK = 3.0, 3.0
"""For a leader's first answer; after the time in which it promised a group."""
REPEAT, SILENT = 2.0, 7.0
"""Seconds after which a leader repeats that its followers are to wait; a leader that was silent for so long is gone."""
ASK_AGAIN, MAX_ASK_AGAIN = 0.25, 5.0
"""Seconds until a leader that refused is asked again; one that answers slowly is asked less often."""
OPEN_SHARE = 0.5
"""Of the time that is left until the batch is full a group takes in all that come; the rest is for it to stand in."""
GRACE = 3.0
"""Seconds after the batch is full in which a group waits for peers that do not count in the last step."""
PENALTY = 4.0
"""Seconds of a search before a leader is asked that was followed in vain, for each time; and before a peer also asks
those that rank after it, for it may be such a leader to them."""
IDLE = 1.0
COMMIT_SECONDS = 10.0
"""After a commit of the own round the chain moves within that time."""


class _Search:
    """:ivar awaited: peers that were expected when it began; :ivar ends: the leader stands without the others then

    :ivar looks: into the directory, before it began
    """

    def __init__(self, awaited: Set[PeerId], now: float, open_until: float, ends: float, looks: int) -> None:
        self.awaited, self.began, self.open_until, self.ends, self.looks = awaited, now, open_until, ends, looks
        self.followers: dict[PeerId, Member] = {}
        self.more_expected_at = -inf
        """When a follower expected more than this peer does."""
        self.leader: PeerId = ""
        self.accepted = False
        self.asked = self.silent_at = self.patience = now
        self.repeat_at = now + REPEAT
        self.due: dict[PeerId, float] = {}
        self.hinted: dict[PeerId, None] = {}

    def ask(self, leader: PeerId, now: float) -> None:
        self.leader, self.accepted, self.asked = leader, False, now
        self.silent_at, self.patience = now + ANSWER_SECONDS, inf

    def release(self, again: float) -> None:
        """Follow nobody; ask this leader again then."""
        self.due[self.leader] = again
        self.leader, self.accepted = "", False


class Gathering:
    """The state machine of one peer.

    :ivar me: what this peer says of itself to a leader
    :ivar active: whether it may look for a group, and lead others
    :ivar attempt: the group that stands; :ivar awaited: peers that were expected when the search for it began
    :ivar deadline: when it needs a Tick; infinite while a round is under way, which has timers of its own
    """

    def __init__(
        self, me: Member, chain: ChainEnd, table: PeerTable, batch: BatchFilling, times: GatheringTimes, random: Random
    ) -> None:
        self.me, self._chain, self._table, self._batch = me, chain, table, batch
        self._times, self._random = times, random
        self._previous = chain.head.previous
        self._search: _Search | None = None
        self.active = True
        self.attempt: Attempt | None = None
        self.awaited = frozenset[PeerId]()
        self.deadline = -inf
        self._begun = False
        self._stood, self._limit = -inf, inf
        self._not_before = -inf
        self._full_since: float | None = None
        self._in_vain = Counter[PeerId]()
        """Leaders that accepted this peer and told of no group: they are asked last until a group of theirs stands, and
        followed for a shorter time."""

    @property
    def searching(self) -> bool:
        return self._search is not None

    def pauses(self, now: float) -> bool:
        """Whether a round has just ended, so that no group is looked for yet."""
        return now < self._not_before

    def introduce(self, bandwidth: float | None) -> None:
        """This peer's line is as fast as this, as rounds have shown it."""
        self.me = self.me.model_copy(update={"bandwidth": bandwidth})

    def allow(self, active: bool) -> None:
        """Whether this peer may look for a group, and lead others, from the next event on."""
        self.active = active

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._follow_chain(now)
        match event:
            case Asked(peer, join):
                effects += self._asked(peer, join, now)
            case Answered(leader, verdict):
                effects += self._answered(leader, verdict, now)
            case Lost(peer, broken):
                self._lost(peer, broken, now)
            case Begun():
                self._begun = self.attempt is not None
            case Over(failed, commit):
                self._over(failed, commit, now)
            case Tick():
                pass
        left = self._batch.seconds_left(now)
        effects += self._advance(left, now)
        self.deadline = self._next(left, now)
        return effects

    def _next(self, left: float, now: float) -> float:
        search = self._search
        if self.attempt is not None:
            return inf if self._begun else self._limit
        if search is None:
            return max(self._not_before, now + min(IDLE, max(POLL, left - self._times.lead)))
        if search.leader:
            return min(search.silent_at, search.patience)
        repeat = search.repeat_at if search.followers else inf
        times = [search.open_until, *search.due.values()]
        if self._full_since is not None:
            times.append(self._full_since + GRACE)
        return min(search.ends, now + IDLE, repeat, *(at for at in times if at > now))

    def _follow_chain(self, now: float) -> list[Effect]:
        """A new head: whom this peer looked for goes on from another one."""
        if self._chain.head.previous == self._previous:
            return []
        self._previous = self._chain.head.previous
        effects = self._end_search()
        if self.attempt is not None and not self._begun:
            effects.append(Disband("the chain has moved"))
        self.attempt, self._begun, self._not_before, self._full_since = None, False, -inf, None
        return effects

    def _end_search(self, leader: PeerId = "") -> list[Effect]:
        search, self._search = self._search, None
        if search is None:
            return []
        effects: list[Effect] = [Leave(search.leader)] if search.leader and search.leader != leader else []
        return effects + _send_away(search, leader)

    def _over(self, failed: Set[PeerId], commit: bool, now: float) -> None:
        if self.attempt is None:
            return
        self._times.ended(commit)
        if commit:
            self._table.trust(self.attempt.peers)
        self._table.suspect(failed, now)
        self._not_before = now + (COMMIT_SECONDS if commit else self._times.pause)
        self.attempt, self._begun = None, False

    def _advance(self, left: float, now: float) -> list[Effect]:
        self._full_since = None if left > 0 else now if self._full_since is None else self._full_since
        if self.attempt is not None:
            return [] if self._begun else self._check_attempt(self.attempt, left, now)
        search = self._search
        if not self.active:
            return self._end_search()
        if search is None:
            if now < self._not_before or left > self._times.lead or not self._table.looks:
                return []
            search = self._begin(left, now)
        return self._seek(search, left, now)

    def _check_attempt(self, attempt: Attempt, left: float, now: float) -> list[Effect]:
        why = self._why_in_vain(attempt, now)
        if not why:
            return []
        self.attempt = None
        return [Disband(why), *self._advance(left, now)]

    def _why_in_vain(self, attempt: Attempt, now: float) -> str:
        """Why the group that stands can take no step; empty if it may."""
        if not self.active:
            return "this peer has something else to do"
        if self._table.left(attempt.peers):
            return "a member leaves"
        if self._batch.lacks(attempt.peers, now):
            return "others have samples of its short batch"
        return "the batch does not fill" if now >= self._limit else ""

    # Whom to expect and to follow

    def expected(self, now: float) -> dict[PeerId, Position]:
        """Peers at this head, and those that took the last step and are about to get here.

        Without these a quick peer would begin with the few that were as quick, and the others would fall behind.
        """
        in_sync, late = self._batch.peers(now)
        found = {**late, **in_sync}
        if not self._quorum({self.me.peer, *found}):
            self._table.need(peer for peer, at in self._table.alive().items() if at.head == self._previous)
        return found

    def _quorum(self, peers: Set[PeerId]) -> bool:
        told = {peer: at.incarnation for peer, at in self._table.alive().items()}
        told[self.me.peer] = self._batch.mine.incarnation
        return self._chain.head.electorate.enough_peers(peers, told)

    def _rank(self, peer: PeerId, follower: bool) -> tuple[bool, bytes]:
        """Followers lead first, for they are not busy computing; then by turns."""
        return not follower, self._turn(peer)

    def _turn(self, peer: PeerId) -> bytes:
        return hashlib.sha256(f"{self._previous} {peer}".encode()).digest()

    def _leaders(self, expected: dict[PeerId, Position], anyone: bool) -> list[PeerId]:
        """Whom to ask, best first. :param anyone: also those that rank after this peer"""
        ranks = {peer: self._rank(peer, at.follower) for peer, at in expected.items() if not at.client}
        mine = self._rank(self.me.peer, self._batch.mine.follower)
        able = [peer for peer, rank in ranks.items() if anyone or rank < mine]
        return sorted(able, key=lambda peer: (self._in_vain[peer], ranks[peer]))[:MAX_LEADERS]

    # The search

    def _begin(self, left: float, now: float) -> _Search:
        awaited = self.expected(now).keys()
        open_until, ends = now + OPEN_SHARE * left, now + self._times.window
        self._search = _Search(awaited, now, open_until, ends, self._table.looks)
        return self._search

    def _seek(self, search: _Search, left: float, now: float) -> list[Effect]:
        effects = list[Effect]()
        search.open_until = min(search.open_until, now + OPEN_SHARE * left)
        if search.leader:
            if now < min(search.silent_at, search.patience):
                return []
            effects += self._give_up_leader(search, now)
        if now >= search.ends:
            return effects + self._end_window(search, left, now)
        expected = self.expected(now)
        if self._complete(search, expected.keys(), now):
            return effects + self._stand(search, now)
        hints = [peer for peer in reversed(search.hinted) if peer in expected and not expected[peer].client]
        if search.followers and now >= search.repeat_at:
            search.repeat_at = now + REPEAT
            effects += [Answer(peer, _wait(search, now)) for peer in search.followers]
        anyone = self.me.client or now >= search.began + PENALTY
        for leader in dict.fromkeys((*hints, *self._leaders(expected, anyone))):
            due = search.due.setdefault(leader, search.began + PENALTY * self._in_vain[leader])
            followed = leader in search.followers or (search.followers and self._in_vain[leader])
            if due <= now and not followed:
                search.ask(leader, now)
                return [*effects, Ask(leader)]
        return effects

    def _complete(self, search: _Search, expected: Set[PeerId], now: float) -> bool:
        missing = expected - search.followers.keys()
        if self._full_since is not None and now >= self._full_since + GRACE and self._batch.counting:
            missing &= self._batch.counting
        if self.me.client or now < search.open_until or missing or not self._has_looked(search):
            return False
        alone = self._table.lonely(now) and self._batch.full(frozenset(), now)
        return bool(search.followers or alone) and self._quorum(_members(self.me, search))

    def _has_looked(self, search: _Search) -> bool:
        """Whether the directory has been asked since a follower expected more.

        In the first step of a run in stages, whose samples count in no later step, it is also asked once after the
        search began. Two answers have come by then: the first one may have been asked for before.
        """
        guesses = not self._batch.counting and self._batch.said is not None
        return self._table.looked > search.more_expected_at and self._table.looks >= search.looks + 2 * guesses

    def _end_window(self, search: _Search, left: float, now: float) -> list[Effect]:
        """Stand with those that have come if they can take the step; else look anew, perhaps with other leaders."""
        members = _members(self.me, search)
        if not self.me.client and self._quorum(members) and self._batch.full(members, now):
            return self._stand(search, now)
        sent_away = self._end_search()
        self._begin(left, now)
        return sent_away

    def _give_up_leader(self, search: _Search, now: float) -> list[Effect]:
        leader, again = search.leader, MAX_ASK_AGAIN
        if now >= search.silent_at:
            self._table.doubt({leader}, now)
        if search.accepted:
            self._in_vain[leader] += 1
            again = self._times.window
            search.ends = max(search.ends, now + ANSWER_SECONDS)  # others may follow this peer now
        search.release(now + again)
        return [Leave(leader)]

    def _stand(self, search: _Search, now: float) -> list[Effect]:
        members = tuple(sorted((self.me, *search.followers.values()), key=lambda member: member.peer))
        attempt = Attempt(nonce=self._random.randbytes(16).hex(), previous=self._previous, members=members)
        verdict = Verdict(verdict="group", attempt=attempt)
        told: list[Effect] = [Answer(peer, verdict) for peer in search.followers]
        search.followers.clear()
        self._table.suspect(search.awaited - attempt.peers, now)
        return [*told, *self._take(attempt, search, self.me.peer, now)]

    def _take(self, attempt: Attempt, search: _Search, leader: PeerId, now: float) -> list[Effect]:
        """The group stands with this peer in it."""
        effects = self._end_search(leader)
        del self._in_vain[leader]
        if search.awaited <= attempt.peers:
            self._times.stood(now - search.began, 0.0 if self._full_since is None else now - self._full_since)
        self._table.doubt(search.awaited - attempt.peers, now)
        self.attempt, self._begun, self._stood = attempt, False, now
        self.awaited = frozenset(search.awaited)
        self._limit = now + self._times.window + 2 * self._times.lead
        return [*effects, Stand(attempt)]

    # What others say

    def _asked(self, peer: PeerId, join: Join, now: float) -> list[Effect]:
        search, attempt = self._search, self.attempt
        self._table.tell(peer, join.position, now)
        missed = attempt is not None and peer in attempt.peers and now < self._stood + SLACK
        if missed and join.position.head == self._previous:
            return [Answer(peer, Verdict(verdict="group", attempt=attempt))]
        effects = list[Effect]()
        if search is not None and search.leader == peer and not search.accepted:
            if self._turn(peer) < self._turn(self.me.peer):
                return [Answer(peer, Verdict(verdict="no"))]  # each has asked the other
            search.release(now + ASK_AGAIN)
            effects.append(Leave(peer))
        if search is None or not self._accepts(peer, join, search, now):
            followed = search.leader if search is not None and search.accepted else ""
            return [*effects, Answer(peer, Verdict(verdict="no", leader=followed))]
        search.followers[peer] = join.member(peer)
        if join.expects > len(self.expected(now)):
            search.more_expected_at = now
        return [*effects, Answer(peer, _wait(search, now))]

    def _accepts(self, peer: PeerId, join: Join, search: _Search, now: float) -> bool:
        return (
            not self.me.client
            and not search.accepted
            and peer != self.me.peer
            and not self._table.backed_off(peer, now)
            and join.position.head == self._previous
            and len(search.followers) < MAX_MEMBERS - 1
        )

    def _answered(self, leader: PeerId, verdict: Verdict, now: float) -> list[Effect]:
        search = self._search
        if search is None or search.leader != leader:
            return []
        match verdict.verdict:
            case "wait":
                search.silent_at = now + SILENT
                if not search.accepted:
                    search.accepted = True
                    longest = min(verdict.seconds, self._times.window) / 2.0 ** self._in_vain[leader]
                    search.patience = now + longest + SLACK
                    return _send_away(search, leader)
            case "no":
                self._refused(search, verdict.leader, now)
            case "group" if verdict.attempt is not None:
                attempt, here = verdict.attempt, {self.me.peer, leader}
                if attempt.previous == self._previous and here <= attempt.peers and self._quorum(attempt.peers):
                    return self._take(attempt, search, leader, now)
                self._in_vain[leader] += 1
                search.release(now + MAX_ASK_AGAIN)
        return []

    def _refused(self, search: _Search, hint: PeerId, now: float) -> None:
        leader, wait = search.leader, min(MAX_ASK_AGAIN, max(ASK_AGAIN, 4 * (now - search.asked)))
        if search.accepted:
            wait = ASK_AGAIN if hint else MAX_ASK_AGAIN
        search.release(now + wait * (1 + self._random.random() / 2))
        if hint not in (leader, *search.hinted) and len(search.hinted) < MAX_MEMBERS:
            search.hinted[hint], search.due[hint] = None, now

    def _lost(self, peer: PeerId, broken: bool, now: float) -> None:
        search = self._search
        if search is None:
            return
        if peer == search.leader:
            search.release(now + ASK_AGAIN)
        if search.followers.pop(peer, None) is None and peer not in search.due:
            return
        if broken:
            self._table.doubt({peer}, now)


def _members(me: Member, search: _Search) -> set[PeerId]:
    return {me.peer, *search.followers}


def _wait(search: _Search, now: float) -> Verdict:
    return Verdict(verdict="wait", seconds=max(0.0, search.ends - now))


def _send_away(search: _Search, leader: PeerId) -> list[Effect]:
    """The followers, to another leader if there is one."""
    told = list(search.followers)
    search.followers.clear()
    return [Answer(peer, Verdict(verdict="no", leader=leader if leader != peer else "")) for peer in told]
