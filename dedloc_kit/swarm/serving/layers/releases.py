"""What the organizer of a run says of the versions of its model, and how far those who serve it have come."""

from collections.abc import Callable, Sequence

from hivemind.utils import get_dht_time

from dedloc_kit.serving.offer import Release
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import RELEASE, SERVING
from dedloc_kit.swarm.network.node import Node

DHT_SECONDS = 10.0


class Releases:
    """The organizer's. What it calls may raise TimeoutError."""

    def __init__(self, node: Node, signer: Signer, run_id: str, reject: Callable[[str], None]) -> None:
        self._signer, self._run_id = signer, run_id
        self._releases = Directory(node, RELEASE, run_id, reject=reject)
        self._servers = Directory(node, SERVING, run_id, reject=reject)

    def say(self, versions: Sequence[str]) -> None:
        """Which versions there are, the newest first, by their digests."""
        release = Release(run_id=self._run_id, versions=tuple(versions), time=float(get_dht_time()))
        self._releases.store(self._signer, release, peers=0).result(DHT_SECONDS)

    def behind(self, manifest: str) -> bool:
        """Does a server still serve other weights than these alone?"""
        servers = self._servers.look(peers=0, timeout=DHT_SECONDS).values()
        return any(said is not None and said.version != manifest for said in servers)
