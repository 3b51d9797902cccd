"""The benchmark of attacks plays rounds as they are."""

import asyncio

import pytest
import torch
from torch import Tensor

from benchmarks.lib.attacked import Brought, Swarm
from benchmarks.lib.hostile_peers import ATTACKS, Sight
from benchmarks.lib.party import Party
from benchmarks.lib.played import HOSTILE, Defence, Training
from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.reduction.reducer import ClipReducer, MakeReducer, MeanReducer
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.trust.weight import allowed, claimed
from tests.text_runs import text_run, write_text

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
    outcomes = in_own_loop(party.meet())
    assert all(isinstance(outcome, Commit) for outcome in outcomes)
    average = asyncio.run(played(gradients(), make_reducer))
    assert average is not None
    assert torch.equal(average, party.averages[0])


@pytest.mark.parametrize("attack", ["not a number", "infinite", "huge"])
def test_who_sends_what_cannot_be_read_is_left_out_as_in_a_real_round(attack: str) -> None:
    vectors = gradients()
    last = vectors[-1]
    sight = Sight([last], last[None], [], last, (0, 10), torch.Generator())
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


# Checks

START, STEPS = 1, 8
CHECKED = Defence(MeanReducer, claimed, checks=True)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """In which every contribution is audited."""
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    run = text_run(folder, "causal").model_copy(
        update={
            "trust": TrustConfig(checks="on", share=1.0),
            "optimizer": OptimizerConfig(warmup_steps=1, total_steps=STEPS),
        }
    )
    return Training(run, create_task(run), 0)


@pytest.mark.soak
def test_who_climbs_is_found_accounts_falsely_and_is_gone_a_step_later(training: Training) -> None:
    _, found = training.play(ATTACKS["sign"], CHECKED, START)
    assert found.suspended_after == [2] * HOSTILE
    assert found.honest_suspended == 0
    assert found.reasons == {"its microbatch has another gradient than it says": HOSTILE}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("attack", "after", "reason"),
    [
        ("copies", 2, "its microbatch has another gradient than it says"),
        ("own data", 2, "its microbatch has another gradient than it says"),
        ("half", 2, "its microbatch has another gradient than it says"),
        ("twice", 2, "it has counted samples twice"),
        ("same data", 2, "it brings work again that it has brought before"),
        ("lost before", 2, "what compression left over is not that of its last contribution"),
        ("lost after", 2, "its residual is not what compression has lost"),
        ("silent", 6, "it does not show its work"),
    ],
)
def test_who_attacks_is_found_for_what_it_does_and_gone_a_step_later(
    training: Training, attack: str, after: int, reason: str
) -> None:
    _, found = training.play(ATTACKS[attack], CHECKED, START)
    assert found.suspended_after == [after] * HOSTILE
    assert found.honest_suspended == 0
    assert found.reasons == {reason: HOSTILE}


@pytest.mark.soak
@pytest.mark.parametrize("attack", ["covers", "accuses"])
def test_checkers_that_lie_are_gone_in_the_end_and_convict_nobody_honest(training: Training, attack: str) -> None:
    _, found = training.play(ATTACKS[attack], CHECKED, START)
    assert None not in found.suspended_after
    assert found.honest_suspended == 0


@pytest.mark.soak
def test_who_names_what_it_has_computed_stays(training: Training) -> None:
    _, found = training.play(ATTACKS["none"], CHECKED, START)
    assert found.suspended_after == [None] * HOSTILE
    assert found.honest_suspended == 0
    assert not found.reasons
    assert found.check_share == 0.5, "each contribution is computed once more"


@pytest.mark.soak
def test_pledged_or_not_the_same_training_comes_to_the_same_place(training: Training) -> None:
    pledged, _ = training.play(ATTACKS["none"], CHECKED, START)
    plain, _ = training.play(ATTACKS["none"], Defence(MeanReducer, claimed), START)
    away, weights = (pledged.weights() - plain.weights()).norm(), plain.weights().norm()
    assert 0.0 < away < 2e-4 * weights, "only a reducer's own share is compressed as well; seven that climb make 3e-3"
