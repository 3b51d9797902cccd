"""Two peers that a test brings together."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dedloc_kit.swarm.p2p import seams


@dataclass(frozen=True)
class Peer:
    clock: seams.Clock
    network: seams.Network
    records: seams.Records

    @property
    def id(self) -> str:
        return self.network.peer


Meeting = Callable[[Peer, Peer], Coroutine[Any, Any, None]]
