"""What a peer remembers of its swarm, so that after a restart it is where it was and finds the others again."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from pydantic import Field

from dedloc_kit.errors import UserError
from dedloc_kit.machine.private import write_private
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.records.record import Address, Count, PeerId, Record, RunId, Time

MAX_PEERS = 16
"""Whom a newcomer tries to join through; they are all tried at once."""
_MAX_ADDRESSES = 64
_MAX_COMPANIONS = 4096
_MAX_PARTS = 64


MEMORY_FILE = "swarm.json"


class Taken(Record):
    """The last global step that a peer took itself: those who brought it are believed of later ones, see `belief`."""

    step: Count = 0
    time: Time = 0.0
    """By the clock of the directory."""
    samples: dict[PeerId, Count] = Field(default={}, max_length=_MAX_COMPANIONS)
    """What each peer brought, those who brought nothing left out."""


class ReadUpTo(Record):
    """A position in a peer's data, as `sampler.Position`."""

    block: Count = 0
    sample: Count = 0
    """Of the block; those before it have been used."""


class DataRead(Record):
    """How far a peer has read `data.train` and `data.cooldown`."""

    train: ReadUpTo | None = None
    decay: ReadUpTo | None = None


class SwarmMemory(Record):
    """Kept in a peer's folder as `swarm.json`."""

    run_id: RunId = ""
    peer: PeerId = ""
    """The id of this peer; it belongs to the folder, whatever the run."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port on which this peer listened, which others know; 0 if it never did."""
    peers: tuple[Address, ...] = Field(default=(), max_length=_MAX_ADDRESSES, strict=False)
    """Addresses of peers that others can reach, those seen last first."""
    taken: Taken = Taken()
    parts: tuple[Taken, ...] = Field(default=(), max_length=_MAX_PARTS, strict=False)
    """The same of each stage, of the coordinator of a pipeline."""
    read: DataRead = DataRead()
    """Of the data of this run and peer."""


class Memory:
    """Keeps what is known of the swarm in a peer's folder. Not for several threads at once."""

    def __init__(self, folder: Path, run_id: str, peer: str, port: int) -> None:
        """`port` is the one that this peer listens on now; 0 in client mode, which keeps the one of earlier."""
        before = recall(folder, run_id)
        self._folder, self._run_id, self._peer, self._port = folder, run_id, peer, port or before.port
        self._before, self._taken = before.peers, before.taken
        self._read = data_read(folder, run_id, peer)
        self._newest: SwarmMemory | None = None

    def update(
        self,
        seen: Mapping[str, Sequence[str]],
        taken: Taken | None = None,
        parts: tuple[Taken, ...] = (),
        read: DataRead | None = None,
        at_once: bool = False,
    ) -> None:
        """Remember who is there now, by peer id with the addresses that each names, besides those of earlier.

        :param taken: this peer's last step; none if it takes none, or has not yet
        :param parts: the same of each stage
        :param read: of the data; none if it reads none. Another sample of the same block alone is no reason to write
        :param at_once: whether it is
        Raises OSError if the folder cannot be written; not again until something changes.
        """
        # An address that names somebody else is worth nothing.
        now = [address for peer, named in seen.items() for address in named if address.endswith(f"/p2p/{peer}")]
        peers = tuple(dict.fromkeys(chain(sorted(now), self._before)))[:_MAX_ADDRESSES]
        self._taken, self._read = taken or self._taken, read or self._read
        memory = SwarmMemory(
            run_id=self._run_id,
            peer=self._peer,
            port=self._port,
            peers=peers,
            taken=self._taken,
            parts=parts,
            read=self._read,
        )
        if self._newest is None or memory != (self._newest if at_once else _as_far_as(self._newest, memory.read)):
            self._before, self._newest = peers, memory
            remember(self._folder, memory)


def _as_far_as(memory: SwarmMemory, read: DataRead) -> SwarmMemory:
    """The same with other samples of the same blocks."""
    blocks = [(each.train and each.train.block, each.decay and each.decay.block) for each in (memory.read, read)]
    return memory.model_copy(update={"read": read}) if blocks[0] == blocks[1] else memory


def recall(folder: Path, run_id: str) -> SwarmMemory:
    """What this folder remembers of the run; nothing if there is no such thing, for a peer can start without."""
    memory = _read(folder)
    return memory if memory.run_id == run_id else SwarmMemory()


def data_read(folder: Path, run_id: str, peer: str) -> DataRead:
    """What this peer has read of the run's data, as far as the folder remembers it. Another peer's data is another."""
    memory = recall(folder, run_id)
    return memory.read if memory.peer == peer else DataRead()


def own_id(folder: Path) -> str:
    """The id of the peer whose folder this is, as far as it is known without hivemind; empty before its first run."""
    return _read(folder).peer


def _read(folder: Path) -> SwarmMemory:
    try:
        return SwarmMemory.parse(json.loads((folder / MEMORY_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return SwarmMemory()


def remember(folder: Path, memory: SwarmMemory) -> None:
    """Replace the memory in this folder at once, so that a killed process leaves the old one or the new one."""
    temporary = folder / ".swarm.json.tmp"
    write_private(temporary, memory.model_dump_json())
    os.replace(temporary, folder / MEMORY_FILE)


def take_over(folder: Path, run_id: str, state: Path) -> None:
    """Let a coordinator that begins in this folder know whom the run's earlier one remembered, or at least whom its
    last invitation names.

    Its volunteers may still be training: without it the coordinator would begin a swarm of its own.

    :param state: what it starts from; both lie beside it in a run's folder, the invitation alone in its repository
    """
    if recall(folder, run_id).peers:
        return
    for place in (state, state.parent, state.parent.parent):
        known = recall(place, run_id).peers
        with suppress(OSError, ValueError, UserError):
            invitation = Invitation.parse((place / INVITATION_FILE).read_text(encoding="utf-8"))
            known += invitation.peers if invitation.run_id == run_id else ()
        if known:
            peers = tuple(dict.fromkeys(known))[:_MAX_ADDRESSES]
            remember(folder, SwarmMemory(run_id=run_id, peer=own_id(folder), peers=peers))
            return


def initial_peers(invitation: Invitation, folder: Path) -> tuple[str, ...]:
    """Where to join: the coordinator, then whom this folder remembers, then the others of the invitation."""
    remembered = recall(folder, invitation.run_id).peers
    return of_first_peers((*invitation.peers[:1], *remembered, *invitation.peers), MAX_PEERS)


def of_first_peers(addresses: Iterable[str], most: int) -> tuple[str, ...]:
    """The addresses of the first peers among them, at most so many peers, each address once."""
    chosen: list[str] = []
    peers = set[str]()
    for address in dict.fromkeys(addresses):
        peer = address.rpartition("/")[2]
        if peer in peers or len(peers) < most:
            peers.add(peer)
            chosen.append(address)
    return tuple(chosen)
