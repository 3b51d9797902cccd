"""Who is in the swarm, which global step each peer holds, and how full the global batch is.

hivemind's ProgressTracker also starts a round at a predicted time (so batches are under-filled), ignores clients
when it looks for the newest step, and never reports followers; all three would break a run of one coordinator
and volunteers behind firewalls. Ours counts real samples of every peer.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from hivemind.utils import get_dht_time

from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.position import check_position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.shared_table import DHT_TIMEOUT, FRESH_SECONDS, SharedTable
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.gathering.peers import SILENT
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.connections import Connections, avoid
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.network.node import Node

HEARTBEAT = 4.0
"""Seconds between two reports of a peer that has nothing new to say."""
TIME_TO_LIVE = SILENT
"""A peer that was silent for so long is gone."""
SECONDS_PER_PEER, MAX_SECONDS = 0.01, 5.0
"""Added to the time between two looks at the DHT for each peer there is: all their records are fetched. With the usual
time it must stay below what a record lives, or peers would seem to be gone."""
STORE_SECONDS = 1.0
"""For so long a report is waited for: those who answer have it long before those who do not are given up."""
ECHOES = 5
"""So often in a row a peer lets its twin know; while it waits, ever more rarely after that."""

_log = logging.getLogger(__name__)


class Tracker(threading.Thread):
    """Publishes this peer's progress and follows everyone else's, in the background.

    :param known: addresses of peers that this one joined through; they are looked for when they are not seen
    :param incidents: told about records that are ignored
    :param belief: judges which step they prove
    :param session: names what this peer says of itself
    :param now: a steady clock
    :ivar peers: what is known of the others
    """

    def __init__(
        self,
        dht: Node,
        signer: Signer,
        run: RunConfig,
        known: Sequence[str],
        incidents: Incidents,
        belief: Belief,
        session: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="tracker", daemon=True)
        self._dht, self._signer, self._run = dht, signer, run
        self.incidents, self.reject, self.belief = incidents, incidents.reject, belief
        self.connections = Connections(dht, signer.peer, known, dht.gate)
        self._directory = Directory(
            dht, PROGRESS, run.run_id, reject=incidents.reject, check=self._check, seconds=TIME_TO_LIVE
        )
        self.twin: Twin[Progress] = Twin(session, float(get_dht_time()))
        self.peers = SharedTable(signer.peer, belief.organizer, self._directory, self.twin, now)
        self.looked = math.nan
        """When the directory last answered (DHT time); NaN before."""
        self._lock = threading.Lock()
        self._looks = threading.Thread(target=self._look_on, name="looks", daemon=True)
        self._wake, self._look_now = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        self._mine: Progress | None = None
        self._dirty = self._news = self._report_now = False
        self._period = 0.0

    def report(self, mine: Progress, period: float) -> None:
        """Tell the swarm about this peer; a new global step is told at once, samples within the next moments.

        :param period: seconds between two looks at the DHT
        """
        with self._lock:
            before, self._mine = self._mine, mine
            news = before is None or (mine.step, mine.round) != (before.step, before.round) or self._report_now
            self._report_now, self._news = False, self._news or news
            self._dirty = self._dirty or news or before is None or mine != before.model_copy(update={"time": mine.time})
            self._period = period + min(MAX_SECONDS, SECONDS_PER_PEER * len(self.peers.alive()))
        if news:
            self._wake.set()

    def look_every(self, period: float) -> None:
        """Look at the DHT so often (seconds) without reporting anything: for who takes no part."""
        self._period = period

    def report_now(self) -> None:
        """Tell the next report at once, and look what the others say: after a round that came to nothing nobody knows
        how many samples there are, and some may think that this peer is gone."""
        self._report_now = True

    def others(self) -> dict[str, Progress]:
        """Everyone else who is alive and neither suspected nor backed off; the organizer whenever it speaks."""
        return self.peers.others()

    def anyone(self) -> bool:
        """Is anybody else alive, as far as known?"""
        return bool(self.peers.alive())

    def at(self, step: int, round_id: str) -> dict[str, Progress]:
        """The others who hold the state that this round led to."""
        return {p: v for p, v in self.others().items() if (v.step, v.round) == (step, round_id)}

    def newest(self, mine: Position) -> Position:
        """The newest state that the swarm has provably come to; this peer's own (`mine`) if there is no newer one."""
        return self.belief.newest(mine, self.others(), float(get_dht_time()))

    def proves(self, peers: Collection[str]) -> bool:
        """Do these peers, all of one mind, prove what they say?"""
        return self.belief.proves(peers, float(get_dht_time()))

    @property
    def mine(self) -> Progress | None:
        """What this peer last reported; none before the first time."""
        return self._mine

    def position(self) -> tuple[int, str] | None:
        """The global step that this peer holds, as it last reported, and the round that led to it."""
        return None if self._mine is None else (self._mine.step, self._mine.round)

    def has_node(self) -> bool:
        """Does the directory's process still run?"""
        return bool(self._dht.is_alive())

    def avoid(self, peers: Collection[str]) -> None:
        """They have just fallen silent: for the next seconds the directory does not ask them, nor wait for them."""
        avoid(self._dht, peers)

    def refresh(self) -> None:
        """Fetch everyone's progress now."""
        if self.peers.look(self.connections.cut_off):
            for reason, count in self._dht.refused(DHT_TIMEOUT).items():
                self.reject(reason, count)
        self.looked = float(get_dht_time())
        self.belief.see(self.peers.alive().keys(), self.looked)

    def _check(self, progress: Progress) -> None:
        if progress.time > get_dht_time() + TIME_TO_LIVE:
            raise ValueError("Progress: from the future")
        check_position(progress.position, self._run.run_id, MAX_BATCHES * self._run.global_batch)

    def run(self) -> None:
        self._looks.start()
        told = -math.inf
        while not self._stopped.is_set():
            with self._lock:
                mine, news, due = self._mine, self._news, self._dirty or time.monotonic() >= told + HEARTBEAT
                self._dirty = self._news = False
            if due:
                if mine is not None:
                    self._try(self._publish, mine)
                told = time.monotonic()
            if news:
                self._look_now.set()  # what is news here is so for the others too
            self._wake.wait(max(0.0, told + HEARTBEAT - time.monotonic()))
            self._wake.clear()

    def _look_on(self) -> None:
        """In a thread of its own: a look may take longer than a record lives, and others would take this peer for gone
        if it told nothing meanwhile."""
        while not self._stopped.is_set():
            pause = self._period if self._try(self._look) else HEARTBEAT
            self._wake.set()  # what has changed is told now: before a look it would hide what a twin has told
            self._look_now.wait(pause)
            self._look_now.clear()

    def _look(self) -> None:
        self.refresh()
        self.connections.keep(self.peers.alive())

    def _try(self, what: Callable[..., object], *given: object) -> bool:
        """Did it succeed? The directory may be slow or gone for a while, and this peer outlives that."""
        try:
            what(*given)
        except Exception as error:
            _log.warning("the swarm's directory does not answer (%.100r)", error)
            return False
        return True

    def await_twin(self, stop: threading.Event, waiting: Callable[[], None]) -> None:
        """Before this peer tells anything of itself: while its key is at work elsewhere, wait until it no longer is.

        What a process left that was killed is no twin; until that is clear it takes some seconds.

        :param waiting: called once if there is a twin
        """
        doubtful, looks = time.monotonic() + TIME_TO_LIVE, 0
        while not stop.is_set():
            with suppress(TimeoutError):
                self.refresh()
            said = self.twin.there(TIME_TO_LIVE)
            if said is None or (not self.twin.certain and time.monotonic() > doubtful):
                self.twin.forget()
                return
            if self.twin.certain:
                looks += 1
                if looks == 1:
                    waiting()
                if looks <= ECHOES or looks.bit_count() == 1:  # what the twin says may have hidden every word so far
                    self._tell_twin()
            stop.wait(FRESH_SECONDS)

    def give_way(self, stop: threading.Event) -> None:
        """Let the twin know of this peer, which then ends; takes some seconds."""
        for _ in range(ECHOES):
            self._tell_twin()
            if stop.wait(FRESH_SECONDS):
                break

    def _tell_twin(self) -> None:
        with suppress(TimeoutError):
            self._store(self.twin.echo()).result(STORE_SECONDS)

    def leave(self) -> None:
        """Stop, and take this peer off the list so that nobody waits for it, unless its twin goes on."""
        self._stopped.set()
        self._wake.set()
        self._look_now.set()
        if self.is_alive():
            self.join(DHT_TIMEOUT)
        if self._mine is not None and not self.twin.second:
            self._try(lambda: self._store(None).result(DHT_TIMEOUT))  # else others find out by our silence
        if self._looks.is_alive():
            self._looks.join(DHT_TIMEOUT)

    def _publish(self, mine: Progress) -> None:
        with suppress(TimeoutError):
            self._store(mine.model_copy(update={"time": get_dht_time()})).result(STORE_SECONDS)

    def _store(self, mine: Progress | None) -> Any:
        return self._directory.store(self._signer, mine, peers=len(self.peers.alive()))
