"""Asks the others what follows on the chain, in the background, as `gathering.catchup` decides."""

import time
from collections.abc import Callable
from concurrent.futures import Future

from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.catchup import (
    AskRecords,
    CatchUp,
    CatchUpOptions,
    Event,
    Failed,
    Look,
    NoAnswer,
    NothingKept,
    Records,
    TakeRecord,
    TakeState,
    TooFarBehind,
)
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.transfer.donor import MOST_AVERAGES

FAR = 10
"""Steps: who claims so many more, and does not prove them, is told of."""

Due = TakeRecord | TakeState | TooFarBehind
Answer = tuple[ChainRecord, ...] | None


class Following:
    """Drives `CatchUp`. What is due is done by the caller, who then moves the branch or tells that it failed.

    :param client: this peer makes outgoing connections only
    :param now: a steady clock
    """

    def __init__(
        self, branch: StateBranch, tracker: Tracker, client: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._branch, self._tracker, self._now = branch, tracker, now
        table = tracker.peers.table
        self._machine = CatchUp(branch.peer, client, branch.end, table, CatchUpOptions(averages=MOST_AVERAGES))
        self._asked: tuple[str, Future[Answer]] | None = None
        self._due: Due | None = None
        self._due_after = ""
        self._told = frozenset[str]()

    def due(self) -> Due | None:
        """What to take next; None if nobody has proven anything better, or this peer does not take part yet."""
        if self._branch.head is None:
            return None
        self._handle(Look())
        while self._asked is not None and self._asked[1].done():
            (peer, answer), self._asked = self._asked, None
            self._handle(_result(peer, answer))
            self._tell_of(peer)
        return self._due

    def failed(self) -> None:
        """What was due could not be had."""
        if isinstance(self._due, TooFarBehind):
            self._due = None
        else:
            self._handle(Failed())

    def _handle(self, event: Event) -> None:
        with self._tracker.peers.lock:
            effects = self._machine.handle(event, self._now())
        link = self._branch.end.head.previous
        far = isinstance(self._due, TooFarBehind) and self._due_after == link
        if not (self._machine.behind or far):
            self._due = None
        for effect in effects:
            if isinstance(effect, AskRecords):
                self._asked = effect.peer, self._branch.ask(effect.peer)
            else:
                self._due, self._due_after = effect, link

    def _tell_of(self, peer: str) -> None:
        """If it has claimed to be far ahead and has not proven that; once."""
        claims = self._tracker.others()
        self._told &= claims.keys()
        if self._due is None and peer in claims and peer not in self._told:
            step = claims[peer].step
            if step >= self._branch.end.head.step + FAR:
                self._told |= {peer}
                self._tracker.reject(f"Progress: {peer} claims step {step}, which nothing proves")


def _result(peer: str, answer: Future[Answer]) -> Event:
    try:
        records = answer.result()
    except (OSError, RuntimeError):  # not reached, or the process that asks has died
        return NoAnswer(peer)
    return NothingKept(peer) if records is None else Records(peer, records)
