"""The benchmark of attacks plays rounds as they are."""

import asyncio

import pytest
import torch
from torch import Tensor

from benchmarks.lib.attacked import Brought, Swarm
from benchmarks.lib.hostile_peers import ATTACKS, Sight
from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.averaging.compression import codec_of
from dedloc_kit.swarm.averaging.reducer import ClipReducer, MakeReducer, MeanReducer
from dedloc_kit.swarm.trust.weight import allowed, claimed
from dedloc_kit.training.flat import FlatLayout

SIZE, PEERS, SAMPLES = 40_000, 4, 8


async def played(
    vectors: list[Tensor], make_reducer: MakeReducer = MeanReducer, claims: int = SAMPLES
) -> Tensor | None:
    """One round in which the last peer claims so many samples."""
    weigh = allowed if make_reducer is ClipReducer else claimed
    layout = FlatLayout.of([vectors[0]])
    swarm = Swarm(layout, codec_of("4bit"), PEERS, PEERS * SAMPLES, make_reducer, weigh)
    samples = [*[SAMPLES] * (PEERS - 1), claims]
    brought = {peer: Brought(*each) for peer, each in enumerate(zip(vectors, samples, strict=True))}
    averaged = swarm.average(1, brought)
    return None if averaged is None else averaged.values


def gradients() -> list[Tensor]:
    torch.manual_seed(0)
    return [(1.0 + number) * torch.randn(SIZE) for number in range(PEERS)]


@pytest.mark.parametrize("make_reducer", [MeanReducer, ClipReducer])
def test_a_round_that_is_played_gives_the_bits_of_a_real_one(make_reducer: MakeReducer) -> None:
    party = Party(gradients(), [SAMPLES] * PEERS, compression="4bit", make_reducer=make_reducer)
    assert in_own_loop(party.meet()) == [None] * PEERS
    average = asyncio.run(played(gradients(), make_reducer))
    assert average is not None
    assert torch.equal(average, party.averages[0])


@pytest.mark.parametrize("attack", ["not a number", "infinite", "huge"])
def test_who_sends_what_cannot_be_read_is_left_out_as_in_a_real_round(attack: str) -> None:
    vectors = gradients()
    last = vectors[-1]
    sight = Sight([last], (last, last), [], last, (0, 10), torch.Generator())
    average = asyncio.run(played([*vectors[:-1], *ATTACKS[attack].send(sight)]))
    assert average is not None
    honest = torch.stack(vectors[:-1]).mean(dim=0)
    assert float((average - honest).norm() / honest.norm()) < 0.2


def test_claims_and_length_of_one_of_four_carry_the_mean_away_and_what_is_clipped_not() -> None:
    vectors = [torch.ones(SIZE)] * 3 + [torch.full((SIZE,), -1000.0)]
    mean = asyncio.run(played(vectors, MeanReducer, 64 * SAMPLES))
    clipped = asyncio.run(played(vectors, ClipReducer, 64 * SAMPLES))
    assert mean is not None
    assert clipped is not None
    assert float(mean.mean()) < -800.0
    assert 0.4 < float(clipped.mean()) < 0.6
