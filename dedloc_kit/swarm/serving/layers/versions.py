"""Which versions of a model there are, and with which of them all layers are served.

A swarm that serves one model has one version. Of a run the organizer alone says which there are, in a signed record
that names each by its hash; whoever has what belongs to that hash may give it.
"""

import logging
import threading
from collections.abc import Collection, Mapping

from dedloc_kit.blocks.plans.plan import LayerRange, unserved
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.serving.config import MAX_VERSION, ModelVersion, ServingConfig
from dedloc_kit.serving.offer import Release, Serving
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network.kinds import RELEASE
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.serving.layers.choosing import servers_of
from dedloc_kit.swarm.serving.member import Member
from dedloc_kit.swarm.transfer.addressed import fetch_small
from dedloc_kit.swarm.transfer.store import Store

REMEMBERED = 8
"""Versions of before that sessions may still have."""
LOOK_SECONDS, DHT_SECONDS = 5.0, 10.0
"""Between two looks, and for each."""

_log = logging.getLogger(__name__)


class Versions(threading.Thread):
    """As one peer knows them; once it runs, it looks again and again.

    :param store: keeps what describes them, also for others
    :ivar known: the newest first
    """

    def __init__(self, swarm: SwarmConfig, me: Member, store: Store) -> None:
        super().__init__(name="versions", daemon=True)
        self.fixed = isinstance(swarm, ServingConfig)
        """There will be no other."""
        self.known: tuple[ModelVersion, ...] = (swarm,) if isinstance(swarm, ServingConfig) else ()
        self.store = store
        self._me = me
        self._directory = Directory(me.node, RELEASE, swarm.run_id, reject=me.offers.ignore)
        self._time = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self.fixed and not self._stopped.is_set():
            self.look()
            self._stopped.wait(LOOK_SECONDS)

    def stop(self) -> None:
        """Returns at once."""
        self._stopped.set()

    def look(self) -> None:
        """Hear what the organizer says now, and get what is new; call it outside the loop."""
        if self.fixed:
            return
        try:
            said = self._directory.look(peers=0, timeout=DHT_SECONDS).get(self._me.gate.organizer)
            if said is not None and said.time > self._time and self._learn(said):
                self._time = said.time
        except Exception as error:  # the directory may be slow or gone for a while; this must outlive that
            _log.info("which versions there are is not heard now: %r", error)

    def _learn(self, said: Release) -> bool:
        """Take over what was said, if all of it can be had now."""
        known = {version.digest: version for version in self.known}
        listed = dict[str, ModelVersion]()
        for digest in said.versions:
            version = known.get(digest) or self._fetched(digest)
            if version is None:
                return False
            listed[digest] = version
        self.known = tuple((listed | {digest: known[digest] for digest in known if digest not in listed}).values())
        self.known = self.known[:REMEMBERED]
        return True

    def _fetched(self, digest: str) -> ModelVersion | None:
        me, part = self._me, self.store.find(digest)
        if part is not None and self.store.holds(digest):
            content: bytes | None = part.read(0, part.size)
        else:
            content = me.loop.run(fetch_small(digest, MAX_VERSION, me.donors(), me.content))
        if content is None:
            return None
        try:
            version = ModelVersion.from_json(content)
        except ValueError as error:
            _log.warning("the organizer names a version that is none: %s", error)
            return None
        self.store.put(content)
        return version


def in_use(
    known: Collection[ModelVersion], layers: int, servers: Mapping[str, Serving], offers: Offers[Serving]
) -> ModelVersion | None:
    """The newest version with which all layers are served now: users begin with it."""
    everything = LayerRange(0, layers)
    return next(
        (
            version
            for version in known
            if not unserved(everything, servers_of(servers, offers, {version.manifest}, ready=True))
        ),
        None,
    )


def contents(version: ModelVersion, manifest: Manifest) -> set[str]:
    """The hashes of all that belongs to a version."""
    tensors = {tensor.sha256 for tensor in manifest.tensors.values()}
    return {version.digest, version.manifest, *version.files.values(), *tensors}
