"""A donor hands a member that missed a round a false average, and a newcomer false buffers of the model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.compression import serialize_torch_tensor
from torch import Tensor, nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.state.sketch import SEED_BYTES, differ, sketch
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.transfer.contents import RecentAverage
from tests.identities import an_identity
from tests.swarm.rounds.chained import BATCH, Chains, Coordinator, Follower, chains
from tests.tiny import tiny_run


def a_run(checks: str) -> RunConfig:
    return tiny_run(global_batch=BATCH, trust={"checks": checks})


class Numbered(nn.Module):
    """As a language model, it has its positions' numbers in a buffer, and computes with them."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.register_buffer("positions", torch.arange(4), persistent=False)


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Signer]:
    """The organizer's, and a member's."""
    folder: Path = tmp_path_factory.mktemp("keys")
    return Signer(an_identity(folder / "organizer")), Signer(an_identity(folder / "member"))


@pytest.fixture
def among(signers: tuple[Signer, Signer]) -> Iterator[Chains]:
    with chains(signers[0]) as made:
        yield made


@pytest.mark.parametrize("checks", ["on", "off"])
@pytest.mark.parametrize("false", ["values", "order", "nonsense", "another step"])
def test_a_false_average_is_not_taken_whoever_gives_it(
    among: Chains, signers: tuple[Signer, Signer], checks: str, false: str
) -> None:
    """A step with it would be another one: what the member computed then would be held against it."""
    coordinator = Coordinator(among, a_run(checks))
    behind = Follower(among, coordinator, signers[1])
    assert behind.catch_up.load()
    for _ in range(2):
        coordinator.step()
    right, other = coordinator.kept
    ones = serialize_torch_tensor(torch.ones(coordinator.state.layout.size)).SerializeToString()
    wrong: dict[str, RecentAverage] = {
        "values": replace(right, parts=(ones,)),
        "order": replace(right, parts=(right.parts[0][:-8], right.parts[0][-8:])),
        "nonsense": replace(right, parts=(b"nonsense",)),
        "another step": replace(other, after=right.after),
    }
    behind.gives = lambda _: wrong[false]
    before = [tensor.clone() for tensor in behind.state.tensors()]
    behind.no_state = True
    assert behind.catch_up.follow() == []
    assert behind.rejected == ["a missed average: it is not the one that the commit names"]
    assert behind.state.step == 0
    assert all(torch.equal(*pair) for pair in zip(before, behind.state.tensors(), strict=True))
    behind.gives = coordinator.kept_average
    assert [step.receipt.step for step in behind.catch_up.follow()] == [1, 2]
    assert behind.is_there()


@pytest.mark.parametrize(("checks", "false"), [("on", False), ("off", True)])
def test_a_newcomer_that_is_checked_takes_no_buffers_from_a_donor_for_no_witness_knows_them(
    among: Chains, signers: tuple[Signer, Signer], checks: str, false: bool
) -> None:
    theirs, mine = Numbered(), Numbered()
    coordinator = Coordinator(among, a_run(checks), theirs)
    coordinator.step()
    theirs.positions.zero_()
    newcomer: Any = Follower(among, coordinator, signers[1], mine)
    assert newcomer.catch_up.load()
    assert torch.equal(mine.embedding.weight, theirs.embedding.weight)
    assert (mine.positions.tolist() == [0, 0, 0, 0]) == false


def test_a_state_with_false_moments_of_the_optimizer_is_not_what_the_witnesses_hold(among: Chains) -> None:
    """All but the buffers is in the sketch that they give of theirs, also what no parameter shows."""
    coordinator = Coordinator(among, a_run("on"), Numbered())
    coordinator.step()
    state = coordinator.state
    tensors, seed = state.tensors(), bytes(SEED_BYTES)
    told, buffers = sketch(tensors, seed), state.loose
    assert not differ(tensors, seed, told)
    for number, tensor in enumerate(tensors):
        false = [*tensors[:number], tensor.detach() + 1, *tensors[number + 1 :]]
        assert set(differ(false, seed, told)) == {number}
    assert len(buffers) == 1
    assert len(tensors) > len(state.parameters) + len(buffers) + 2, "there are moments among them"
