"""Whom to ask for a download: several donors at once, others when these fail, and when to give up."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.transfer.protocol import MESSAGE_BYTES, Download, Header, Request, request_header

STREAMS = 6
"""From different donors if there are several. One libp2p stream alone leaves a long line idle again and again."""
RETRY_SECONDS = 2.0
"""After this long a donor that failed or was busy is asked again while others are at work."""
PAUSE_SECONDS = (1.0, 3.0)
"""Between two rounds of asking all donors."""
MAX_VAIN_ROUNDS = 3
"""After so many rounds that brought nothing the caller has to look for other donors."""
MAX_RESTARTS = 8
"""How often the swarm may move on while we have a part of its state."""
PATIENCE_SECONDS = 120.0
"""The same after this time, also while the donors are there, but busy."""

OpenStream = Callable[[str], AbstractAsyncContextManager[Stream]]
"""To a donor; raises OSError."""

_log = logging.getLogger(__name__)


async def head(open_stream: OpenStream, donor: str, request: Request, seconds: float) -> Header | None:
    """What a donor answers, without the content; None if it does not within so many seconds."""
    try:
        async with asyncio.timeout(seconds), open_stream(donor) as stream:
            return await request_header(request, stream)
    except (OSError, EOFError, ValueError):
        return None


class Downloader:
    """Completes a download, and warns of each donor that fails.

    :param donors: all are equally good
    """

    def __init__(self, download: Download, donors: Sequence[str], open_stream: OpenStream) -> None:
        self._download, self._open_stream = download, open_stream
        self._donors = list(donors)
        self._used: set[str] = set()

    async def complete(self) -> bool:
        """Ask the donors until everything is there; False if they do not give it."""
        download = self._download
        vain_rounds, restarts, furthest, progressed = 0, 0, 0, time.monotonic()
        while vain_rounds < MAX_VAIN_ROUNDS and restarts <= MAX_RESTARTS:
            answers = await self._ask_all()
            if download.complete and self._checked():
                return True
            if set(answers.values()) == {"nothing"} or not self._donors:
                return False
            if download.received >= furthest + MESSAGE_BYTES:
                vain_rounds, furthest, progressed = 0, download.received, time.monotonic()
            elif "busy" not in answers.values():
                vain_rounds += 1
            if "other" in answers.values() or not download.received:
                restarts += furthest > 0  # the version that we have a part of is history
                furthest = 0
                download.discard()
            if time.monotonic() - progressed > PATIENCE_SECONDS:
                return False
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        return False

    async def _ask_all(self) -> dict[str, str]:
        """One round; returns the answers of those who do not deliver (any more)."""
        answers: dict[str, str] = {}
        # Several times each, so that one donor can serve all streams if there is no other.
        queue = deque(STREAMS * random.sample(self._donors, len(self._donors)))

        warned = set[str]()

        async def download_from(donor: str) -> None:
            answer, reason = await self._ask(donor)
            if reason and donor not in warned:
                warned.add(donor)
                _log.warning("%s %s", donor, reason)
            if answer != "here":
                answers[donor] = answer

        async def work() -> None:
            while queue and self._download.wants_more:
                donor = queue.popleft()
                if donor not in answers:
                    await download_from(donor)

        async with asyncio.TaskGroup() as group:
            first = group.create_task(work())
            begun = group.create_task(self._download.begun.wait())
            await asyncio.wait({first, begun}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if self._download.begun.is_set():
                workers = {first, *(group.create_task(work()) for _ in range(STREAMS - 1))}
                while (await asyncio.wait(workers, timeout=RETRY_SECONDS))[1]:
                    # The others may come back: a first connection often takes a second try.
                    again = [donor for donor in self._donors if answers.get(donor) in ("failed", "busy")]
                    for donor in again[:STREAMS]:
                        del answers[donor]
                        group.create_task(download_from(donor))
        return answers

    async def _ask(self, donor: str) -> tuple[str, str]:
        """The donor's answer, or "failed" or "malformed" and why."""
        try:
            async with self._open_stream(donor) as stream:
                self._used.add(donor)
                return await self._download.take_from(stream), ""
        except ValueError as error:
            self._ban(donor)
            return "malformed", f"sends what cannot be right ({error!s:.100}); it is not asked again"
        except (OSError, EOFError) as error:
            return "failed", f"does not deliver: {str(error) or repr(error):.80}"

    def _checked(self) -> bool:
        assert self._download.header is not None
        try:
            self._download.expected.check(self._download.header, self._download.content)
        except ValueError as error:
            for donor in self._used:
                self._ban(donor)
            _log.warning("what %s sent cannot be right (%s)", ", ".join(self._used), error)
            self._used.clear()
            self._download.discard()
            return False
        return True

    def _ban(self, donor: str) -> None:
        if donor in self._donors:
            self._donors.remove(donor)
