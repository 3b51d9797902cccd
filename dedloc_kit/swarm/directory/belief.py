"""How far the swarm is, as far as it is proven: nobody is followed because of what it alone says.

Two things prove that the swarm is at a global step. The organizer says so: in its progress while it is there, and in
its notice, which stays for a week; while it is away what this peer has heard of either last, if somebody holds that. Or
those say so who brought more than half of the samples of the last step that this peer took itself: whoever holds so
much of a step decides about the average anyhow. What peers brought that have been gone for a minute does not count, so
that a run outlives who leaves. A peer that has taken no step yet, or of whose companions nobody is left, takes the word
of three holders of one state if the organizer is silent; the organizer itself never does. And nobody is believed who
claims more steps than a swarm can have taken meanwhile.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from dedloc_kit.known_peers import Taken
from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import Progress

STEPS_PER_SECOND = 10.0
"""No swarm takes more: each step is gathered for, averaged and told."""
STEPS_AT_ONCE = 10
"""And so many more, for clocks and records that come late."""
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
        """What this peer knows by itself."""
        self._heard = START  # what the organizer last said in its progress; its notice is older, or of another part
        self._seen: dict[str, float] = {}
        self._looked, self._since = -math.inf, math.inf  # the last time, and since when again and again

    def took(self, step: int, time: float, samples: Mapping[str, int]) -> None:
        """This peer has taken a step itself, with these samples by peer; `time` by the clock of the directory. A step
        without any proves nothing: those of before go on counting."""
        if not any(samples.values()):
            self.reached(step, time)
            return
        self.taken = Taken(step=step, time=time, samples={peer: count for peer, count in samples.items() if count})
        self._seen = dict.fromkeys(self.taken.samples, time)

    def remember(self, taken: Taken) -> None:
        """What it took before it was started anew: it has lost its state, so only what the others brought counts."""
        self.took(taken.step, taken.time, {peer: n for peer, n in taken.samples.items() if peer != self._me})

    def reached(self, step: int, time: float) -> None:
        """This peer has got to a step that it did not take itself, and that was proven to it."""
        self.taken = Taken(step=step, time=time, samples=self.taken.samples)

    def hear(self, organizer: Progress) -> None:
        """The organizer says this of itself."""
        self._heard = _position(organizer)

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
        limit = self.limit(now)
        able = {peer: progress for peer, progress in others.items() if mine.step <= progress.step <= limit}
        proven = [mine, self._said_by_most(able, self.organizer in others, now)]
        said = self._said_by_organizer(others)
        if said is not None and mine.step <= said.step <= limit:
            proven.append(said)
        if self._me != self.organizer:  # which keeps its own state of a step, while the others come to it
            proven.reverse()
        return max(proven, key=lambda position: position.step)

    def limit(self, now: float) -> float:
        """The newest step that the swarm can have come to."""
        return self.taken.step + STEPS_AT_ONCE + STEPS_PER_SECOND * max(0.0, now - self.taken.time)

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
        """The samples that a peer brought to the last step that this one took itself."""
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
        held = set(map(_position, others.values()))
        return max(held.intersection(self._said_last()), key=lambda position: position.step, default=None)

    def _said_last(self) -> tuple[Position, Position]:
        """In its progress, as far as this peer has heard it, and in its notice."""
        notice = self._notice()
        return self._heard, START if notice.step is None else Position(notice.step, notice.round)

    def _said_by_most(self, able: Mapping[str, Progress], led: bool, now: float) -> Position:
        """The newest step that enough of these have come to, as most of its holders have it; the start if none is.

        :param led: the organizer is there
        """
        counting = self._counting(now)
        if not counting - {self._me}:
            if led or self._me == self.organizer:
                return START
            least = max(position.step for position in self._said_last())
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
