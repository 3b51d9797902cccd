"""A line to a peer, without a network."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.remote.lines import Line, Lines
from tests.swarm.remote.meeting import Echo


class Opens:
    """Notes with what each stream ended."""

    def __init__(self) -> None:
        self.ends: list[BaseException | None] = []

    @asynccontextmanager
    async def open(self, *_: Any) -> AsyncIterator[Stream]:
        try:
            yield cast(Stream, SimpleNamespace(silence=0.0))
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


def test_lines_that_go_the_same_way_as_one_that_falls_silent_are_closed_with_it() -> None:
    opens = Opens()

    async def live() -> None:
        lines = Lines(cast(Any, opens), "peer", Echo, (1.0, 1.0))
        async with lines.use(), lines.use():
            pass
        assert not opens.ends
        with pytest.raises(TimeoutError):
            async with lines.use():
                raise TimeoutError
        assert len(opens.ends) == 2

    asyncio.run(live())
