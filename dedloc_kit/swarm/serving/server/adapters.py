"""Clients' adapters on a server, each for the sessions of its own client."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import torch
from torch import Tensor

from dedloc_kit.blocks.adapters.adapters import Adapter, AdapterForm
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.remote.tensors import receive_content
from dedloc_kit.swarm.serving.protocol import Refusal, Wanted
from dedloc_kit.swarm.serving.server.sessions import Session
from dedloc_kit.swarm.transfer.protocol import alive_until

ADAPTERS_OF_A_PEER, BYTES_OF_A_PEER = 8, 2**27
ADAPTERS, BYTES = 64, 2**28
MAX_FORM_BYTES = 2**20
UNUSED_SECONDS = 600.0
"""After which an adapter is forgotten that no session uses."""


class _Kept:
    """:ivar adapter: not before it is all there
    :ivar sessions: how many use it
    """

    def __init__(self, peer: str, digest: str, size: int) -> None:
        self.peer, self.digest, self.size = peer, digest, size
        self.adapter: Adapter | None = None
        self.sessions = 1


class Adapters:
    """Those that no session uses stay for a while if there is room: the next session often has the same."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []  # the oldest first

    @property
    def size(self) -> int:
        """In bytes, with those that are arriving."""
        return _size(self._kept)

    @asynccontextmanager
    async def used(self, session: Session) -> AsyncIterator[None]:
        """Within it the session has the adapter that it was opened with, if any; its client is asked for one that is
        not known.

        Raises Refusal for one that cannot be, or for which there is no room.
        """
        if not session.opened.adapter:
            yield
            return
        try:
            kept = await self._obtained(session)
        except ValueError as error:
            raise Refusal("adapter", str(error)) from None
        try:
            session.adapter = kept.adapter
            yield
        finally:
            kept.sessions -= 1
            asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._forget, kept)

    async def _obtained(self, session: Session) -> _Kept:
        peer, digest, stream = session.peer, session.opened.adapter, session.stream
        for kept in self._kept:
            if (kept.peer, kept.digest) == (peer, digest) and kept.adapter is not None:
                kept.adapter.form.check(session.span)
                kept.sessions += 1
                return kept
        await stream.send(encode(Wanted()))
        form = await stream.receive_record(AdapterForm, MAX_FORM_BYTES)
        form.check(session.span)
        kept = self._reserved(peer, digest, form.size)
        try:
            session.heard()
            content = await alive_until(stream, receive_content(stream, form.size))
            kept.adapter = await asyncio.to_thread(Adapter.unpack, form, bytes(content), digest)
        except BaseException:
            self._kept.remove(kept)
            raise
        return kept

    def _reserved(self, peer: str, digest: str, size: int) -> _Kept:
        """Raises Refusal if there is no room, after what no session uses has gone."""
        own = [kept for kept in self._kept if kept.peer == peer]
        self._shrink(own, ADAPTERS_OF_A_PEER - 1, BYTES_OF_A_PEER - size)
        self._shrink(list(self._kept), ADAPTERS - 1, BYTES - size)
        self._kept.append(_Kept(peer, digest, size))
        return self._kept[-1]

    def _shrink(self, some: list[_Kept], number: int, size: int) -> None:
        for kept in [kept for kept in some if not kept.sessions]:
            if len(some) <= number and _size(some) <= size:
                return
            some.remove(kept)
            self._kept.remove(kept)
        if len(some) > number or _size(some) > size:
            raise Refusal("adapter", f"{len(some)} adapters of {_size(some)} bytes are used here already")

    def _forget(self, kept: _Kept) -> None:
        if not kept.sessions and kept in self._kept:
            self._kept.remove(kept)


def flat(gradients: Mapping[str, Tensor]) -> Tensor:
    """Those of an adapter's tensors as they travel: in one piece, in the order of their names."""
    return torch.cat([gradients[name].detach().to("cpu", torch.float32).reshape(-1) for name in sorted(gradients)])


def numbers(form: AdapterForm) -> int:
    """How many `flat` has."""
    return sum(rows * columns for rows, columns in (tensor.shape for tensor in form.tensors.values()))


def by_name(form: AdapterForm, gradients: Tensor) -> dict[str, Tensor]:
    """What `flat` made one piece of."""
    shapes = {name: form.tensors[name].shape for name in sorted(form.tensors)}
    pieces = gradients.split([rows * columns for rows, columns in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _size(some: Sequence[_Kept]) -> int:
    return sum(kept.size for kept in some)
