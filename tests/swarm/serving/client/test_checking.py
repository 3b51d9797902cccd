"""Who answers wrongly is found by others' answers, and the session goes on without it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.serving.config import WeightFormat
from dedloc_kit.swarm.serving.client.checking import FIRST, Checker, difference
from dedloc_kit.swarm.serving.client.client import RemoteSession
from tests.blocks import tiny
from tests.blocks.tuned import adapter_for
from tests.hang import HANG
from tests.swarm.serving.local_swarm import Swarm

TEXT = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(1))
WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "noise": lambda output: torch.randn_like(output) * output.std(),
    "nothing computed": lambda output: output * 0.5,
}


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    swarm = Swarm(tiny.model("Llama"))
    yield swarm
    swarm.close()


class Checked:
    """A session whose servers are checked."""

    def __init__(
        self, swarm: Swarm, share: float = 0.0, form: WeightFormat = "float32", adapter: Adapter | None = None
    ) -> None:
        self.swarm, self.told = swarm, list[str]()
        self.session: RemoteSession = swarm.remote(adapter=adapter)
        endpoint, avoided = self.session._opener, self.session._avoided
        servers = swarm.servers
        self.checker = Checker(
            endpoint, "client", lambda _: servers(), lambda _: form, avoided, self.told.append, share
        )
        self.session._checker = self.checker

    def step(self, number: int) -> torch.Tensor:
        hidden = TEXT if number == 0 else TEXT[:, number % 6 : number % 6 + 1]
        past = 0 if number == 0 else 5 + number
        output: torch.Tensor = self.swarm.run(self.session.step(hidden, None, None, Past(past)))
        self.wait()
        return output

    def wait(self) -> None:
        deadline = time.monotonic() + HANG
        while self.checker._under_way:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def lies(swarm: Swarm, name: str, how: Callable[[torch.Tensor], torch.Tensor], after: int = 0) -> None:
    """From its so many-th step on this server answers something else."""
    service, steps = swarm.services[name], 0
    honest = service._computed

    async def computed(*asked: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        output = await honest(*asked)
        return how(output) if steps > after else output

    service._computed = computed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("how", WRONG)
def test_who_answers_wrongly_from_the_beginning_is_found_with_its_first_answers(swarm: Swarm, how: str) -> None:
    for name, begin, end in (("a", 0, 2), ("liar", 2, 4), ("c", 2, 4), ("d", 0, 4)):
        swarm.add(name, begin, end)
    swarm.slow |= {"c", "d"}
    lies(swarm, "liar", WRONG[how])
    checked = Checked(swarm)
    for number in range(3):
        checked.step(number)
    assert set(checked.checker.wrong) == {"liar"}
    assert "answered wrongly for the layers 2:4" in checked.told[0]
    assert "liar" not in {hop.server for hop in checked.session.route}


def test_what_came_of_wrong_answers_is_forgotten(swarm: Swarm) -> None:
    for name, begin, end in (("liar", 0, 2), ("b", 2, 4), ("c", 0, 2), ("d", 0, 2)):
        swarm.add(name, begin, end)
    swarm.slow |= {"c", "d"}
    lies(swarm, "liar", torch.zeros_like)
    checked, honest = Checked(swarm), CachedSpan(Span.of(swarm.whole, 0, 4))
    for number in range(3):
        output = checked.step(number)
        at = 0 if number == 0 else 5 + number
        hidden = TEXT if number == 0 else TEXT[:, number % 6 : number % 6 + 1]
        right = honest(hidden, None, torch.arange(at, at + hidden.shape[1])[None], Past(at))
    assert set(checked.checker.wrong) == {"liar"}
    torch.testing.assert_close(output, right, rtol=1e-4, atol=1e-5)


def test_who_begins_to_lie_later_is_found_among_the_steps_that_are_drawn(swarm: Swarm) -> None:
    for name, begin, end in (("liar", 0, 4), ("b", 0, 4), ("c", 0, 4)):
        swarm.add(name, begin, end)
    swarm.slow |= {"b", "c"}
    lies(swarm, "liar", torch.zeros_like, after=FIRST + 1)
    checked, honest = Checked(swarm, share=0.5), CachedSpan(Span.of(swarm.whole, 0, 4))
    steps = 0
    while not checked.checker.wrong:
        checked.step(steps)
        steps += 1
        assert steps < 50
    assert steps > FIRST
    output = checked.step(steps)
    for number in range(steps + 1):
        at = 0 if number == 0 else 5 + number
        hidden = TEXT if number == 0 else TEXT[:, number % 6 : number % 6 + 1]
        right = honest(hidden, None, torch.arange(at, at + hidden.shape[1])[None], Past(at))
    torch.testing.assert_close(output, right, rtol=1e-4, atol=1e-5)


def test_who_has_answered_wrongly_is_not_asked_even_if_nobody_else_is_there(swarm: Swarm) -> None:
    for name in ("liar", "b", "c"):
        swarm.add(name, 0, 4)
    swarm.slow |= {"b", "c"}
    lies(swarm, "liar", torch.zeros_like)
    checked = Checked(swarm)
    checked.step(0)
    assert set(checked.checker.wrong) == {"liar"}
    swarm.cut("b")
    swarm.cut("c")
    with pytest.raises(NoRoute, match="0:4"):
        checked.step(1)


def test_a_server_that_checks_wrongly_is_found_and_not_the_one_that_is_checked(swarm: Swarm) -> None:
    for name in ("a", "b", "c"):
        swarm.add(name, 0, 4)
    swarm.slow |= {"b", "c"}

    checked = Checked(swarm)
    (held,) = swarm.services["b"].held
    held.span.forward = lambda hidden, *_: torch.zeros_like(hidden)  # type: ignore[method-assign]
    checked.step(0)
    assert set(checked.checker.wrong) == {"b"}


def test_honest_servers_agree_and_two_alone_decide_nothing(swarm: Swarm) -> None:
    swarm.add("a", 0, 4)
    swarm.add("b", 0, 4)
    swarm.slow.add("b")
    checked = Checked(swarm, share=1.0)
    for number in range(4):
        checked.step(number)
    assert checked.checker.agreed["a"] >= 4
    lies(swarm, "a", torch.zeros_like)
    for number in range(4, 8):
        checked.step(number)
    assert not checked.checker.wrong
    assert checked.checker.doubtful


def test_honest_servers_agree_on_what_they_have_computed_with_an_adapter(swarm: Swarm) -> None:
    for name, begin, end in (("a", 0, 2), ("b", 2, 4), ("c", 0, 4)):
        swarm.add(name, begin, end)
    swarm.slow.add("c")
    checked = Checked(swarm, share=1.0, adapter=adapter_for(swarm.whole).adapter())
    for number in range(3):
        checked.step(number)
    assert checked.checker.agreed["a"] >= 2
    assert not checked.checker.wrong
    assert not checked.checker.doubtful


def test_a_few_large_channels_do_not_hide_a_difference() -> None:
    before = torch.randn(1, 4, 100)
    right = before + torch.randn(1, 4, 100)
    right[..., 7] = 1e4
    wrong = right + torch.randn(1, 4, 100)
    wrong[..., 7] = 1e4
    assert difference(right, right, before) == 0
    assert difference(wrong, right, before) > 0.5
