"""Peers give each other what one of them lacks: newcomers get the training state, those who missed a round its average.

Whom to ask is the caller's choice, from signed progress records. A download that breaks off goes on elsewhere. A donor
serves few at once, out of one snapshot, and lets its own all-reduce go first.
"""

import asyncio
import ctypes
import gc
import multiprocessing as mp
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from multiprocessing.connection import Connection
from typing import Any

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.p2p import P2P, PeerID
from hivemind.utils import MPFuture

from dedloc_kit.records import StateInfo
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.node import kept_alive
from dedloc_kit.swarm.transfer.contents import (
    ExpectedAverage,
    ExpectedState,
    Offer,
    RecentAverage,
    StateLayout,
    plain,
    shared_bytes,
    snapshot,
    version_of,
)
from dedloc_kit.swarm.transfer.donor import Giving
from dedloc_kit.swarm.transfer.download import Fetching, Opened, head
from dedloc_kit.swarm.transfer.protocol import MAX_VERSION, Download, Expected, Header, Request

HOST_SECONDS = 60.0
"""For a copy of the state by a busy host process."""
REPORT_SECONDS = 0.25

State = tuple[dict[str, Any], Sequence[torch.Tensor]]
CurrentState = Callable[[], AbstractContextManager[State]]
Warn = Callable[[str], None]


def stream_name(run_id: str) -> str:
    """Of the libp2p stream that donors of a run serve."""
    return Names(run_id).transfer


class StateSharing(DecentralizedAverager):
    """An averager that gives and fetches states and averages; peers with the same prefix can fetch from each other.

    :param current_state: entered in a thread of this process to copy the state: metadata with `info` (of a StateInfo)
        and `receipts`, and CPU tensors, which must not change meanwhile
    :param current_info: what `current_state` would give as `info`, without copying anything
    """

    def __init__(
        self,
        averaged_tensors: Sequence[torch.Tensor],
        dht: DHT,
        *,
        current_state: CurrentState,
        current_info: Callable[[], StateInfo],
        **options: Any,
    ) -> None:
        self._current_state, self._current_info = current_state, current_info
        # Shared by this process and the averager's, which is forked below.
        self._sharing = mp.Value(ctypes.c_bool, False)
        self._held = mp.Array(ctypes.c_char, 4 * MAX_VERSION)
        with current_state() as (_, tensors):
            layout = StateLayout(tensors)
        # Used in the averager's process only.
        self._giving = Giving(lambda: bool(self._sharing.value), self._newest_state, layout)
        self._line_free = self._giving.line_free
        self._serves_as_client = False
        super().__init__(averaged_tensors, dht, allow_state_sharing=False, **options)

    def _run_internal(self) -> None:
        # torch makes its thread pool anew at its first use after a fork, which fails in two threads at once.
        torch.get_num_threads()
        # All modules stand to the end. Looking through them for garbage would hold up a round by 0.2 to 0.4 s.
        gc.freeze()
        super()._run_internal()

    def share(self, on: bool) -> None:
        """Whether others may fetch from this peer; it starts with no. From a client only those can that it knows."""
        self._sharing.value = on

    def download_state(
        self,
        donors: Sequence[str],
        like: Sequence[torch.Tensor],
        *,
        on_version: Callable[[str], bool],
        on_progress: Callable[[int, int], None],
        warn: Warn,
        stop: threading.Event,
    ) -> State | None:
        """Fetch the state from one of the donors, or from several one after the other.

        :param donors: peer ids (base58) of peers that are up to date; their order does not matter
        :param like: tensors of the shapes and types that a state has; their values do not matter
        :param on_version: called with the version that is about to come; ends the download if it returns False
        :param on_progress: called some times a second with the bytes received and those of the whole state
        :param warn: called with one line for each donor that fails
        :param stop: ends the download within a second
        :returns: metadata (`info` and `receipts` are valid records) and tensors, or None: the donors have no state to
            give now, or there are none left
        """
        layout = StateLayout(like)
        flat = shared_bytes(layout.size)
        expected = ExpectedState(self.prefix, layout.size)
        header = self._download(donors, expected, flat, on_progress, warn, stop, on_version)
        return None if header is None else (plain(header.metadata), layout.views(flat))

    def download_average(
        self, after: str, donors: Sequence[str], *, max_bytes: int, warn: Warn, stop: threading.Event
    ) -> RecentAverage | None:
        """Fetch the average of the round that followed the round `after`.

        :param max_bytes: of its parts; a donor that offers more is not believed
        :returns: None if no donor has it (any more); otherwise as `download_state`
        """
        flat = shared_bytes(max_bytes)
        header = self._download(donors, ExpectedAverage(after), flat, lambda _received, _total: None, warn, stop)
        return None if header is None else RecentAverage.read(header.metadata, flat.numpy().data)

    def _download(
        self,
        donors: Sequence[str],
        expected: Expected,
        flat: torch.Tensor,
        on_progress: Callable[[int, int], None],
        warn: Warn,
        stop: threading.Event,
        on_version: Callable[[str], bool] = lambda _: True,
    ) -> Header | None:
        others = [donor for donor in donors if donor != self.peer_id.to_base58()]
        events, sender = mp.Pipe(duplex=False)
        shown = 0
        with events:  # closing it ends the download
            self._outer_pipe.send(("_fetch", [], {"parcel": [sender, others, expected, flat]}))
            sender.close()
            while self.is_alive() and not stop.is_set():
                if not events.poll(REPORT_SECONDS):
                    continue
                kind, value = events.recv()
                if kind == "warning":
                    warn(value)
                elif kind == "version":
                    if not on_version(value):
                        return None
                elif kind == "progress":
                    shown = max(shown, value)  # begun again elsewhere, it takes a while to get as far as it was
                    on_progress(shown, len(flat))
                else:
                    return None if value is None else Header.parse(value)
        return None

    def ask_for_sketch(self, peer: str, version: str, seed: bytes) -> MPFuture:
        """Ask another peer about the state of this version that it holds; a future of a Header, or of None."""
        answer = MPFuture()
        request = Request(what="sketch", version=version, seed=seed)
        self._outer_pipe.send(("_ask", [], {"peer": peer, "request": request, "answer": answer}))
        return answer

    def get_current_state(self) -> tuple[Any, Sequence[torch.Tensor], None]:
        """The state, packed, unless it is the version that the averager's process holds. hivemind's thread calls it."""
        if self._held.value.decode() == version_of(self._current_info()):
            return {}, (), None
        with self._current_state() as (metadata, tensors):
            return metadata, (StateLayout(tensors).pack(tensors),), None

    # What follows runs in the averager's own process.

    def keep(self, average: RecentAverage) -> None:
        """Keep the average of a complete round for those who missed it."""
        self._giving.keep(average)

    @property
    def _stream_name(self) -> str:
        return stream_name(self.prefix)

    async def serve_also_as_client(self) -> None:
        """Whoever a client is connected to can open streams to it as well: a coordinator that was away while only
        clients went on can get the newest state from nobody else."""
        if self.client_mode and not self._serves_as_client:
            self._serves_as_client = True
            await self._p2p.add_binary_stream_handler(self._stream_name, self._giving.serve)

    async def add_p2p_handlers(self, p2p: P2P, *args: Any, **kwargs: Any) -> None:
        await super().add_p2p_handlers(p2p, *args, **kwargs)
        await p2p.add_binary_stream_handler(self._stream_name, self._giving.serve)

    async def remove_p2p_handlers(self, p2p: P2P, *args: Any, **kwargs: Any) -> None:
        await p2p.remove_binary_stream_handler(self._stream_name)
        await super().remove_p2p_handlers(p2p, *args, **kwargs)

    async def _newest_state(self, held: str) -> Offer | None:
        offer: Offer | None = None
        while True:
            self._held.value = (offer.version if offer else held).encode()
            asked = self._get_current_state_from_host_process()
            metadata, tensors, _ = await asyncio.wait_for(asked, HOST_SECONDS)
            if not tensors:
                # Asked until there is nothing newer, hivemind's threads have let go of what they passed on before.
                return offer
            offer = snapshot(metadata, tensors[0])

    @kept_alive
    async def _fetch(self, parcel: list[Any]) -> None:
        """Download, and tell the host how far it is; it closes its end of the pipe when it wants no more."""
        events: Connection
        events, donors, expected, flat = parcel
        parcel.clear()  # hivemind holds a call's arguments until the next call
        download = Download(expected, flat.numpy().data)
        warnings: list[str] = []
        version = ""

        async def tell(kind: str, value: object) -> None:
            # In a thread, for a pipe takes 64 KiB and then waits: the host may be busy with a question about this
            # version, and it asks through this loop.
            await asyncio.to_thread(events.send, (kind, value))

        fetching = Fetching(download, donors, self._open_stream, warnings.append)
        task = asyncio.create_task(fetching.complete())
        with closing(events):
            try:
                while not task.done():
                    begun = asyncio.create_task(download.begun.wait())
                    await asyncio.wait({task} if version else {task, begun}, timeout=REPORT_SECONDS)
                    begun.cancel()
                    while warnings:
                        await tell("warning", warnings.pop(0))
                    if download.header is not None and download.header.version != version:
                        version = download.header.version
                        await tell("version", version)
                    await tell("progress", download.received)
                header = download.header if task.result() else None
                await tell("end", header and header.model_dump())
            except OSError:
                pass  # the host wants no more
            finally:
                task.cancel()

    @kept_alive
    async def _ask(self, peer: str, request: Request, answer: MPFuture) -> None:
        answer.set_result(await head(self._open_stream(peer), request, HOST_SECONDS))

    async def _open_stream(self, donor: str) -> Opened:
        opened: Opened = await self._p2p.call_binary_stream_handler(PeerID.from_base58(donor), self._stream_name)
        return opened
