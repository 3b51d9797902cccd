"""A line to a peer, without a network."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.remote.lines import Line
from tests.swarm.remote.meeting import Echo


class Opens:
    """Notes with what each stream ended."""

    def __init__(self) -> None:
        self.ends: list[BaseException | None] = []

    @asynccontextmanager
    async def open(self, *_: Any) -> AsyncIterator[Stream]:
        try:
            yield cast(Stream, None)
        except BaseException as error:
            self.ends.append(error)
            raise


@pytest.mark.parametrize("over", [False, True], ids=["is there", "is over already"])
def test_whoever_opened_a_line_hears_with_what_it_broke_unless_all_is_over(over: bool) -> None:
    opens = Opens()

    async def live() -> None:
        line = await Line.open(cast(Any, opens), "peer", Echo, b"")
        if over:
            line._held.cancel()
            await asyncio.wait({line._held})
        await line.close(ConnectionResetError("broken"))

    asyncio.run(live())
    (end,) = opens.ends
    assert isinstance(end, asyncio.CancelledError if over else ConnectionResetError)
