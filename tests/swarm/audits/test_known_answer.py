"""A newcomer learns whether its machine computes rightly, from an answer that the coordinator knows."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.train.computing.recomputing import Again, Part, Wanted, on_cpu
from dedloc_kit.learning.train.state.sketch import NUMBERS
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.audits import known_answer
from dedloc_kit.swarm.audits.known_answer import MOST_EACH, Knowing, KnownAnswers, Trial, known_question
from dedloc_kit.swarm.audits.projections import PROJECTIONS
from dedloc_kit.swarm.audits.questions import AskKnown, Known
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, NoAnswer, encode
from dedloc_kit.swarm.trust.pledge import Work
from tests.hang import HANG
from tests.swarm.audits.test_recomputing import Volunteer
from tests.swarm.local_network import LocalNetwork
from tests.text_runs import text_run, write_text

LARGEST = Known(
    projections=((1.1e300,) * PROJECTIONS,), norms=(1.1e300,), weights=(1.1e300,), sketch=(1.1e300,) * NUMBERS
)


class Meeting:
    """The organizer's service and those of others."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.organizer = KnownAnswers(self.network.endpoint("organizer"), "organizer", "organizer")

    async def newcomer(self, name: str, organizer: str = "organizer") -> KnownAnswers:
        service = KnownAnswers(self.network.endpoint(name), organizer, name)
        await self.network.endpoint(name).add(service)
        return service


def meet(do: Callable[[Meeting], Awaitable[None]]) -> None:
    async def begin() -> None:
        meeting = Meeting()
        await meeting.network.endpoint("organizer").add(meeting.organizer)
        async with asyncio.timeout(HANG):
            await do(meeting)

    in_own_loop(begin())


def test_a_hundred_newcomers_cost_one_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(meeting: Meeting) -> None:
        newcomers = [await meeting.newcomer(f"new{number}") for number in range(100)]
        asking = [asyncio.create_task(each.ask(7)) for each in newcomers]
        assert await meeting.organizer.next() == 7
        other = await meeting.newcomer("other")
        assert await other.ask(8) == Known(), "of another step meanwhile nobody can say"
        meeting.organizer.give(LARGEST)
        assert await asyncio.gather(*asking) == [LARGEST] * 100, "also the largest that there is"
        assert await other.ask(7) == LARGEST
        assert meeting.organizer._waiting.empty()

    assert len(encode(LARGEST)) < MAX_RECORD_BYTES
    meet(ask)


def test_what_could_not_be_said_is_computed_when_it_is_asked_again_and_old_answers_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_answer, "MAX_KNOWN", 2)

    async def ask(meeting: Meeting) -> None:
        async def answered(step: int, known: Known) -> None:
            asking = asyncio.create_task((await meeting.newcomer(f"{step} {known is LARGEST}")).ask(step))
            assert await meeting.organizer.next() == step
            meeting.organizer.give(known)
            assert await asking == known

        await answered(1, Known())
        for step in (1, 2, 3):
            await answered(step, LARGEST)
        assert list(meeting.organizer._answers) == [2, 3]

    meet(ask)


def test_who_asks_without_end_is_not_answered_any_more_for_a_while_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_answer, "MOST_PEERS", 2)

    async def ask(meeting: Meeting) -> None:
        meeting.organizer._answers[1] = LARGEST
        mallory, alice, third = [await meeting.newcomer(name) for name in ("mallory", "alice", "third")]
        for _ in range(MOST_EACH):
            assert await mallory.ask(1) == LARGEST
        for step in range(10):
            with pytest.raises(NoAnswer):
                await mallory.ask(step)
        assert meeting.organizer._waiting.empty(), "nor does anything of it cost a computation"
        assert await alice.ask(1) == LARGEST
        with pytest.raises(NoAnswer):
            await third.ask(1)
        assert await alice.ask(1) == LARGEST, "whoever is counted already"
        monkeypatch.setattr(known_answer, "EACH_SECONDS", 0.0)
        assert await third.ask(1) == await mallory.ask(1) == LARGEST

    meet(ask)


def test_a_member_is_no_coordinator_and_one_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answer, "KNOWN_SECONDS", 0.5)

    async def ask(meeting: Meeting) -> None:
        alice = await meeting.newcomer("alice")
        with pytest.raises(NoAnswer):
            await (await meeting.newcomer("bob", organizer="alice")).ask(1)
        assert alice._waiting.empty()
        with pytest.raises(NoAnswer):
            await alice.ask(1)
        with pytest.raises(ValueError, match="step"):
            AskKnown.parse({"step": -1})

    meet(ask)


# What a newcomer computes


class Here:
    """As a Host, in a thread of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: KnownAnswers) -> None:
        self._loop, self._service = loop, service

    def call(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        async def do() -> Any:
            result = method(self._service, *arguments)
            try:
                return await result if isawaitable(result) else result
            except asyncio.CancelledError:
                raise RuntimeError("the call was cancelled") from None

        return asyncio.run_coroutine_threadsafe(do(), self._loop)


@contextmanager
def hosts() -> Iterator[tuple[Host, Host]]:
    """Those of the coordinator and of a newcomer, which reach each other."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def made() -> tuple[KnownAnswers, KnownAnswers]:
        meeting = Meeting()
        await meeting.network.endpoint("organizer").add(meeting.organizer)
        return meeting.organizer, await meeting.newcomer("newcomer")

    async def ended() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    try:
        services = asyncio.run_coroutine_threadsafe(made(), loop).result(HANG)
        yield cast("tuple[Host, Host]", tuple(Here(loop, service) for service in services))
    finally:
        asyncio.run_coroutine_threadsafe(ended(), loop).result(HANG)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Newcomer(Volunteer):
    """Before its first microbatch."""

    def trial(self, host: Host) -> Trial:
        question = partial(known_question, self.run, "organizer", self.parameters.size)
        return Trial(host, question, self.recomputer(), self.parameters)


class Knows(Volunteer):
    """The coordinator."""

    def serve(self, host: Host) -> None:
        again = on_cpu(self.state, self.loss, self.prepare)
        question = partial(known_question, self.run, "organizer", self.parameters.size)
        Knowing(host, question, Recomputer(self.run, None, self.parameters, again), self.parameters)


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    write_text(tmp_path)
    return text_run(tmp_path, "causal").model_copy(update={"trust": TrustConfig(checks="on")})


def breaking(again: Again, how: Callable[[Part], Part]) -> tuple[Again, list[Wanted]]:
    """A device that computes like this one and then breaks it, and what it was asked."""
    asked = list[Wanted]()

    def compute(wanted: Wanted) -> Part | None:
        asked.append(wanted)
        part = again(wanted)
        return None if part is None else how(part)

    return compute, asked


BROKEN: dict[str, Callable[[Part], Part]] = {
    "another sign": lambda part: part._replace(values=-part.values),
    "nothing": lambda part: part._replace(values=0 * part.values, norm=0.0),
    "too long": lambda part: part._replace(values=1.1 * part.values, norm=1.1 * part.norm),
    "elsewhere": lambda part: part._replace(norm=1.1 * part.norm),
    "noise": lambda part: part._replace(
        values=part.values + 0.2 * part.values.std() * torch.randn(len(part.values), generator=torch.Generator())
    ),
    "another weight": lambda part: part._replace(weight=part.weight + 1),
}


@pytest.mark.usefixtures("one_thread")
def test_whoever_computes_wrongly_twice_fails_and_nobody_else(run: RunConfig, tmp_path: Path) -> None:
    newcomer, knows, stop = Newcomer(run, tmp_path, "newcomer"), Knows(run, tmp_path, "organizer"), threading.Event()
    with hosts() as (there, here), newcomer.at_work(2):
        knows.serve(there)
        ((_, again),) = newcomer.cards.each()
        faults = iter([BROKEN["nothing"]])
        passing, asked = breaking(again, lambda part: next(faults, lambda same: same)(part))
        computing = [
            ("right", again),
            ("a passing fault", passing),
            (
                "in half precision",
                breaking(again, lambda part: part._replace(values=part.values.bfloat16().float()))[0],
            ),
            ("too little memory", lambda _: None),
            *((name, breaking(again, how)[0]) for name, how in BROKEN.items()),
        ]
        trial, held = newcomer.trial(here), newcomer.held()
        trial.prepare()
        for step in (0, 1):
            assert trial.failed(step, computing, stop) == list(BROKEN)
            newcomer.step()
            knows.step()
        assert len(asked) == 3, "once and again, and once in the second step"
        assert [Work.read_all(known_question(run, "organizer", 9, 1).work)[0].samples] == [
            len(asked[0].batch["input_ids"])
        ]
        assert all(map(torch.equal, held, newcomer.held())), "nothing of it stays"


@pytest.mark.usefixtures("one_thread")
def test_where_the_coordinator_cannot_say_a_newcomer_goes_on(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer, knows, stop = Newcomer(run, tmp_path, "newcomer"), Knows(run, tmp_path, "organizer"), threading.Event()
    with hosts() as (_, silent), hosts() as (there, here), newcomer.at_work(2):
        broken, asked = breaking(newcomer.cards.each()[0][1], BROKEN["another sign"])
        trial, computing = newcomer.trial(silent), [("broken", broken)]
        with monkeypatch.context() as patched:
            patched.setattr(known_answer, "KNOWN_SECONDS", 0.5)
            assert not trial.failed(0, computing, stop), "nobody answers"
        began = time.monotonic()
        threading.Timer(0.2, stop.set).start()
        assert not trial.failed(0, computing, stop), "it is to leave"
        assert time.monotonic() - began < known_answer.KNOWN_SECONDS / 2
        stop.clear()
        trial = newcomer.trial(here)
        knows.serve(there)
        newcomer.step()
        assert not trial.failed(1, computing, stop), "it has not come so far"
        knows.step()
        newcomer.state.flat[3] += 0.1
        newcomer.parameters.keep()
        assert not trial.failed(1, computing, stop), "it has come to other parameters"
        assert len(asked) == 4, "each time once"
        newcomer.state.flat.copy_(knows.state.flat)
        newcomer.parameters.keep()
        assert trial.failed(1, computing, stop) == ["broken"], "now it can say"


def test_an_answer_of_another_length_accuses_nobody() -> None:
    right = LARGEST.model_copy(update={"projections": ((1.0,) * PROJECTIONS,), "norms": (1.0,), "weights": (1.0,)})
    wrong = right.model_copy(update={"projections": ((-1.0,) * PROJECTIONS,)})
    assert known_answer._wrong(right, wrong)
    assert not known_answer._wrong(right, right)
    for longer in ({"norms": (1.0, 1.0)}, {"weights": ()}, {"projections": 2 * right.projections}, {"projections": ()}):
        assert not known_answer._wrong(right.model_copy(update=longer), wrong)
        assert not known_answer._wrong(right, wrong.model_copy(update=longer))


def test_the_question_is_the_same_for_all_of_a_run_and_another_in_each_step(run: RunConfig) -> None:
    size = 10 * 2**17 + 5
    asked = [known_question(run, "organizer", size, step) for step in range(40)]
    assert asked[3] == known_question(run, "organizer", size, 3)
    assert len({question.seed for question in asked}) == 40
    assert len({question.begin for question in asked}) > 5, "all of the gradient is looked at in turn"
    assert {Work.read(question.work)[:4] for question in asked} == {(0, None, 0, known_answer.SAMPLES)}
    together = known_question(run.model_copy(update={"microbatch": 6}), "organizer", size, 0)
    assert Work.read(together.work).samples == 6
