"""Drives the state machine that gathers groups: peers are answered at once, also while this one computes."""

import threading
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from typing import Protocol

from dedloc_kit.swarm.averaging.averager import Averager, PendingGroup
from dedloc_kit.swarm.directory.shared_table import SharedTable
from dedloc_kit.swarm.gathering.gathering import Gathering
from dedloc_kit.swarm.gathering.messages import (
    Answer,
    Ask,
    Carried,
    Disband,
    Effect,
    Event,
    Join,
    Leave,
    Over,
    Stand,
    Tick,
)
from dedloc_kit.swarm.rounds.batch import Batch

SHORTEST, LONGEST = 0.005, 1.0
"""Seconds until the machine looks at what has changed in the table or on the chain, though nobody has said anything."""


class Gatherer:
    """Of one peer. The machine is used with the lock of the tracker's table.

    :ivar group: the one that stands; its round may have begun
    """

    def __init__(
        self,
        machine: Gathering,
        batch: Batch,
        averager: Averager,
        peers: SharedTable,
        bandwidth: Callable[[], float | None],
    ) -> None:
        """:param bandwidth: of this peer's line, if it is known"""
        self.machine, self._batch, self._averager = machine, batch, averager
        self._peers, self._bandwidth = peers, bandwidth
        self.group: PendingGroup | None = None

    @property
    def under_way(self) -> bool:
        """Whether a group is looked for, stands or averages."""
        return self.machine.searching or self.group is not None

    def over(self, failed: Set[str], *, commit: bool) -> None:
        """The round has ended. :param failed: members that this peer has seen fail"""
        with self._peers.lock:
            self.group = None
            self.handle(Over(frozenset(failed), commit))

    def look(self, *, active: bool) -> None:
        """See what is due. :param active: whether this peer may look for a group"""
        with self._peers.lock:
            self.machine.allow(active)
            self.handle(Tick())

    def handle(self, *events: Event) -> None:
        """Something has happened."""
        with self._peers.lock:
            self.machine.introduce(self._bandwidth())
            for event in events:
                self._batch.look()
                for effect in self.machine.handle(event, self._peers.now()):
                    self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Ask(leader):
                expects = len(self.machine.expected(self._peers.now()))
                join = Join(position=self._batch.filling.mine, bandwidth=self.machine.me.bandwidth, expects=expects)
                self._averager.ask(leader, join)
            case Answer(peer, verdict):
                self._averager.answer(peer, verdict)
            case Leave(leader):
                self._averager.leave(leader)
            case Stand(attempt):
                self.group = self._averager.stand(attempt)
            case Disband():
                if self.group is not None:
                    self._averager.call_off(self.group)
                self.group = None


class Conversation(threading.Thread):
    """Hands what other peers say to the rounds at once, and looks when it is time to."""

    def __init__(self, rounds: "Rounds", averager: Averager) -> None:
        super().__init__(name="gathering", daemon=True)
        self._rounds, self._averager = rounds, averager
        self._news = deque[Carried]()
        self._woken, self._ended = threading.Event(), threading.Event()

    def run(self) -> None:
        self._listen()
        while not self._ended.is_set():
            self._woken.wait(min(LONGEST, max(SHORTEST, self._rounds.seconds_until_due())))
            self._woken.clear()
            events = list[Carried]()
            while self._news:
                events.append(self._news.popleft())
            self._rounds.hear(events)

    def end(self) -> None:
        """Nothing is answered any more."""
        self._ended.set()
        self._woken.set()

    def _listen(self) -> None:
        self._averager.heard().add_done_callback(self._heard)

    def _heard(self, heard: "Future[list[Carried]]") -> None:
        if heard.exception() is None:  # else the process that exchanges messages is gone
            self._news.extend(heard.result())
            self._woken.set()
            self._listen()


class Rounds(Protocol):
    """What gathers: see `rounds.Rounds`."""

    def hear(self, events: Sequence[Carried]) -> None: ...

    def seconds_until_due(self) -> float: ...
