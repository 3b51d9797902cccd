"""How far a member of an all-reduce is ahead of a reducer."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from hivemind.proto import averaging_pb2, runtime_pb2

from dedloc_kit.swarm import window
from dedloc_kit.swarm.window import SendWindow, Taken

RECEIPT = averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART)
AVERAGE = averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=runtime_pb2.Tensor(buffer=b"1"))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20.0))


class Reducer:
    """Answers what it is told to."""

    def __init__(self, sender: SendWindow) -> None:
        self._answers: asyncio.Queue[averaging_pb2.AveragingData] = asyncio.Queue()
        self.averages = sender.averages(self._stream())

    async def _stream(self) -> AsyncIterator[averaging_pb2.AveragingData]:
        while True:
            yield await self._answers.get()

    def say(self, *answers: averaging_pb2.AveragingData) -> None:
        for answer in answers:
            self._answers.put_nowait(answer)


def test_a_part_waits_until_an_average_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LONGEST_WAIT", 60.0)

    async def test() -> None:
        sender = SendWindow(ahead=2)
        reducer = Reducer(sender)
        await sender.room(100)
        await sender.room(100)
        third = asyncio.create_task(sender.room(100))
        reducer.say(RECEIPT, RECEIPT)
        coming = asyncio.ensure_future(anext(reducer.averages))
        assert not (await asyncio.wait({third, coming}, timeout=0.2))[0], (
            "a receipt made room, or passed for an average"
        )
        reducer.say(AVERAGE)
        await third
        assert await coming == AVERAGE

    run(test())


def test_a_part_goes_after_a_second_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LONGEST_WAIT", 0.05)

    async def test() -> None:
        sender = SendWindow(ahead=1)
        for _ in range(3):
            await sender.room(100)

    run(test())


def test_the_rate_counts_only_the_time_in_which_a_part_is_on_its_way() -> None:
    async def test() -> None:
        sender = SendWindow(ahead=3)
        reducer = Reducer(sender)
        await sender.room(500)
        assert sender.rate == 0.0
        reducer.say(RECEIPT, AVERAGE)
        await anext(reducer.averages)
        at_once = sender.rate
        await asyncio.sleep(0.3)  # nothing is on its way
        assert sender.rate == at_once > 500 / 0.3
        await sender.room(500)
        await asyncio.sleep(0.3)
        reducer.say(AVERAGE)  # says that the part has come, too
        await anext(reducer.averages)
        assert 0.0 < sender.rate < 1000 / 0.3

    run(test())


def test_a_receipt_for_what_was_never_sent_is_taken_for_an_average() -> None:
    async def test() -> None:
        sender = SendWindow(ahead=3)
        reducer = Reducer(sender)
        await sender.room(100)
        reducer.say(RECEIPT, RECEIPT)
        assert await anext(reducer.averages) == RECEIPT  # whoever reads it finds no numbers in it

    run(test())


def test_a_reducer_confirms_parts_only_while_an_average_takes_its_time() -> None:
    async def test() -> None:
        averages: list[asyncio.Future[runtime_pb2.Tensor]] = [asyncio.get_running_loop().create_future() for _ in "123"]
        taken = Taken()
        answers = taken.answers(averages)
        taken.add()
        assert await anext(answers) == RECEIPT
        taken.add()
        averages[0].set_result(AVERAGE.tensor_part)
        averages[1].set_result(AVERAGE.tensor_part)
        assert [await anext(answers) for _ in "12"] == [AVERAGE, AVERAGE]
        last = asyncio.ensure_future(anext(answers))
        assert not (await asyncio.wait({last}, timeout=0.2))[0], "a part was confirmed that its average had confirmed"
        averages[2].set_exception(ValueError("the round is over"))
        with pytest.raises(ValueError, match="over"):
            await last

    run(test())
