"""Who belongs to a round, who leads it, and when its members may take a step: a seam, the one group of all, and rows
where there are many."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.trust.weight import Weigh, claimed

MAX_LEADERS = 3
"""Peers that may lead a group: if everyone asked everyone, requests would grow with the square of the peers."""


class Grouping(ABC):
    """Decides alike on all peers that know the same; it lives in the training's process and in the averager's.

    :ivar weigh: how much of what the members of a row claim counts
    """

    weigh: Weigh = staticmethod(claimed)

    @abstractmethod
    def expected(self, in_sync: Mapping[str, Progress], late: Mapping[str, Progress]) -> dict[str, Progress]:
        """The others that have to come to the next round.

        :param in_sync: who holds the same state as this peer
        :param late: who contributed to the step that led to it, and is about to finish it
        """

    @abstractmethod
    def leaders(
        self, after: str, me: str, follower: bool, others: Mapping[str, Progress], client: bool
    ) -> tuple[str, ...]:
        """Whom to ask to lead this peer in the round after this one, best first; everyone who knows the same
        peers ranks them alike.

        :param follower: whether this peer is one
        :param client: whether it makes outgoing connections only, so that it cannot lead
        """

    @abstractmethod
    def enough_samples(self, samples: int) -> bool:
        """Whether what counts of what the members bring makes a global step."""


class OneGroup(Grouping):
    """Everybody who holds the same state averages in one group.

    :param least: samples of a step
    """

    def __init__(self, least: int, weigh: Weigh = claimed) -> None:
        self._least, self.weigh = least, weigh

    def expected(self, in_sync: Mapping[str, Progress], late: Mapping[str, Progress]) -> dict[str, Progress]:
        # Without the late ones a quick peer would begin with the few who were as quick, and the swarm would part.
        return {**late, **in_sync}

    def leaders(
        self, after: str, me: str, follower: bool, others: Mapping[str, Progress], client: bool
    ) -> tuple[str, ...]:
        # Followers first, for they are not busy computing, then by turns. Only peers that rank before this one are of
        # use, unless nobody can ask it because it is a client.
        def rank(peer: str, follows: bool) -> tuple[bool, bytes]:
            return not follows, hashlib.sha256(f"{after} {peer}".encode()).digest()

        ranked = sorted((rank(peer, p.follower), peer) for peer, p in others.items() if not p.client_mode)
        return tuple(peer for own, peer in ranked[:MAX_LEADERS] if client or own < rank(me, follower))

    def enough_samples(self, samples: int) -> bool:
        return samples >= self._least
