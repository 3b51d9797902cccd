"""Peers give each other what one of them lacks: newcomers get the training state, those who missed a round its average.

Whom to ask is the caller's choice, from signed progress records. A download that breaks off goes on elsewhere. A donor
serves few at once, out of one snapshot, and lets its own all-reduce go first.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from dedloc_kit.records.state import StateInfo
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream, decode
from dedloc_kit.swarm.transfer.contents import (
    ExpectedAverage,
    ExpectedState,
    RecentAverage,
    StateLayout,
    shared_bytes,
    version_of,
)
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.download import Downloader, head
from dedloc_kit.swarm.transfer.protocol import Download, Expected, Header, Request

ANSWER_SECONDS = 60.0
"""For a copy of the state by a busy process, and a sketch of it."""
REPORT_SECONDS = 0.25

State = tuple[dict[str, Any], Sequence[torch.Tensor]]


@dataclass
class News:
    """What has become of a download since it was asked for the last time."""

    version: str = ""
    """That has begun to come; empty before."""
    received: int = 0
    """Bytes."""


class TransferService(Service):
    """The network's side: gives to others, and fetches from them, in a process of its own."""

    name = "sharing"

    def __init__(self, endpoint: Endpoint, donor: Donor) -> None:
        self._endpoint, self._donor = endpoint, donor
        self._downloads: dict[int, tuple[asyncio.Task[bool], Download]] = {}

    async def serve(self, peer: str, stream: Stream) -> None:
        await self._donor.serve(peer, stream)

    async def share(self, on: bool) -> None:
        """Whether others may fetch from this peer; it starts with no."""
        self._donor.share(on)

    async def kept_average(self, after: str) -> RecentAverage | None:
        """The average that followed this round, if this peer still keeps it in its memory."""
        average = self._donor.average_after(after)
        return average if isinstance(average, RecentAverage) else None

    async def fetch(self, number: int, donors: Sequence[str], expected: Expected, flat: torch.Tensor) -> Header | None:
        """Download something into shared memory (uint8); None if the donors do not give it, or it was stopped.

        :param number: names the download in the other calls, until `stop`
        """
        download = Download(expected, flat.numpy().data)
        task = asyncio.create_task(Downloader(download, donors, self._open).complete())
        self._downloads[number] = task, download
        try:
            return download.header if await task else None
        except asyncio.CancelledError:
            task.cancel()
            return None

    async def news(self, number: int) -> News:
        """Of a download, as soon as its version is known or after a moment."""
        task, download = self._downloads[number]
        begun = asyncio.create_task(download.begun.wait())
        await asyncio.wait({task, begun}, timeout=REPORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        return News(download.header.version if download.header else "", download.received)

    async def stop(self, number: int) -> None:
        """A download is of no use any more, or over."""
        self._downloads.pop(number)[0].cancel()

    async def header_of(self, peer: str, request: Request) -> Header | None:
        """What another peer answers, without the content; None if it does not."""
        return await head(self._open, peer, request, ANSWER_SECONDS)

    def _open(self, donor: str) -> AbstractAsyncContextManager[Stream]:
        return self._endpoint.open(donor, TransferService)


class StateSource:
    """Where the network's side gets the newest state from; it lives in the process that trains.

    :param current_state: entered in a thread to copy the state: metadata with `info` (of a StateInfo) and `receipts`,
        and CPU tensors, which must not change meanwhile
    :param current_info: what `current_state` would give as `info`, without copying anything
    """

    def __init__(
        self, current_state: Callable[[], AbstractContextManager[State]], current_info: Callable[[], StateInfo]
    ) -> None:
        self._current_state, self._current_info = current_state, current_info
        with current_state() as (_, tensors):
            self.layout = StateLayout(tensors)

    def newest(self, held: str) -> tuple[dict[str, Any], torch.Tensor] | None:
        """Metadata and the packed tensors, unless this version is the newest one."""
        if held == version_of(self._current_info()):
            return None
        with self._current_state() as (metadata, tensors):
            return metadata, self.layout.pack(tensors)


class NoSource(StateSource):
    """Of a peer that holds no state."""

    def __init__(self) -> None:
        self.layout = StateLayout([])

    def newest(self, held: str) -> None:
        return None


class Transfers:
    """The training's side.

    :param host: where the TransferService lives
    """

    def __init__(self, host: Host, run_id: str) -> None:
        self._host, self._run_id = host, run_id
        self._downloads = 0

    def share(self, on: bool) -> None:
        """Whether others may fetch from this peer; it starts with no. From a client only those can that it knows."""
        self._host.call(TransferService.share, on)

    def kept_average(self, after: str) -> RecentAverage | None:
        """The average that followed this round, if this peer still keeps it; RuntimeError if the process has died."""
        return self._host.call(TransferService.kept_average, after).result()

    def download_state(
        self,
        donors: Sequence[str],
        like: Sequence[torch.Tensor],
        *,
        on_version: Callable[[str], bool],
        on_progress: Callable[[int, int], None],
        stop: threading.Event,
    ) -> State | None:
        """Fetch the state from one of the donors, or from several one after the other.

        :param donors: peer ids (base58) of peers that are up to date; their order does not matter
        :param like: tensors of the shapes and types that a state has; their values do not matter
        :param on_version: called with the version that is about to come; ends the download if it returns False
        :param on_progress: called some times a second with the bytes received and those of the whole state
        :param stop: ends the download within a second
        :returns: metadata (`info` and `receipts` are valid records) and tensors, or None: the donors have no state to
            give now, or there are none left
        """
        layout = StateLayout(like)
        flat = shared_bytes(layout.size)
        expected = ExpectedState(self._run_id, layout.size)
        header = self._download(donors, expected, flat, on_progress, stop, on_version)
        return None if header is None else (decode(header.metadata), layout.views(flat))

    def download_average(
        self,
        after: str,
        donors: Sequence[str],
        *,
        check: Callable[[bytes], object],
        max_bytes: int,
        stop: threading.Event,
    ) -> RecentAverage | None:
        """Fetch the average of the round that followed the round `after`.

        :param check: raises ValueError for a part that is none; a function that another process can call as well
        :param max_bytes: of its parts; a donor that offers more is not believed
        :returns: None if no donor has it (any more); otherwise as `download_state`
        """
        flat = shared_bytes(max_bytes)
        header = self._download(donors, ExpectedAverage(after, check), flat, lambda _received, _total: None, stop)
        return None if header is None else RecentAverage.read(header.metadata, flat.numpy().data)

    def ask_for_sketch(self, peer: str, version: str, seed: bytes) -> Future[Header | None]:
        """Ask another peer about the state of this version that it holds."""
        return self._host.call(TransferService.header_of, peer, Request(what="sketch", version=version, seed=seed))

    def ask_for_state(self, peer: str) -> Future[Header | None]:
        """Ask another peer what it says of the state that it holds."""
        return self._host.call(TransferService.header_of, peer, Request(what="state"))

    def _download(
        self,
        donors: Sequence[str],
        expected: Expected,
        flat: torch.Tensor,
        on_progress: Callable[[int, int], None],
        stop: threading.Event,
        on_version: Callable[[str], bool] = lambda _: True,
    ) -> Header | None:
        self._downloads += 1
        number, version, shown = self._downloads, "", 0
        ended = self._host.call(TransferService.fetch, number, donors, expected, flat)
        try:
            while not stop.is_set():
                over = ended.done()  # then this is the last that there is to tell
                news = self._host.call(TransferService.news, number).result()
                if news.version not in ("", version):
                    version = news.version
                    if not on_version(version):
                        return None
                shown = max(shown, news.received)  # begun again elsewhere, it takes a while to get as far as it was
                on_progress(shown, len(flat))
                if over:
                    return ended.result()
                with suppress(TimeoutError):
                    ended.result(REPORT_SECONDS)
        except RuntimeError:
            pass  # the process has died, which is found out elsewhere
        finally:
            self._host.call(TransferService.stop, number)
        return None
