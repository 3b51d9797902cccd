"""Whose word counts where the chain proves nothing: for a newcomer, for who looks on, and about parameters.

A peer that holds a state has a chain, and that proves where the swarm is (`gathering.catchup`). A newcomer has none. It
believes the organizer: what that says of its progress, and while it is away its notice, which stays for a week, if
somebody holds that state. Or those who brought more than half of the samples of the last step that it knows of, from
before it was started anew: whoever holds so much of a step decides about the average anyhow. What peers brought that
have been gone for a minute does not count, so that a run outlives who leaves. Who knows no step, or of whose voters
nobody is left, takes the word of three holders of one state if the organizer is silent; the organizer never does.

The same peers prove which parameters belong to a step that the chain has proven: different processors may differ.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from dedloc_kit.known_peers import Taken
from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import Progress

GONE_SECONDS = 60.0
"""Who was not seen for so long is gone."""
BLIND_SECONDS = 15.0
"""Whoever has not looked for so long, on a machine that slept, cannot tell who is gone."""
HOLDERS = 3
"""For who knows nobody yet: the one that hands out the state, and two others."""


class Belief:
    """Judges what others say of their step.

    :param me: this peer's id
    :param organizer: the coordinator's, as the invitation says
    :param notice: gives its newest notice
    """

    def __init__(self, me: str, organizer: str, notice: Callable[[], Notice]) -> None:
        self._me, self.organizer, self._notice = me, organizer, notice
        self.taken = Taken()
        """The last step that this peer knows to be proven."""
        self._seen: dict[str, float] = {}
        self._looked, self._since = -math.inf, math.inf  # the last time, and since when again and again

    def took(self, step: int, time: float, samples: Mapping[str, int]) -> None:
        """A step is proven, with these votes or samples by peer; `time` by the clock of the directory. A step without
        any proves nothing: those of before go on counting."""
        counted = {peer: count for peer, count in samples.items() if count}
        self.taken = Taken(step=step, time=time, samples=counted or self.taken.samples)
        if counted:
            self._seen = dict.fromkeys(counted, time)

    def remember(self, taken: Taken) -> None:
        """What this peer knew before it was started anew: it has lost its state, so only what the others brought
        counts."""
        self.took(taken.step, taken.time, {peer: n for peer, n in taken.samples.items() if peer != self._me})

    def see(self, here: Collection[str], now: float) -> None:
        """These peers are there now, whether they are under suspicion or not."""
        if now > self._looked + BLIND_SECONDS:
            self._since = now
        self._looked = now
        self._seen = {p: now if p in here else self._seen.get(p, -math.inf) for p in self.taken.samples}

    def newest(self, mine: Position, others: Mapping[str, Progress], now: float) -> Position:
        """The newest state that the swarm has come to; this peer's own if nothing newer is proven.

        Of several of one step the organizer's comes first, then that of who brought the most samples.

        :param mine: where this peer is; `START` of one that is still to load the state
        :param others: everyone else's progress, by peer id
        :param now: by the clock of the directory
        """
        able = {peer: progress for peer, progress in others.items() if mine.step <= progress.step}
        proven = [mine, self._said_by_most(able, self.organizer in others, now)]
        said = self._said_by_organizer(others)
        if said is not None and mine.step <= said.step:
            proven.append(said)
        if self._me != self.organizer:  # which keeps its own state of a step, while the others come to it
            proven.reverse()
        return max(proven, key=lambda position: position.step)

    def proves(self, peers: Collection[str], now: float) -> bool:
        """Do these peers, all of one mind, prove what they say?"""
        if self.organizer in peers:
            return True
        counting = self._counting(now)
        if self._me != self.organizer and not counting - {self._me}:
            return len(peers) >= HOLDERS
        return 2 * sum(map(self.weight, peers)) > sum(map(self.weight, counting))

    def hears(self, others: Collection[str], now: float) -> bool:
        """Has anybody of who brought the last step spoken, or are they gone? Before that a peer that was started anew
        cannot tell how far the others are."""
        counting = self._counting(now) - {self._me}
        return not counting or not counting.isdisjoint(others)

    def weight(self, peer: str) -> int:
        """What a peer's word weighs: its share of the last step that is known."""
        return self.taken.samples.get(peer, 0)

    def _counting(self, now: float) -> set[str]:
        """Those of who brought the last step that are not gone."""
        looking = now - self._since
        return {
            peer
            for peer in self.taken.samples
            if peer == self._me or now - self._seen.get(peer, -math.inf) < GONE_SECONDS or not looking >= GONE_SECONDS
        }

    def _said_by_organizer(self, others: Mapping[str, Progress]) -> Position | None:
        """What it says now; while it is away, what it said last, if somebody still holds that."""
        if self.organizer in others:
            return _position(others[self.organizer])
        said = self._said_in_notice()
        return said if any(_position(progress) == said for progress in others.values()) else None

    def _said_in_notice(self) -> Position:
        notice = self._notice()
        return START if notice.step is None else Position(notice.step, notice.round)

    def _said_by_most(self, able: Mapping[str, Progress], led: bool, now: float) -> Position:
        """The newest step that enough of these have come to, as most of its holders have it; the start if none is.

        :param led: the organizer is there
        """
        counting = self._counting(now)
        if not counting - {self._me}:
            if led or self._me == self.organizer:
                return START
            least = self._said_in_notice().step
            holders = Counter(_position(progress) for progress in able.values() if progress.holds_state)
            enough = [p for p, count in holders.items() if count >= HOLDERS and p.step >= least]
            return max(enough, key=lambda position: (holders[position], position), default=START)
        members = {peer: _position(able[peer]) for peer in counting & able.keys()}
        for step in sorted({position.step for position in members.values()}, reverse=True):
            if self.proves([peer for peer, position in members.items() if position.step >= step], now):
                weights: Counter[Position] = Counter()
                for peer, position in members.items():
                    weights[position] += self.weight(peer) if position.step == step else 0
                return max(weights, key=lambda position: (weights[position], position))
        return START


def _position(progress: Progress) -> Position:
    return Position(progress.step, progress.round)
