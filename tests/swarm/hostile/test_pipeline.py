"""Hostile drivers and stage peers: training goes on unharmed, and what they did is counted by its kind."""

import asyncio
import copy
import itertools
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.records.stages import Begun
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.pipeline import driver as driver_module
from dedloc_kit.swarm.pipeline import service
from dedloc_kit.swarm.pipeline.begun import Batches
from dedloc_kit.swarm.pipeline.computing import Computed, Given
from dedloc_kit.swarm.pipeline.driver import Driver
from dedloc_kit.swarm.pipeline.protocol import (
    Answer,
    Call,
    Content,
    Held,
    Reply,
    Told,
    part_of,
    receive_hidden,
    receive_reply,
    send_call,
)
from dedloc_kit.swarm.pipeline.service import FollowingService, StageService
from dedloc_kit.swarm.remote import judging
from dedloc_kit.swarm.remote.judging import Refused
from dedloc_kit.swarm.remote.tensors import TensorHead, packed
from tests.swarm.pipeline.local_pipeline import LENGTH, ROWS, WIDTH, Pipeline, close, microbatches, plain_sum

HIDDEN = torch.randn(ROWS, LENGTH, WIDTH)
LARGE = HIDDEN.repeat(3, 1, 1)
CALL = Call(what="backward", stage=1, number=1, step=0, rows=ROWS, length=LENGTH)
BATCHES = microbatches(12)
Act = Callable[[Stream], Awaitable[None]]


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def content(hidden: Tensor = HIDDEN, gradient: Tensor | None = HIDDEN) -> Content:
    return Content(b"", packed(hidden), None if gradient is None else packed(gradient))


def changed(**fields: Any) -> Call:
    return CALL.model_copy(update=fields)


async def reply_to(pipeline: Pipeline, act: Act, peer: str = "1a", name: str = "m") -> Reply:
    endpoint = pipeline.network.endpoint(name)
    async with endpoint.open(peer, StageService) as stream:
        await act(stream)
        return await receive_reply(stream)


def sending(call: Call, what: Content) -> Act:
    return lambda stream: send_call(stream, call, what)


def train(pipeline: Pipeline, name: str = "d") -> Driver:
    """A global batch by an honest driver, which is right."""
    driver = pipeline.drive(name, BATCHES)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(BATCHES))
    assert pipeline.samples() == [12 * ROWS] * 3
    return driver


def infinite(where: float) -> Tensor:
    tensor = HIDDEN.clone()
    tensor[1, 2, 3] = where
    return tensor


async def long(stream: Stream) -> None:
    stream.writer.write((2**31).to_bytes(4, "big"))


async def long_tensor(stream: Stream) -> None:
    await stream.send(encode(CALL))
    await stream.send(encode(TensorHead(dtype="float32", shape=(ROWS, LENGTH, WIDTH))))
    await long(stream)


async def integers(stream: Stream) -> None:
    await stream.send(encode(CALL))
    head = TensorHead.model_construct(dtype="int64", shape=(ROWS, LENGTH, WIDTH))
    await stream.send(encode(head))


WRONG: dict[str, tuple[str, Act]] = {
    "another shape": ("shape", sending(CALL, content(HIDDEN[:, :2]))),
    "another width": ("shape", sending(CALL, content(torch.zeros(ROWS, LENGTH, WIDTH + 1)))),
    "a gradient of another shape": ("shape", sending(CALL, content(HIDDEN, HIDDEN[:1]))),
    "more tokens than agreed": (
        "shape",
        sending(changed(rows=3 * ROWS), content(LARGE, LARGE)),
    ),
    "another type": ("nonsense", integers),
    "NaN": ("values", sending(CALL, content(infinite(float("nan"))))),
    "infinity": ("values", sending(CALL, content(infinite(float("inf"))))),
    "a gradient with NaN": ("values", sending(CALL, content(HIDDEN, infinite(float("nan"))))),
    "a gradient that becomes infinite": ("values", sending(changed(exponent=900), content())),
    "absurd hidden states": ("absurd", sending(CALL, content(HIDDEN * 1e8))),
    "an absurd gradient": ("absurd", sending(changed(exponent=40), content())),
    "another stage": ("stage", sending(changed(stage=2), content())),
    "a step that is over": ("stale", sending(changed(step=2), content())),
    "a step to come": ("stale", sending(changed(step=4), content())),
    "2 GB": ("nonsense", long),
    "a tensor of 2 GB": ("nonsense", long_tensor),
    "no call": ("nonsense", lambda stream: stream.send(encode(Held(stage=1, step=0, waiting=0, session="")))),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_and_counted_and_not_added(pipeline: Pipeline, case: str) -> None:
    kind, act = WRONG[case]
    pipeline.endpoint("m")
    if "step" in case:
        for peer in pipeline.peers.values():
            peer.sums.step = 3
    replies = [pipeline.run(reply_to(pipeline, act))]
    if "step" not in case:
        train(pipeline)
    assert [reply.why for reply in replies if isinstance(reply, Refused)] == [kind]
    assert pipeline.peers["1a"].service.rejections.all() == {kind: 1}


@pytest.mark.parametrize(("stage", "name"), [(0, "input_ids"), (2, "labels")])
def test_ids_out_of_the_vocabulary_are_refused(pipeline: Pipeline, stage: int, name: str) -> None:
    pipeline.endpoint("m")
    batch = {**BATCHES[0], name: torch.full((ROWS, LENGTH), 11)}
    hidden = packed(HIDDEN) if stage else None
    gradient = packed(HIDDEN) if stage < 2 else None
    what = Content(part_of(batch, pipeline.stages[stage]), hidden, gradient)
    reply = pipeline.run(reply_to(pipeline, sending(changed(stage=stage), what), f"{stage}a"))
    assert isinstance(reply, Refused)
    assert reply.why == "batch"
    train(pipeline)


def test_who_sends_nonsense_again_is_refused_for_a_while_and_nobody_else(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.endpoint("m")
    nonsense = sending(CALL, content(infinite(float("nan"))))
    right = sending(changed(what="forward"), content(HIDDEN, None))
    told = [pipeline.run(reply_to(pipeline, nonsense)) for _ in range(2)]
    told.append(pipeline.run(reply_to(pipeline, right)))
    assert [reply.why for reply in told if isinstance(reply, Refused)] == ["values", "values", "barred"]
    train(pipeline)
    monkeypatch.setattr(judging, "BARRED", 0.0)
    assert isinstance(pipeline.run(reply_to(pipeline, right)), Answer)


@pytest.mark.parametrize("weights", [float("nan"), 1e30])
def test_who_drives_while_the_model_has_diverged_is_served_once_it_is_right_again(
    pipeline: Pipeline, weights: float
) -> None:
    pipeline.endpoint("m")
    hidden = HIDDEN * (1.0 if math.isnan(weights) else weights)
    what = Content(part_of(BATCHES[0], pipeline.stages[2]), packed(hidden), None)
    model = pipeline.peers["2a"].model
    right = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(weights)
    replies = [pipeline.run(reply_to(pipeline, sending(changed(stage=2), what), "2a")) for _ in range(5)]
    model.load_state_dict(right)
    told = [reply.why for reply in replies if isinstance(reply, Refused)]
    assert told == 5 * ["failed" if math.isnan(weights) else "absurd"]
    again = sending(changed(stage=2), Content(part_of(BATCHES[0], pipeline.stages[2]), packed(HIDDEN), None))
    assert isinstance(pipeline.run(reply_to(pipeline, again, "2a")), Answer)


def test_a_gradient_far_larger_than_is_usual_is_not_added(pipeline: Pipeline) -> None:
    pipeline.slow("1b")  # so that the other one knows what is usual
    train(pipeline)
    pipeline.endpoint("m")
    reply = pipeline.run(reply_to(pipeline, sending(CALL, content(HIDDEN, HIDDEN * 1e4))))
    assert isinstance(reply, Refused)
    assert reply.why == "absurd"
    assert close(pipeline.sums(), plain_sum(BATCHES))


def test_a_number_that_is_used_twice_adds_once_and_is_answered_alike(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")

    async def gradient() -> Tensor:
        async with pipeline.network.endpoint("m").open("1a", StageService) as stream:
            await send_call(stream, CALL, content())
            assert isinstance(await receive_reply(stream), Answer)
            return await receive_hidden(stream, CALL, pipeline.stages[1])

    first, sums = pipeline.run(gradient()), pipeline.peers["1a"].sums
    once = [each.clone() for each in sums.gradients]
    assert torch.equal(pipeline.run(gradient()), first)
    assert sums.samples == ROWS
    assert all(torch.equal(one, other) for one, other in zip(once, sums.gradients, strict=True))


def test_the_number_of_another_drivers_microbatch_takes_nothing_from_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "FIRST_NUMBER_BITS", 0)  # so that the numbers can be foreseen
    pipeline.endpoint("m")
    for number in range(1, 13):
        for peer in ("1a", "1b"):
            reply = reply_to(pipeline, sending(changed(number=number), content()), peer)
            assert isinstance(pipeline.run(reply), Answer)
    for each in pipeline.of(1):
        each.sums.samples = 0
        for gradient in each.sums.gradients:
            gradient.zero_()
    train(pipeline)


def test_nobody_adds_more_than_a_driver_may_in_a_step(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")
    peer = pipeline.peers["1a"]
    peer._most = 2 * ROWS
    told = [pipeline.run(reply_to(pipeline, sending(changed(number=n), content()))) for n in (1, 2, 3)]
    assert [getattr(reply, "why", "") for reply in told] == ["", "", "full"]
    assert peer.sums.samples == 2 * ROWS


def test_what_comes_once_the_batch_is_fixed_is_not_added(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")
    pipeline.peers["1a"].sums.closed = True
    reply = pipeline.run(reply_to(pipeline, sending(CALL, content())))
    assert isinstance(reply, Refused)
    assert reply.why == "closed"
    assert not pipeline.peers["1a"].sums.samples


def test_a_call_that_stalls_is_given_up(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SILENT_SECONDS", 0.3)
    pipeline.endpoint("m")

    async def stall() -> None:
        async with pipeline.network.endpoint("m").open("1a", StageService) as stream:
            await stream.send(encode(CALL))
            with pytest.raises((OSError, EOFError)):
                await receive_reply(stream)

    pipeline.run(stall())
    assert pipeline.peers["1a"].service.rejections.all() == {"silent": 1}
    monkeypatch.undo()
    train(pipeline)


def test_a_thousand_streams_of_one_peer_leave_room_for_others(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")
    peer = pipeline.peers["1a"]

    async def flood(stack: AsyncExitStack) -> None:
        for _ in range(1000):
            await stack.enter_async_context(pipeline.network.endpoint("m").open("1a", StageService))
        while peer.service.rejections.all()["full"] < 1000 - 16:
            await asyncio.sleep(0.01)

    stack = AsyncExitStack()
    pipeline.run(flood(stack))
    try:
        train(pipeline)
    finally:
        pipeline.run(stack.aclose())


def test_what_one_driver_has_computed_at_once_is_bounded(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")
    peer, free = pipeline.peers["1a"], threading.Event()
    peer.before = lambda given: free.wait(30)

    async def many() -> list[Reply]:
        calls = [reply_to(pipeline, sending(changed(what="forward"), content(HIDDEN, None))) for _ in range(12)]
        tasks = [asyncio.create_task(call) for call in calls]
        while peer.service.rejections.all()["full"] < 12 - 4:
            await asyncio.sleep(0.01)
        free.set()
        return await asyncio.gather(*tasks)

    told = pipeline.run(many())
    assert sorted(getattr(reply, "why", "") for reply in told) == [""] * 4 + ["full"] * 8


# Stage peers


def nan(computed: Computed) -> Computed:
    assert computed.output is not None
    return computed._replace(output=computed.output * float("nan"))


def other_shape(computed: Computed) -> Computed:
    assert computed.output is not None
    return computed._replace(output=computed.output[:, :2])


def with_loss(computed: Computed) -> Computed:
    return computed._replace(loss=1.0)


@pytest.mark.parametrize("lie", [nan, other_shape, with_loss])
def test_a_stage_peer_that_answers_nonsense_is_left(pipeline: Pipeline, lie: Callable[[Computed], Computed]) -> None:
    liar = pipeline.peers["1a"]
    honest: Callable[[Given], Computed] = liar.compute

    def compute(given: Given) -> Computed:
        if given.call.what == "backward":
            return honest(given)
        return lie(honest(given))

    liar.compute = compute  # type: ignore[method-assign]
    pipeline.slow("1b")
    train(pipeline)
    assert liar.calls
    assert not pipeline.gone


def test_what_a_peer_had_counts_once_whose_answers_are_of_no_use(pipeline: Pipeline) -> None:
    """It may have added the microbatch, and has; once it is heard again it begins anew."""
    liar, lied = pipeline.peers["1b"], list[int]()
    honest: Callable[[Given], Computed] = liar.compute

    def compute(given: Given) -> Computed:
        if given.call.what == "forward" or given.call.number not in (lied or [given.call.number]):
            return honest(given)
        lied.append(given.call.number)
        return with_loss(honest(given))

    liar.compute = compute  # type: ignore[method-assign]
    pipeline.slow("1a")
    driver, session = pipeline.drive("d", BATCHES), liar.session
    pipeline.until(lambda: "1b" in pipeline.gone and liar.session != session)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(BATCHES))
    assert len(lied) == 3


async def take_for_gone(pipeline: Pipeline, name: str, session: str) -> str:
    """Say so to 1a; returns in which session it is then."""
    told = Told(begun=Begun(step=0, samples=0, final=True), gone=session)
    async with pipeline.network.endpoint(name).open("1a", FollowingService, encode(told)) as stream:
        return (await stream.receive_record(Held)).session


def test_drivers_that_take_a_stage_peer_for_gone_drop_nothing_of_others(pipeline: Pipeline) -> None:
    """Four keys dropped all sums every 15 seconds."""
    peer = pipeline.peers["1a"]
    pipeline.slow("1b")
    session, driver = peer.session, train(pipeline)
    assert (added := peer.sums.samples) > 0
    for name in "mnop":
        pipeline.endpoint(name)
        assert pipeline.run(take_for_gone(pipeline, name, session)) not in ("", session)
    assert (peer.session, peer.sums.samples) == (session, added)
    assert close(pipeline.sums(), plain_sum(BATCHES))
    assert not driver.again
    pipeline.run(take_for_gone(pipeline, "d", session))
    assert (peer.session != session, peer.sums.samples) == (True, 0), "all is its own"


def test_a_driver_takes_a_stage_peer_for_gone_once_in_a_while(pipeline: Pipeline) -> None:
    pipeline.endpoint("m")
    sessions = [pipeline.peers["1a"].session]
    for _ in range(3):
        sessions.append(pipeline.run(take_for_gone(pipeline, "m", sessions[-1])))
    assert sessions[0] != sessions[1] == sessions[2] == sessions[3]
    train(pipeline)


@pytest.mark.parametrize("final", [True, False])
def test_claims_that_change_again_and_again_hold_up_no_driver(pipeline: Pipeline, final: bool) -> None:
    """A batch seemed to be full of them for ever."""
    now = itertools.count(step=100.0)

    def claims() -> dict[str, Begun]:
        return {"m": Begun(step=0, samples=12 * ROWS + next(changing), final=final)}

    changing = itertools.count()
    driver = pipeline.drive("d", BATCHES, claims=claims, clock=lambda: next(now))
    pipeline.until(lambda: driver.driven == 12 * ROWS)
    assert close(pipeline.sums(), plain_sum(BATCHES))


def test_a_claim_that_changes_again_and_again_holds_no_batch_longer_than_it_took_to_fill() -> None:
    now, seconds, full = [0.0], 0, Begun(step=0, samples=10, final=True)
    batches = Batches(10, lambda: now[0])
    while batches.wanted([full, Begun(step=0, samples=seconds // 100, final=False)], 0) is not None:
        now[0], seconds = now[0] + 1.0, seconds + 1
        assert seconds < 1000


def test_a_driver_that_claims_more_than_there_can_be_is_not_waited_for(pipeline: Pipeline) -> None:
    drivers = pipeline.peers["1a"].drivers
    pipeline.endpoint("m")

    async def claim(begun: Begun) -> None:
        async with pipeline.network.endpoint("m").open("1a", FollowingService, encode(Told(begun=begun))) as stream:
            await stream.receive_record(Held)
            while drivers._lines.get("m") != begun:
                await asyncio.sleep(0.01)
            told.append(drivers.told())

    told: list[dict[str, Begun]] = []
    right = Begun(step=0, samples=5, final=True)
    for begun in (right, Begun(step=0, samples=2**50, final=True)):
        pipeline.run(claim(begun))
    assert told == [{"m": right}, {}]
