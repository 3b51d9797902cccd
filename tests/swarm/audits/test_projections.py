"""Real gradients, sent in 4 bits, checked by who computes otherwise: the honest pass, and each lie is found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.compression import ChunkCompression
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.audits.projections import (
    PROJECTIONS,
    TOLERANCE,
    Recomputed,
    compressed_honestly,
    difference,
    implied,
    project,
)
from tests.batches import batches_from
from tests.text_runs import MODEL, text_run, write_text

MICROBATCHES, SAMPLES = 3, 4
WEIGHT = float(MICROBATCHES * SAMPLES)
CHUNK = 4096
SEED = b"that nobody knew"


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    write_text(tmp_path)
    return text_run(tmp_path, "albert", model={**MODEL, "embedding_size": 16, "max_position_embeddings": 64})


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class Peer:
    """One that computes in a way of its own, on the parameters that all have."""

    run: RunConfig
    threads: int = 1
    half: torch.dtype | None = None

    def __post_init__(self) -> None:
        self.task = create_task(self.run)
        self.model = self.task.model()
        groups = self.task.groups(self.model)
        self.parameters = [each for group in groups for each in group["params"]]
        self.layout = FlatLayout.of(self.parameters)
        self.chunks = list(self.layout.pieces(0, self.layout.size, CHUNK))
        self._card = Card(
            FlatModel(self.model, torch.device("cpu")), self.task.loss, self.half, prepare=self.task.prepare
        )

    def gradient(self, batch: Batch) -> Tensor:
        torch.set_num_threads(self.threads)
        assert self._card.measure(batch) is not None
        flat = torch.zeros(self.layout.size)
        for view, parameter in zip(self.layout.views(flat), self.parameters, strict=True):
            view.copy_(parameter.grad)
        return flat


@dataclass
class Sent:
    """A contribution, as it is opened for a check."""

    decoded: Tensor
    before: Tensor
    after: Tensor


def compression(peer: Peer, begin: int) -> ChunkCompression:
    codec = codec_of("4bit")
    return codec.small if begin >= peer.layout.large else codec.gradients


def recoded(peer: Peer, begin: int) -> Callable[[Tensor], Tensor]:
    way = compression(peer, begin)
    return lambda values: way.extract(way.compress(values))


def sent_of(peer: Peer, mean: Tensor) -> Sent:
    """What is sent of a mean over `WEIGHT` samples, after a round that has left a residual."""
    feedback = Feedback(peer.layout.size)
    sent = Sent(*(torch.zeros(peer.layout.size) for _ in range(3)))
    for weight in (WEIGHT / 2, WEIGHT):
        sent.before = sent.after
        feedback.begin(weight)
        for begin, end in peer.chunks:
            feedback.encode(compression(peer, begin), mean[begin:end], begin, sent.decoded[begin:end])
        feedback.commit()
        assert feedback._residual is not None
        sent.after = feedback._residual.clone()
    return sent


def found(checker: Peer, sent: Sent, gradients: list[Tensor]) -> list[tuple[float, bool]]:
    """For each chunk how far it is off from these gradients, and whether its residual is honest."""
    told = []
    for begin, end in checker.chunks:
        decoded, before, after = (values[begin:end] for values in (sent.decoded, sent.before, sent.after))
        claimed = project(implied(decoded, before, after, WEIGHT), SEED)
        work = [Recomputed(SAMPLES, project(each[begin:end], SEED), float(each.norm())) for each in gradients]
        honest = compressed_honestly(decoded, after, WEIGHT, recoded(checker, begin))
        told.append((difference(claimed, work), honest))
    return told


@pytest.fixture
def batches(run: RunConfig) -> list[Batch]:
    return list(islice(batches_from(create_task(run), SAMPLES, 5, pytest.fail), MICROBATCHES))


def mean_of(gradients: list[Tensor]) -> Tensor:
    return torch.stack(gradients).mean(dim=0)


def test_an_honest_contribution_passes_whoever_computes_it_again(run: RunConfig, batches: list[Batch]) -> None:
    kinds = [Peer(run), Peer(run, threads=2), Peer(run, threads=4), Peer(run, half=torch.bfloat16)]
    computed = [[peer.gradient(batch) for batch in batches] for peer in kinds]
    for author, own in ((kinds[0], computed[0]), (kinds[3], computed[3])):
        sent = sent_of(author, mean_of(own))
        assert float(sent.before.norm()) > 0
        for checker, again in zip(kinds, computed, strict=True):
            told = found(checker, sent, again)
            assert len(told) > 2
            assert all(honest for _, honest in told)
            exact = (author.half, checker.half) == (None, None)
            assert max(off for off, _ in told) < (1e-5 if exact else TOLERANCE)


def test_what_is_not_the_gradient_of_the_work_is_found_in_the_chunk_that_is_false(
    run: RunConfig, batches: list[Batch]
) -> None:
    author, checker = Peer(run), Peer(run, half=torch.bfloat16)
    gradients, again = ([peer.gradient(batch) for batch in batches] for peer in (author, checker))
    one_chunk = mean_of(gradients)
    begin, end = checker.chunks[1]
    one_chunk[begin:end] *= 1.2
    told = [off > TOLERANCE for off, _ in found(checker, sent_of(author, one_chunk), again)]
    assert told == [number == 1 for number in range(len(checker.chunks))]
    for lie in (
        mean_of(gradients[1:]),  # one microbatch was not computed
        mean_of([*gradients[1:], gradients[1]]),  # or another one twice
        -mean_of(gradients),
        gradients[0],
        torch.zeros_like(gradients[0]),
    ):
        assert all(off > TOLERANCE for off, _ in found(checker, sent_of(author, lie), again))


def test_a_residual_that_makes_a_lie_look_like_the_gradient_is_found(run: RunConfig, batches: list[Batch]) -> None:
    peer = Peer(run)
    gradients = [peer.gradient(batch) for batch in batches]
    truth = sent_of(peer, mean_of(gradients))
    lie = Sent(truth.decoded * 3, truth.before, truth.after - 2 * WEIGHT * truth.decoded)
    told = found(peer, lie, gradients)
    assert all(off < TOLERANCE for off, _ in told), "the sum alone does not tell"
    assert not any(honest for _, honest in told)
    part = slice(0, CHUNK)
    small = truth.after[part] + 0.3 * WEIGHT * truth.decoded[part]
    for after in (small, truth.after[part] * float("inf")):
        assert not compressed_honestly(truth.decoded[part], after, WEIGHT, recoded(peer, 0))


def sent_in_rounds(way: ChunkCompression, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """What somebody sends of a small chunk in its second round, with what is left over and the weight. Two of its
    values lie between two codes, as near as float32 comes."""
    feedback, decoded = Feedback(size), torch.zeros(size)
    feedback.begin(float(torch.randint(1, 3000, (1,), generator=generator)))
    feedback.encode(way, torch.randn(size, generator=generator), 0)
    feedback.commit()
    weight = float(torch.randint(1, 3000, (1,), generator=generator))
    lost = torch.zeros(size) if feedback.residual is None else feedback.residual / weight
    values = torch.randn(size, generator=generator)
    between, code = [1, size // 2], way.extract(way.compress(values))
    low, high = values[between], values[between] + 0.3 * values.abs().max()
    for _ in range(26):  # halve the way to where the code changes
        values[between] = (low + high) / 2
        same = way.extract(way.compress(values))[between] == code[between]
        low, high = torch.where(same, values[between], low), torch.where(same, high, values[between])
    feedback.begin(weight)
    feedback.encode(way, values - lost, 0, decoded)
    after = feedback.next_residual()
    return decoded, torch.zeros(size) if after is None else after.clone(), weight


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        *(("none", 120), ("float16", 120), ("8bit", 120), ("4bit", 120)),
        *(pytest.param(name, 600, marks=pytest.mark.soak) for name in ("8bit", "4bit")),
    ],
)
def test_of_a_small_chunk_nobody_honest_is_found_to_lie_and_who_lies_is(name: str, draws: int) -> None:
    generator, way, recoded = torch.Generator().manual_seed(3), codec_of(name).gradients, 0
    for number in range(draws):
        size = 16 + number * 557 % 1985
        decoded, after, weight = sent_in_rounds(way, size, generator)

        def coded(values: Tensor) -> Tensor:
            return way.extract(way.compress(values))

        assert compressed_honestly(decoded, after, weight, coded), (number, size)
        recoded += not torch.equal(coded(decoded + after / weight), decoded)
        lie = 0.1 * decoded.norm() * torch.nn.functional.normalize(torch.randn(size, generator=generator), dim=0)
        assert not compressed_honestly(decoded + lie, after - weight * lie, weight, coded), (number, size)
        for few in (1, 2):  # what is far off is a lie however few values it is in
            loud, over = decoded.clone(), after.clone()
            loud[:few] += 10.0
            over[:few] -= 10.0 * weight
            assert not compressed_honestly(loud, over, weight, coded), (number, size)
    assert recoded or name != "4bit", "rounding has decided otherwise now and then"


def test_numbers_whose_squares_overflow_do_not_hide_a_lie() -> None:
    way = codec_of("4bit").gradients
    sent = torch.zeros(256)
    sent[:8], sent[128:] = 2.0**90, 2.0**93
    after = torch.where(sent == 2.0**90, -sent, way.extract(way.compress(sent)) - sent)
    assert not compressed_honestly(sent, after, 1.0, lambda values: way.extract(way.compress(values)))


def test_projections_add_up_and_tell_a_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(20_000, generator=generator) for _ in range(2))
    both = project(one, SEED) + project(other, SEED)
    np.testing.assert_allclose(project(one + other, SEED), both, atol=1e-2)
    norms = [np.square(project(one, bytes([number]))).mean() ** 0.5 for number in range(40)]
    assert np.mean(norms) == pytest.approx(float(one.norm()), rel=0.05)
    assert np.std(norms) / np.mean(norms) == pytest.approx((2 * PROJECTIONS) ** -0.5, rel=0.4)
    assert not np.allclose(project(one, SEED), project(one, SEED + b"."))
    assert not np.allclose(project(one, SEED)[1:], project(one, SEED)[:-1])


def test_the_signs_of_a_seed_never_change() -> None:
    """Peers with different versions of the kit must agree."""
    values = torch.zeros(10_000)
    values[[0, 3, 8191, 8192, 9999]] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert project(values, SEED)[:8].tolist() == [3.0, -5.0, 25.0, 29.0, -27.0, 3.0, 19.0, 3.0]
    assert {abs(float(each)) % 2 for each in project(values, SEED)} == {1.0}


def test_a_difference_is_relative_to_the_gradients_not_to_a_sum_in_which_they_cancel_out() -> None:
    def found(claimed: float, *work: tuple[int, float], norm: float = 0.0) -> float:
        made = [Recomputed(samples, np.full(PROJECTIONS, value), norm) for samples, value in work]
        return difference(np.full(PROJECTIONS, claimed), made)

    assert found(1.0, (3, 1.0)) == 0.0
    assert found(1.1, (3, 1.0)) == pytest.approx(0.1)
    assert found(0.0, (3, 1.0)) == 1.0
    assert found(2.5, (1, 1.0), (3, 3.0)) == 0.0, "by weights"
    assert found(3.0, (0, 1.0), (2, 3.0)) == 0.0, "what is over nothing says nothing"
    assert found(0.0, (0, 1.0)) == 0.0
    assert found(0.01, (1, 1.0), (1, -1.0)) == pytest.approx(0.01 * 2**0.5)
    assert found(2e-6, (1, 1e-6), norm=1.0) == pytest.approx(1e-3), "where it vanishes, to the whole gradient"
    assert found(2e-6, (1, 1e-6), (1, 1e-6), norm=1.0) == pytest.approx(1e-3 * 2**0.5)
    assert found(0.0, (1, 0.0)) == 0.0
    assert found(1e-9, (1, 0.0)) == float("inf")


def test_what_cannot_be_is_refused() -> None:
    for values in (torch.zeros(2, 2), torch.zeros(2, dtype=torch.float64), torch.tensor([float("nan")])):
        with pytest.raises(ValueError, match="a finite float32 vector"):
            project(values, SEED)
    some = torch.zeros(4)
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a weight"):
            implied(some, some, some, weight)
    none = np.zeros(PROJECTIONS)
    with pytest.raises(ValueError, match="no microbatches"):
        difference(none, [])
    wrong = (
        (-1, none, 1.0),
        (float("inf"), none, 1.0),
        (1, none, -1.0),
        (1, none, float("inf")),
        (1, none[1:], 1.0),
        (1, none + np.nan, 1.0),
    )
    for samples, projections, norm in wrong:
        with pytest.raises(ValueError, match="with a gradient"):
            Recomputed(samples, projections, norm)
