"""What peers offer each other, as each of them says: kept in the directory, looked up, and everyone who can be reached
is kept connected."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from hivemind.utils import get_dht_time

from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.serving.offer import Serving
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.network.connections import Connections
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import Kind
from dedloc_kit.swarm.network.node import Node

LOOK_SECONDS, TELL_SECONDS = 2.0, 10.0
"""Between two looks at what others say, and two times that this peer says the same."""
LIFE_SECONDS = 30.0
"""For so long a record stays: who dies without a word is looked for no longer."""
DHT_SECONDS = 10.0

_log = logging.getLogger(__name__)

Said = TypeVar("Said", Serving, StageOffer, HostOffer)


class Offers(threading.Thread, Generic[Said]):
    """One peer's part of the directory of what is offered, in a thread of its own.

    :param known: addresses of the peers that this one joined through
    :param mine: what this peer says of itself now; none if it offers nothing
    :param twin: sees what stands there under this peer's key before a new word hides it; if it is this peer that has to
        give way, the other one's word stays
    """

    def __init__(
        self,
        kind: Kind[Said],
        node: Node,
        signer: Signer,
        known: Sequence[str],
        mine: Callable[[], Said | None],
        twin: Twin[Any] | None = None,
    ) -> None:
        super().__init__(name="offers", daemon=True)
        self._node, self._signer = node, signer
        self._mine: Callable[[], Said | None] = mine
        self._twin = twin
        self.rejections = Rejections()
        """Of records that are ignored, by reason."""
        self._directory: Directory[Said] = Directory(
            node, kind, node.gate.run_id, reject=self.ignore, check=_check, seconds=LIFE_SECONDS
        )
        self.connections = Connections(node, signer.peer, known, node.gate)
        self._seen: dict[str, Said] = {}
        self._first_seen: dict[tuple[str, object], float] = {}
        self._told: Said | None = None
        self._told_at = 0.0
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._looked = threading.Condition()
        self._begun = self._done = 0  # the number of the newest look that has begun, and of the newest that is done

    def others(self) -> dict[str, Said]:
        """Who offers something, this peer left out, by peer id; nobody whom the organizer has sent away."""
        notice = self._node.gate.notice
        return {peer: offer for peer, offer in self._seen.items() if not notice.refuses(peer)}

    @property
    def told(self) -> Said | None:
        """What this peer has said of itself last, as the others know it; none before it has said anything."""
        return self._told

    def ignore(self, reason: str) -> None:
        """Count a record that is ignored."""
        self.rejections.add(reason)

    def tell(self) -> None:
        """Say soon what has changed."""
        self._wake.set()

    def look(self, seconds: float) -> dict[str, Said]:
        """The same as `others`, after a new look; raises TimeoutError."""
        with self._looked:
            newer = self._begun + 1
            self._wake.set()
            if not self._looked.wait_for(lambda: self._done >= newer, seconds):
                raise TimeoutError("the swarm's directory does not answer")
        return self.others()

    def first_seen(self, peer: str, what: object) -> float:
        """When this peer was first seen to say this, by this machine's clock: its own may be off.

        :param what: hashable; what was said before is forgotten
        """
        return self._first_seen.setdefault((peer, what), time.monotonic())

    def run(self) -> None:
        while not self._stopped.is_set():
            with self._looked:
                self._wake.clear()
                self._begun += 1
            try:
                self._turn()
            except Exception as error:  # the directory may be slow or gone for a while; this must outlive that
                _log.info("the directory of offers does not answer: %r", error)
            self._wake.wait(LOOK_SECONDS)

    def stop(self, last: Said | None = None) -> None:
        """Say that this peer leaves, or this for the last time, and end."""
        self._stopped.set()
        self._wake.set()
        if self.is_alive():
            self.join(DHT_SECONDS)
        if self._told is not None and not (self._twin is not None and self._twin.second):
            with suppress(Exception):  # the others find out
                self._store(last).result(DHT_SECONDS)

    def _turn(self) -> None:
        if self._twin is not None:
            self._look()
        mine = self._mine()
        if mine is not None and (_changed(mine, self._told) or time.monotonic() > self._told_at + TELL_SECONDS):
            self._told, self._told_at = mine, time.monotonic()
            self._store(mine).result(DHT_SECONDS)
        if self._twin is None:
            self._look()
        with self._looked:
            self._done = self._begun
            self._looked.notify_all()

    def _look(self) -> None:
        found = self._directory.look(peers=len(self._seen), timeout=DHT_SECONDS)
        own = found.pop(self._signer.peer, None)
        if self._twin is not None:
            self._twin.see(own)
        self._seen = {peer: offer for peer, offer in found.items() if offer is not None}
        gone = [key for key in self._first_seen if key[0] not in self._seen]
        for key in gone:
            del self._first_seen[key]
        self.connections.keep(self._seen)

    def _store(self, offer: Said | None) -> Any:
        return self._directory.store(self._signer, offer, peers=len(self._seen))


_SLOWLY = {
    *("time", "free_tokens", "sessions", "served", "round_trips", "decoding", "prompts", "passes"),
    *("microbatches_per_second", "queue", "in_flight", "driven", "upload", "load"),
}
"""What nobody acts on at once."""


def _changed(new: Said, old: Said | None) -> bool:
    """In what others act on."""
    return old is None or new.model_dump(exclude=_SLOWLY) != old.model_dump(exclude=_SLOWLY)


def _check(offer: Serving | StageOffer | HostOffer) -> None:
    """Raises ValueError for a record that can be nobody's."""
    if offer.time > get_dht_time() + LIFE_SECONDS:
        raise ValueError(f"{type(offer).__name__}: from the future")
