"""Who is in the swarm, which global step each peer holds, and how full the global batch is.

hivemind's ProgressTracker also starts a round at a predicted time (so batches are under-filled), ignores clients
when it looks for the newest step, and never reports followers; all three would break a run of one coordinator
and volunteers behind firewalls. Ours counts real samples of every peer.
"""

import math
import threading
import time
from collections.abc import Callable

from hivemind import DHT
from hivemind.utils import get_dht_time

from dedloc_kit.records import Progress
from dedloc_kit.swarm.node import dial
from dedloc_kit.swarm.signing import Signer, author

HEARTBEAT = 3.0
"""Seconds between two reports of a peer that has nothing new to say."""
TIME_TO_LIVE = 15.0
"""A peer that was silent for so long is gone."""
MIN_PERIOD = 0.3
"""Seconds between two looks at the DHT; grows with the number of peers."""
SECONDS_PER_PEER = 0.01
DHT_TIMEOUT = 10.0
REDIAL = 30.0
"""Seconds between two looks whether a peer is still connected."""


class Tracker(threading.Thread):
    """Publishes this peer's progress and follows everyone else's, in the background."""

    def __init__(self, dht: DHT, signer: Signer, run_id: str, warn: Callable[[str], None]) -> None:
        super().__init__(name="tracker", daemon=True)
        self._dht, self._signer, self._run_id, self._warn = dht, signer, run_id, warn
        self._key = f"{run_id}_progress"
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._mine: Progress | None = None
        self._dirty = False
        self._others: dict[str, Progress] = {}
        self._suspects: dict[str, float] = {}
        self._rejected: set[str] = set()
        self._dialled: dict[str, float] = {}

    def report(self, mine: Progress) -> None:
        """Tell the swarm about this peer; a new global step is told at once, samples within the next moment."""
        with self._lock:
            news = self._mine is None or (mine.step, mine.round) != (self._mine.step, self._mine.round)
            self._mine, self._dirty = mine, True
        if news:
            self._wake.set()

    def others(self) -> dict[str, Progress]:
        """Everyone else who is alive and not under suspicion, by peer id."""
        with self._lock:
            return {
                peer: progress
                for peer, progress in self._others.items()
                if _alive(progress) and self._suspects.get(peer, 0.0) < progress.time
            }

    def anyone(self) -> bool:
        """Is anybody else alive, as far as known?"""
        with self._lock:
            return any(_alive(progress) for progress in self._others.values())

    def suspect(self, peers: set[str]) -> None:
        """Do not count these peers until they speak again: they said they were there but did not come."""
        with self._lock:
            for peer in peers & self._others.keys():
                self._suspects[peer] = self._others[peer].time

    def look(self) -> None:
        """Fetch everyone's progress now."""
        with self._looking:
            found = self._dht.get(self._key, latest=True, return_future=True).result(DHT_TIMEOUT)
        entries = found.value if found is not None and isinstance(found.value, dict) else {}
        others = {}
        for subkey, entry in entries.items():
            if entry.value is None:  # left
                continue
            try:
                peer, progress = author(subkey), Progress.parse(entry.value)
                if progress.run_id != self._run_id or progress.time > get_dht_time() + TIME_TO_LIVE:
                    raise ValueError("Progress: of another run or from the future")
            except (ValueError, TypeError) as error:
                self._reject(str(error))
                continue
            if peer != self._signer.peer:
                others[peer] = progress
        with self._lock:
            self._others = others

    def run(self) -> None:
        published = 0.0
        while not self._stopped.is_set():
            try:
                with self._lock:
                    mine, due = self._mine, self._dirty or time.monotonic() - published > HEARTBEAT
                    self._dirty = False
                if mine is not None and due:
                    self._publish(mine)
                    published = time.monotonic()
                self.look()
                self._dial_others()
                pause = max(MIN_PERIOD, SECONDS_PER_PEER * len(self._others))
            except Exception as error:  # the DHT may be slow or gone for a while; the loop must outlive that
                self._warn(f"the swarm's directory does not answer ({error!r:.100}); trying again")
                pause = HEARTBEAT
            self._wake.wait(pause)
            self._wake.clear()

    def leave(self) -> None:
        """Stop, and take this peer off the list so that nobody waits for it."""
        self._stopped.set()
        self._wake.set()
        if self.is_alive():
            self.join(DHT_TIMEOUT)
        if self._mine is not None:
            self._store(None)

    def _dial_others(self) -> None:
        """Keep a connection to everyone who can be reached: they may all be in our next group."""
        now = time.monotonic()
        for peer, progress in self.others().items():
            if progress.addresses and now - self._dialled.get(peer, -math.inf) > REDIAL:
                self._dialled[peer] = now
                dial(self._dht, peer, progress.addresses)

    def _publish(self, mine: Progress) -> None:
        self._store(mine.model_copy(update={"time": get_dht_time()}).model_dump())

    def _store(self, value: object) -> None:
        self._dht.store(
            self._key,
            subkey=self._signer.subkey,
            value=value,
            expiration_time=get_dht_time() + TIME_TO_LIVE,
            return_future=True,
        ).result(DHT_TIMEOUT)

    def _reject(self, reason: str) -> None:
        if reason not in self._rejected and len(self._rejected) < 20:
            self._rejected.add(reason)
            self._warn(f"a progress record was ignored: {reason}")


def _alive(progress: Progress) -> bool:
    return progress.time + TIME_TO_LIVE > float(get_dht_time())
