"""Peers that give and fetch states and averages, each a process."""

import itertools
from pathlib import Path
from typing import Any

from tests.swarm.harness import Puppet

SIZE = 24_000_000
"""Bytes of the peers' state, a little less."""
ROUNDS = (f"{number:032x}" for number in itertools.count(1))


class Peer(Puppet):
    """Gives and fetches."""

    def __init__(self, folder: Path, peers: tuple[str, ...], **who: Any) -> None:
        super().__init__("tests.swarm.transfer.sharing_peer", folder)
        self.say({"folder": str(folder), "peers": peers, **who})

    def ready(self) -> tuple[str, ...]:
        """Wait until it has joined; returns its addresses."""
        hello = self.hear()
        self.id: str = hello["peer"]
        return tuple(hello["addresses"])

    def do(self, what: str, **arguments: Any) -> None:
        self.say({"do": what, **arguments})

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        self.do(what, **arguments)
        return self.hear()

    def has(self, round: str, seed: int = 1, **arguments: Any) -> str:
        """Let it hold and share a state; returns its digest."""
        self.ask("fault", kind="")
        self.ask("line", free=True)
        self.ask("share", on=True)
        digest: str = self.ask("be", step=1, round=round, seed=seed, **arguments)["digest"]
        return digest

    def begins_download(self, *donors: "Peer", question: bool = False) -> None:
        """:param question: when the download has begun, the first donor is asked about its state"""
        self.do("download", donors=[donor.id for donor in donors], question=question)
        assert self.hear() == {"started": True}

    def downloads(self, *donors: "Peer", question: bool = False) -> dict[str, Any]:
        self.begins_download(*donors, question=question)
        return self.hear()

    def fetches_average(self, after: str, *donors: "Peer") -> dict[str, Any]:
        return self.ask("download", after=after, donors=[donor.id for donor in donors])


class Swarm:
    """Two peers that give, a third one, and one in client mode; each of them can fetch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers: list[Peer] = []
        self.addresses: tuple[str, ...] = ()

    def start(self, *client_modes: bool) -> list[Peer]:
        started = []
        for client_mode in client_modes:
            folder = self.folder / str(len(self.peers))
            started.append(Peer(folder, self.addresses, client_mode=client_mode))
            self.peers.append(started[-1])
        for peer in started:
            addresses = peer.ready()
            self.addresses = self.addresses or addresses
        return started

    def another(self) -> Peer:
        """One more, for a test that ends it."""
        return self.start(False)[0]
