"""The collector: keeps a ledger of its own from what the swarm says, for a mirror of the run's page.

It trains nothing, and the others do not notice it. What peers gave it knows from their signatures, as the coordinator
does. What only the coordinator knows, it is told: the evaluations, what its checks have found, and the history before
it came.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dedloc_kit.client import Measured, SentAway, fetch_measured, fetch_rounds, fetch_state
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.coordinator.publishing.copies import Copies
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Evaluated, Joined, Left, Peers, PeerSeen, State, StepDone
from dedloc_kit.known_peers import Memory, initial_peers
from dedloc_kit.ledger import Conviction, Ledger
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.orders import Announcement, Checks, Instructions
from dedloc_kit.swarm.observer import Finished, Observer, watching

POLL_SECONDS = 1.0
COLLECT_SECONDS = 15.0
"""Between two looks at everyone's latest contribution, and at most between two questions for evaluations."""

_log = logging.getLogger(__name__)


def collector(
    invitation: Invitation,
    peer: PeerConfig,
    repository: str | None,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
) -> None:
    """Follow the run until `stop` is set. Raises UserError if nobody of it answers or the folder cannot be written.

    :param repository: the run's on the Hub, if it is known
    """
    emit(State(text="looking for the swarm"))
    mine = _Collector(invitation, peer, repository, emit)
    try:
        if mine.step == 0:
            mine.take_copy()
        try:
            mine.follow(stop)
        except UserError:
            mine.take_copy()  # of the run all that can be had
            raise
    finally:
        mine.close()


class _Collector:
    def __init__(
        self, invitation: Invitation, peer: PeerConfig, repository: str | None, emit: Callable[[AnyEvent], None]
    ) -> None:
        self._run, self._invitation, self._peer, self._emit = invitation.run_config(), invitation, peer, emit
        self._said = Peers(peers=())
        self._checks: Checks | None = None
        self._copies = Copies(invitation.url, repository, peer.folder)
        self._open()

    def _open(self) -> None:
        self._ledger = Ledger(self._peer.folder / "ledger.sqlite", answers=self._run.answers_of_a_sample)
        self._rounds = {step.step: step.round for step in self._ledger.steps()}
        self.step = self._ledger.last_step()
        """The newest that is known; 0 if none is."""
        self._evaluated = max((point.step for point in self._ledger.evaluations()), default=-1)

    def take_copy(self) -> None:
        """Begin anew with the coordinator's own ledger, if it can be had and reaches further than ours."""
        before = self.step
        self._ledger.close()
        try:
            source = self._copies.restore_newer(beyond=before)
        finally:
            self._open()
        if source is not None:
            copied = "the history until global step %d is a copy of %s; nothing in it was checked here"
            _log.warning(copied, self.step, source)

    def follow(self, stop: threading.Event) -> None:
        """Record what the swarm does; raises UserError if nobody of it answers."""
        addresses = initial_peers(self._invitation, self._peer.folder)
        secret = os.environ.pop(CODE, "")  # before any process is started that would inherit it
        with watching(self._run, self._peer, addresses, self._invitation.organizer, secret) as swarm:
            memory = Memory(self._peer.folder, self._run.run_id, swarm.peer, 0)
            self._emit(
                Joined(
                    run_id=self._run.run_id,
                    peer=swarm.peer,
                    session="",
                    addresses=(),
                    step=self.step,
                    device="no device",
                    parameters=self._invitation.parameters or 0,
                )
            )
            collect_due = 0.0
            while not stop.wait(POLL_SECONDS):
                swarm.check()
                peers = swarm.peers()
                with suppress(OSError):  # a full disk
                    memory.update({peer: progress.addresses for peer, progress in peers.items() if progress.addresses})
                here = tuple(PeerSeen.of(*seen) for seen in peers.items())
                self._emit(self._as_seen(here, swarm.instructions))
                self._ledger.record_presence(here)
                self._record(swarm.finished(self.step, self._rounds))
                if time.monotonic() >= collect_due:
                    self._collect(swarm)
                    self._ask_coordinator()
                    collect_due = time.monotonic() + COLLECT_SECONDS
            self._collect(swarm)
            self._emit(Left(step=self.step, session_samples=0))

    def _as_seen(self, here: tuple[PeerSeen, ...], said: Instructions | None) -> Peers:
        """Who is here, with what the organizer wants; while the coordinator is away, that is what it said last."""
        if said is not None:
            before = self._said.announcement
            if said.announcement != (before.text if before else ""):
                before = Announcement(text=said.announcement, time=time.time()) if said.announcement else None
            self._said = Peers(
                peers=(), paused=said.paused, last_step=said.last_step, decay=said.decay, announcement=before
            )
        return self._said.model_copy(update={"peers": here, "checks": self._checks})

    def _record(self, finished: list[Finished]) -> None:
        if finished and finished[0][0].step > self.step + 1:
            self.take_copy()
            finished = [(step, contributions) for step, contributions in finished if step.step > self.step]
        for step, contributions in finished:
            if step.step > self.step + 1:
                gap = "nobody tells of the global steps %d to %d: they are missing here"
                _log.warning(gap, self.step + 1, step.step - 1)
            self._ledger.record_step(step, contributions)
            for forgotten in range(step.step + 1, self.step + 1):
                self._rounds.pop(forgotten, None)
            self._rounds[step.step] = step.round
            self.step = step.step
            self._emit(StepDone(step=step, contributions={peer: c.samples for peer, c in contributions.items()}))

    def _collect(self, swarm: Observer) -> None:
        """Take contributions to steps that were missed from the DHT."""
        try:
            self._ledger.fill_gaps(swarm.contributions())
        except TimeoutError:
            _log.warning("the swarm's directory does not answer; trying again")

    def _ask_coordinator(self) -> None:
        """Only the coordinator measures, and finds who cheats; while it is down nothing is new."""
        url = self._invitation.url
        if url is None:
            return
        away: tuple[SentAway, ...] = ()
        try:
            measured = fetch_measured(url, self._evaluated)
            if self._run.trust.checks == "on":
                self._checks, away = fetch_state(url).audits, fetch_rounds(url, self.step).sent_away
        except UserError:
            return
        for point in measured:
            self._take_measured(point)
        self._ledger.take_convictions(Conviction(**one.model_dump()) for one in away)

    def _take_measured(self, point: Measured) -> None:
        if point.step <= self._evaluated:
            return
        self._ledger.record_evaluation(point.step, point.evaluation, point.time)
        self._evaluated = point.step
        self._emit(Evaluated(step=point.step, loss=point.evaluation.loss, metrics=point.evaluation.metrics))

    def close(self) -> None:
        self._ledger.close()
