"""Who is not counted, for how long, and why.

Whoever the organizer has sent away, until it takes that back. Whoever failed, or failed as others say, until it tells
something again. Whoever fails again and again is backed off, for longer and longer, whatever it tells: no round waits
for it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import Progress

MAX_SUSPICION = 600.0
FORGIVEN = 2
"""So often a peer may fail in a row before it is backed off."""


class Suspicion:
    """What this peer holds against others.

    :param told: what everyone has told last, by peer id
    """

    def __init__(self, told: Callable[[], Mapping[str, Progress]]) -> None:
        self._told = told
        self._lock = threading.Lock()
        self._suspects: dict[str, float] = {}  # what they told up to then (DHT time) does not count
        self._offences: Counter[str] = Counter()
        self._backed_off: dict[str, float] = {}
        self._refuses: Callable[[str], bool] = lambda _: False

    def suspect(self, peers: Collection[str], since: float = 0.0) -> None:
        """Do not count these peers until they tell something again; whoever fails repeatedly, for longer and longer.

        :param since: when they failed (DHT time): what they told before may come only now
        """
        self.doubt(peers, since)
        with self._lock:
            for peer in peers:
                self._offences[peer] += 1
                if self._offences[peer] > FORGIVEN:
                    seconds = min(MAX_SUSPICION, 2.0 ** self._offences[peer])
                    self._backed_off[peer] = time.monotonic() + seconds

    def doubt(self, peers: Collection[str], since: float = 0.0) -> None:
        """Do not count these peers until they tell something again: others say that they have failed."""
        told = self._told()
        with self._lock:
            self._suspects |= {peer: max(since, told[peer].time) for peer in peers if peer in told}

    def trust(self, peers: Collection[str]) -> None:
        """A round with these peers went well."""
        with self._lock:
            for peer in peers:
                self._offences.pop(peer, None)

    def wait_for(self, peers: Collection[str]) -> None:
        """Nothing goes on without these: they are not backed off any more. Whoever stayed away longer than the others
        did would be missed by them, and backed off in its turn."""
        with self._lock:
            for peer in peers:
                self._backed_off.pop(peer, None)

    def refuse(self, notice: Notice) -> None:
        """Do not count those any more whom the organizer has sent away. Who was before and is not now may come back."""
        self._refuses = notice.refuses

    def refuses(self, peer: str) -> bool:
        """Has the organizer sent this peer away?"""
        return self._refuses(peer)

    def counts(self, peer: str, told: float) -> bool:
        """Does what a peer told then (DHT time) count? Who is backed off is another question."""
        with self._lock:
            return not self._refuses(peer) and self._suspects.get(peer, 0.0) < told

    def backed_off(self) -> frozenset[str]:
        """Peers whose rounds failed again and again."""
        now = time.monotonic()
        with self._lock:
            return frozenset(peer for peer, end in self._backed_off.items() if end > now)
