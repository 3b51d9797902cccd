"""An answer through the servers of a swarm is that of the whole model, whichever of them die."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.swarm.serving.client import leg
from dedloc_kit.swarm.serving.client.client import SessionFailed
from dedloc_kit.swarm.serving.client.leg import Leg
from dedloc_kit.swarm.serving.server.sessions import Held
from tests.blocks import tiny
from tests.blocks.test_ends import WAYS, written
from tests.swarm.serving.local_swarm import At, Swarm


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


@pytest.fixture(scope="module")
def windows() -> Any:
    return tiny.model("Gemma3Text")


@pytest.fixture
def swarm(whole: Any) -> Iterator[Swarm]:
    swarm = Swarm(whole)
    try:
        yield swarm
    finally:
        swarm.close()


def test_through_two_servers_it_is_the_same(swarm: Swarm) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)
    assert torch.equal(written(swarm.model()), written(swarm.whole))


@pytest.mark.parametrize(
    ("way", "step"), [*((way, 6) for way in WAYS), ("greedy", 1), ("greedy", 2), ("beams", 2), ("padded", 2)]
)
def test_a_server_dies_and_each_way_to_generate_writes_the_same(swarm: Swarm, way: str, step: int) -> None:
    for name in ("a", "b"):
        swarm.add(name, 0, 2)
        swarm.add(name.upper(), 2, 4)
    swarm.before_step = lambda number: cut(swarm, -1) if number == step else None
    assert torch.equal(written(swarm.model(), **WAYS[way]), written(swarm.whole, **WAYS[way]))
    assert swarm.sessions[0].recoveries == (step > 1)


def cut(swarm: Swarm, *places: int) -> None:
    """These servers of the route die."""
    route = swarm.sessions[-1].route
    for server in [route[place].server for place in places] if route else ["a"]:
        swarm.cut(server)


@pytest.mark.parametrize("places", [(0,), (1, 2), (0, 2), (0, 1, 2)])
def test_any_of_three_servers_die_within_a_beam_search(swarm: Swarm, places: tuple[int, ...]) -> None:
    for name in ("a", "b"):
        swarm.add(name, 0, 1)
        swarm.add(name + name, 1, 3)
        swarm.add(name.upper(), 3, 4)
    swarm.before_step = lambda number: cut(swarm, *places) if number == 5 else None
    assert torch.equal(written(swarm.model(), num_beams=3), written(swarm.whole, num_beams=3))
    assert swarm.sessions[0].recoveries >= 1


def test_servers_die_twice_in_a_session(swarm: Swarm) -> None:
    for name in ("a", "b", "c"):
        swarm.add(name, 0, 2)
        swarm.add(name.upper(), 2, 4)
    swarm.before_step = lambda number: cut(swarm, -1 if number == 3 else 0) if number in (3, 7) else None
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert swarm.sessions[0].recoveries == 2


def test_two_smaller_spans_and_parts_of_larger_ones_take_the_place_of_one(swarm: Swarm) -> None:
    swarm.add("a", 0, 1)
    swarm.add("b", 1, 4)

    def replaced(number: int) -> None:
        if number == 4:
            swarm.add("c", 0, 2)
            swarm.add("d", 2, 4)
            swarm.cut("b")

    swarm.before_step = replaced
    assert torch.equal(written(swarm.model(), num_beams=3), written(swarm.whole, num_beams=3))
    assert [str(hop.span) for hop in swarm.sessions[0].route] == ["0:1", "1:2", "2:4"]


@pytest.mark.parametrize("way", ["prompt lookup", "beams"])
def test_where_windows_slide_a_server_dies_and_it_is_the_same(windows: Any, way: str) -> None:
    with closing(Swarm(windows)) as swarm:
        for name in ("a", "b"):
            swarm.add(name, 0, 2)
            swarm.add(name.upper(), 2, 4)
        swarm.before_step = lambda number: cut(swarm, 1) if number == 4 else None
        assert torch.equal(written(swarm.model(), **WAYS[way]), written(windows, **WAYS[way]))
        assert swarm.sessions[0].recoveries == 1


@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_server_dies_while_it_computes(swarm: Swarm, name: str, call: int) -> None:
    spans = {"a": (0, 2), "b": (2, 4)}
    dying = At(call, lambda: swarm.network.cut(name))
    for server, span in spans.items():
        swarm.add(server, *span, dying if server == name else None)
    swarm.before_step = lambda number: swarm.replace(name, "c") if number == 1 else None
    assert torch.equal(written(swarm.model(), num_beams=3), written(swarm.whole, num_beams=3))
    assert "c" in [hop.server for hop in swarm.sessions[0].route]
    dying.close()


def test_a_server_that_says_nothing_is_left(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "MIN_PATIENCE", 2.0)
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)

    def frozen(number: int) -> None:
        if number == 3:
            swarm.add("c", 2, 4)
            monkeypatch.setattr(swarm.services["b"], "take", lambda *_: asyncio.Event().wait())

    swarm.before_step = frozen
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert [hop.server for hop in swarm.sessions[0].route] == ["a", "c"]


def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a client turns to each server."""
    counted, ask = Counter[str](), Leg.ask

    async def counting(self: Leg, *args: Any) -> None:
        counted[self.server] += 1
        await ask(self, *args)

    monkeypatch.setattr(Leg, "ask", counting)
    return counted


def test_servers_hand_on_what_they_have_computed(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)
    counted = asked(monkeypatch)
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert counted == {"a": 12}


def test_where_servers_do_not_reach_each_other_the_client_hands_it_on(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)
    monkeypatch.setattr(swarm.services["b"].push, "serve", lambda *_: asyncio.sleep(0))
    counted = asked(monkeypatch)
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert counted == {"a": 12, "b": 12}
    assert swarm.sessions[0].recoveries == 0


def test_a_server_that_moves_sends_its_sessions_elsewhere(swarm: Swarm) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)

    def moves(number: int) -> None:
        server = swarm.services["b"]
        if number == 3 and server.held:
            swarm.add("c", 2, 4)
            server.dismiss(server.held[0])
            server.hold()

    swarm.before_step = moves
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert [hop.server for hop in swarm.sessions[0].route] == ["a", "c"]


def test_a_session_stays_with_the_weights_with_which_it_began(swarm: Swarm) -> None:
    swarm.add("a", 0, 2)
    server = swarm.add("b", 2, 4)
    other = Held(Span.of(tiny.model("Llama"), 0, 2), "cd" * 32)
    swarm.before_step = lambda number: setattr(server, "held", other) if number == 3 else None
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert swarm.sessions[0].recoveries == 0


def test_without_servers_it_says_which_layers_nobody_serves(swarm: Swarm) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 3)
    with pytest.raises(NoRoute, match="the layers 3:4"):
        written(swarm.model())


def test_where_all_fail_it_says_who_failed(swarm: Swarm) -> None:
    for number in range(8):
        swarm.add(f"dead{number}", 0, 4)
        swarm.cut(f"dead{number}")
    with pytest.raises(SessionFailed, match="6 servers have failed, the last one: dead"):
        written(swarm.model())


def test_a_line_that_breaks_once_is_opened_again_where_there_is_no_other_server(swarm: Swarm) -> None:
    server = swarm.add("a", 0, 4)

    async def broken() -> None:
        for session in server.sessions.values():
            session.stream.close()

    swarm.before_step = lambda number: swarm.run(broken()) if number == 3 else None
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert swarm.sessions[0].recoveries == 1


def test_a_step_that_is_broken_off_leaves_no_trace(swarm: Swarm) -> None:
    remote = swarm.remote()
    alone = CachedSpan(Span.of(swarm.whole, 0, 4))
    hidden = torch.randn(2, 3, 32)
    steps = [(hidden, Past(0)), (hidden[:, :1], Past(3, (1, 0))), (hidden[:, 1:2], Past(4, (1, 1)))]

    async def cancelled() -> list[torch.Tensor]:
        outputs = [await remote.step(steps[0][0], None, None, steps[0][1])]
        tasks.append(asyncio.create_task(remote.step(steps[1][0], None, None, steps[1][1])))
        with suppress(asyncio.CancelledError):
            await tasks[0]
        assert tasks[0].cancelled()
        return outputs + [await remote.step(given, None, None, past) for given, past in steps[1:]]

    tasks = list[asyncio.Task[torch.Tensor]]()
    computing = At(2, lambda: tasks[0].cancel())
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4, computing)
    outputs = swarm.run(cancelled())
    for output, (given, past) in zip(outputs, steps, strict=True):
        assert torch.allclose(output, alone(given, None, None, past), atol=1e-5)
    computing.close()


@pytest.mark.parametrize(("form", "tolerance"), [("float32", 1e-5), ("float16", 1e-2), ("8bit", 3e-2)])
def test_gradients_go_back_through_servers_that_may_have_been_replaced(
    swarm: Swarm, form: str, tolerance: float
) -> None:
    hidden, gradient = torch.randn(2, 5, 32), torch.randn(2, 5, 32) * 1e-6
    mask, positions = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]), torch.arange(5)[None]
    given = hidden.clone().requires_grad_()
    expected = Span.of(swarm.whole, 0, 4).forward(given, mask, positions)
    expected.backward(gradient)
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)
    remote = swarm.remote(form=form)
    output, inputs = swarm.run(remote.forward(hidden, mask, positions))
    swarm.cut("b")
    swarm.add("c", 2, 3)
    swarm.add("d", 3, 4)
    found, _ = swarm.run(remote.backward(inputs, mask, positions, gradient))
    assert given.grad is not None
    for one, other in ((output, expected), (found, given.grad)):
        assert (one.float() - other).norm() <= tolerance * other.norm()


def test_with_half_the_bits_an_answer_after_a_death_is_the_one_without(swarm: Swarm) -> None:
    for name in ("a", "b"):
        swarm.add(name, 0, 2)
        swarm.add(name.upper(), 2, 4)
    undisturbed = written(swarm.model(form="float16"))
    swarm.before_step = lambda number: cut(swarm, 1) if number == 5 else None
    assert torch.equal(written(swarm.model(form="float16")), undisturbed)


def test_a_server_that_pushes_nonsense_is_left(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.add("a", 0, 2)
    swarm.add("b", 2, 4)
    swarm.before_step = lambda number: turned() if number == 3 else None

    def turned() -> None:
        swarm.replace("a", "c")
        service = swarm.services["a"]
        push = service._push
        monkeypatch.setattr(service, "_push", lambda session, step, output: push(session, step, output * math.nan))

    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert [hop.server for hop in swarm.sessions[0].route] == ["c", "b"]
    assert swarm.services["b"].rejections.drain() == {"values": 1}


def test_a_server_counts_the_tokens_times_layers_that_it_has_computed(swarm: Swarm) -> None:
    swarm.add("a", 0, 1)
    swarm.add("b", 1, 4)
    model = swarm.model()
    written(model, num_beams=3)
    inputs = torch.randn(2, 5, swarm.whole.config.hidden_size, requires_grad=True)
    model(inputs_embeds=inputs, use_cache=False).logits.sum().backward()
    served = {name: service.served for name, service in swarm.services.items() if service.held}
    assert served["a"] > 2 * 2 * 5
    assert served == {"a": served["a"], "b": 3 * served["a"]}
