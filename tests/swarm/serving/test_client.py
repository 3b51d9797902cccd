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
