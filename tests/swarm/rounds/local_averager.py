"""An averager whose peers come to each group at once, or not at all; what it is asked to do then is noted."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from dedloc_kit.learning.train.flat import FlatLayout, SharedVector
from dedloc_kit.records.position import Position
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.gathering.messages import Answered, Asked, Attempt, Carried, Join, Member, Verdict


class LocalAverager:
    """Of one peer.

    :ivar hear: takes what other peers say
    :ivar here: the others at this peer's head
    :ivar comes: whether they come to a group; :ivar absent: who does not; :ivar strangers: who comes beside them
    :ivar group: the last one that stood
    """

    def __init__(self, me: str, layout: FlatLayout) -> None:
        self.vector = SharedVector(layout)
        self.hear: Callable[[Sequence[Carried]], None] = lambda _: None
        self.here: Callable[[], dict[str, Position]] = dict
        self.comes, self.absent, self.strangers = True, frozenset[str](), frozenset[str]()
        self.group: Any = None
        self.groups = list[Attempt]()
        self.asked, self.brought = list[str](), list[Contribution]()
        self.work: Sequence[bytes] = ()
        self._me, self._nonces = me, 0

    def come(self) -> None:
        """Those others that are there ask this peer to lead them."""
        for peer, at in self.here().items() if self.comes else ():
            if peer not in self.absent:
                self.hear([Asked(peer, Join(position=at))])
        for stranger in self.strangers if self.comes else ():
            at = next(iter(self.here().values()))
            self.hear([Asked(stranger, Join(position=at))])

    # As `Averager`

    def heard(self) -> Future[list[Carried]]:
        return Future()

    def ask(self, leader: str, join: Join) -> None:
        if self.comes and leader not in self.absent:
            self._nonces += 1
            peers = sorted({self._me, *self.here(), *self.strangers})
            members = tuple(Member(peer=peer) for peer in peers)
            attempt = Attempt(nonce=f"{self._nonces:032x}", previous=join.position.head, members=members)
            self.hear([Answered(leader, Verdict(verdict="group", attempt=attempt))])

    def answer(self, peer: str, verdict: Verdict) -> None:
        pass

    def leave(self, leader: str) -> None:
        pass

    def stand(self, attempt: Attempt) -> Any:
        self.groups.append(attempt)
        self.group = SimpleNamespace(done=False, called=False, members=attempt.peers)
        return self.group

    def begin(self, _group: object, mine: Contribution, *_: object, work: Sequence[bytes] = ()) -> None:
        self.brought.append(mine)
        self.asked.append("begin")
        self.work = work

    def call_off(self, group: Any) -> None:
        self.asked.append("call off")
        group.done, group.result = True, lambda: RoundResult("failed")

    def end(self, outcome: RoundResult) -> None:
        """What becomes of the round that has begun."""
        self.group.done, self.group.result = True, lambda: outcome

    def forget_feedback(self) -> None:
        pass
