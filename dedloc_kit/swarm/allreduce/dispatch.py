"""Messages for each member in their order, sent as far as there is a stream to it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from dedloc_kit.swarm.allreduce.link import Link

Compose = Callable[[], bytes]
"""Makes a message as it is sent: the same bytes go to many."""


class Dispatch:
    """To all members of a round.

    :param sent: told of each message that goes: to whom, and how many bytes
    """

    def __init__(self, sent: Callable[[int, int], None] = lambda _member, _size: None) -> None:
        self._sent = sent
        self._messages: dict[int, list[Compose]] = defaultdict(list)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._links: dict[int, Link] = {}
        self._news = asyncio.Event()

    def put(self, member: int, message: Compose) -> None:
        self._messages[member].append(message)
        self._news.set()
        self._news = asyncio.Event()

    def clear(self) -> None:
        """What has not gone does not go any more."""
        self._messages.clear()
        for member, link in list(self._links.items()):
            self.open(member, link)

    def open(self, member: int, link: Link) -> None:
        """There is a stream to a member: it gets everything."""
        self.drop(member)
        self._links[member] = link
        self._tasks[member] = asyncio.create_task(self._send(member, link))

    def drop(self, member: int) -> None:
        """Its stream is gone."""
        self._links.pop(member, None)
        if (task := self._tasks.pop(member, None)) is not None:
            task.cancel()

    async def _send(self, member: int, link: Link) -> None:
        messages, count = self._messages[member], 0
        with suppress(OSError):
            while True:
                news = self._news
                while count < len(messages):
                    message = messages[count]()
                    count += 1
                    self._sent(member, len(message))
                    await link.send(message)
                await news.wait()
