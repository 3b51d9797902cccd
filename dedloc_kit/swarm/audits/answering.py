"""The organizer asks a volunteer to compute some microbatches again; its training does so between two of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from dedloc_kit.swarm.audits.questions import Found, Recompute
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.network.service import Endpoint, RecordService

RECOMPUTE_SECONDS = 300.0
"""For `MAX_ASKED` microbatches on a slow machine, which has to finish its own first and to look for the data."""

Asked = tuple[int, Recompute]
"""A question and its number."""


class RecomputeService(RecordService[Recompute, Found]):
    """Brings the organizer's questions, one at a time, to the training, and its answers back; asks others on the
    organizer's side. Whoever asks anew has given up the question of before."""

    name = "recompute"
    question, reply = Recompute, Found

    def __init__(self, endpoint: Endpoint, organizer: str) -> None:
        self._endpoint, self._organizer = endpoint, organizer
        self._number = 0
        self._answer: asyncio.Future[Found] | None = None
        self._waiting: asyncio.Queue[Asked] = asyncio.Queue()

    async def answer(self, peer: str, question: Recompute) -> Found:
        if peer != self._organizer:
            raise ValueError(f"{peer} is not the organizer")
        self._drop()
        self._number += 1
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._waiting.put_nowait((self._number, question))
        try:
            async with asyncio.timeout(RECOMPUTE_SECONDS):
                return await answer
        finally:
            if answer is self._answer:
                self._drop()

    def _drop(self) -> None:
        """Nobody waits for the answer any more."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(ValueError("the organizer has asked something else"))
        if not self._waiting.empty():
            self._waiting.get_nowait()

    # Called by the training

    async def next(self) -> Asked:
        """The next question, as soon as there is one."""
        return await self._waiting.get()

    def give(self, number: int, found: Found) -> None:
        """The answer to this question, if somebody still waits for it."""
        if number == self._number and self._answer is not None and not self._answer.done():
            self._answer.set_result(found)

    # Called by the auditor

    async def ask(self, peer: str, question: Recompute) -> Found:
        """What a volunteer finds; raises NoAnswer."""
        return await self._endpoint.ask(peer, self, question, RECOMPUTE_SECONDS)


class Answering:
    """What the training does about questions.

    :param host: where the RecomputeService lives
    :param recompute: computes microbatches again; what cannot be had gives an empty answer
    """

    def __init__(self, host: Host, recompute: Callable[[Recompute], Found]) -> None:
        self._host, self._recompute = host, recompute
        self._next: Future[Asked] = host.call(RecomputeService.next)

    def turn(self) -> None:
        """Answer the question that waits, if one does."""
        if not self._next.done() or self._next.exception() is not None:  # a process that has died is found elsewhere
            return
        number, question = self._next.result()
        self._host.call(RecomputeService.give, number, self._recompute(question))
        self._next = self._host.call(RecomputeService.next)


def only_own(me: str, recompute: Callable[[Recompute], Found]) -> Callable[[Recompute], Found]:
    """For who does not check others: it still has to account for its own work."""
    return lambda question: recompute(question) if question.author == me else Found()
