"""An answer through the servers of a swarm is that of the whole model, whichever of them die."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.blocks import tiny
from tests.blocks.test_ends import WAYS, written
from tests.swarm.serving.local_swarm import Swarm


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


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


@pytest.mark.parametrize("step", [1, 2, 6])
@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1), (2,), (0, 2), (0, 1, 2)])
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
