"""A process beside this one, in which objects live, and calls into it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.swarm.network.host import Host, Line, Owner
from tests.hang import HANG


class Counter:
    def __init__(self, owner: Owner) -> None:
        self._owner, self._count = owner, 0

    async def add(self, number: int) -> int:
        self._count += number
        return self._count

    async def process(self) -> int:
        return os.getpid()

    async def fail(self) -> None:
        raise ValueError("as told")

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def of_owner(self, question: Any) -> Any:
        return await self._owner.query(question)

    async def fill(self, values: torch.Tensor) -> None:
        values.fill_(7.0)


class OtherCounter:
    async def add(self, number: int) -> int:
        return -number


def answer(question: str) -> str:
    if question == "bad":
        raise KeyError(question)
    return question.upper()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    @asynccontextmanager
    async def make(owner: Owner) -> AsyncIterator[Sequence[object]]:
        yield Counter(owner), OtherCounter()
        (tmp_path / "closed").touch()

    host = Host(make, answer)
    yield host
    host.stop()
    assert not host.is_alive()


@pytest.mark.soak
def test_calls_go_to_the_object_of_their_class_in_another_process(host: Host) -> None:
    assert host.call(Counter.process).result(HANG) != os.getpid()
    assert host.call(Counter.add, 2).result(HANG) == 2
    assert host.call(Counter.add, number=3).result(HANG) == 5
    assert host.call(OtherCounter.add, 3).result(HANG) == -3


@pytest.mark.soak
def test_what_a_call_raises_is_raised_here_and_the_process_goes_on(host: Host) -> None:
    with pytest.raises(ValueError, match="as told"):
        host.call(Counter.fail).result(HANG)
    assert host.call(Counter.add, 1).result(HANG) == 1


@pytest.mark.soak
def test_an_object_can_ask_its_owner(host: Host) -> None:
    assert host.call(Counter.of_owner, "good").result(HANG) == "GOOD"
    with pytest.raises(KeyError):
        host.call(Counter.of_owner, "bad").result(HANG)


@pytest.mark.soak
def test_what_is_said_may_be_longer_than_a_pipe_takes_at_once(host: Host) -> None:
    long = [number * "x" for number in (10, 5_000_000, 100_000)]
    answers = [host.call(Counter.of_owner, question) for question in long]
    assert [answer.result(HANG) for answer in answers] == [question.upper() for question in long]


@pytest.mark.soak
def test_a_shared_tensor_is_changed_in_place(host: Host) -> None:
    values = torch.zeros(1000).share_memory_()
    host.call(Counter.fill, values).result(HANG)
    assert bool((values == 7.0).all())


@pytest.mark.soak
def test_on_stopping_it_leaves_what_it_entered_also_while_a_call_waits(host: Host, tmp_path: Path) -> None:
    waiting = host.call(Counter.wait)
    host.stop()
    assert (tmp_path / "closed").exists()
    with pytest.raises(RuntimeError):
        waiting.result(HANG)


@pytest.mark.soak
def test_calls_into_a_process_that_has_died_fail(host: Host) -> None:
    waiting, process = host.call(Counter.wait), host.call(Counter.process).result(HANG)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="died"):
        waiting.result(HANG)
    with pytest.raises(RuntimeError, match="died"):
        host.call(Counter.add, 1).result(HANG)


@pytest.mark.soak
def test_what_goes_wrong_in_making_it_is_raised_at_once() -> None:
    @asynccontextmanager
    async def make(owner: Owner) -> AsyncIterator[Sequence[object]]:
        raise ValueError("cannot be made")
        yield ()

    with pytest.raises(ValueError, match="cannot be made"):
        Host(make)


def test_what_is_said_after_the_end_is_said_to_nobody() -> None:
    here, there = Pipe()
    line = Line(here)
    line.close()
    line.send("done", 1, False, RuntimeError("the call was cancelled"))
    assert not there.poll()
