"""Error feedback gives back what compression lost, whatever happens between two rounds."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dedloc_kit.swarm.allreduce.encoding.codec import decode
from dedloc_kit.swarm.allreduce.encoding.compression import (
    Blockwise4Bit,
    Blockwise8Bit,
    ChunkCompression,
    Float16,
    Float32,
)
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback

SIZE = 2000


def rounds(count: int) -> list[Tensor]:
    """Vectors whose small numbers four bits always round to zero: large ones stand in the same blocks."""
    steady = torch.full((SIZE,), 1e-3)
    steady[::10] = 1.0
    return [steady + 1e-4 * torch.randn(SIZE, generator=torch.Generator().manual_seed(n)) for n in range(count)]


def send(feedback: Feedback, way: ChunkCompression, vector: Tensor, cuts: tuple[int, ...] = (0, 700, SIZE)) -> Tensor:
    """All chunks of a vector as they arrive; the round is left open."""
    arrived = torch.zeros_like(vector)
    for begin, end in pairwise(cuts):
        decoded = torch.empty(end - begin) if begin else None  # members need it not, reducers do
        message = feedback.encode(way, vector[begin:end], begin, decoded)
        arrived[begin:end] = decode(message, end - begin)
        assert decoded is None or torch.equal(arrived[begin:end], decoded)
    return arrived


@pytest.mark.parametrize("way", [Float16(), Blockwise8Bit(), Blockwise4Bit()], ids=lambda way: way.tag)
def test_over_many_rounds_everything_arrives_but_the_last_residual(way: ChunkCompression) -> None:
    feedback = Feedback(SIZE)
    vectors = rounds(200)
    arrived = torch.zeros(SIZE, dtype=torch.float64)
    for vector in vectors:
        feedback.begin(64.0)
        arrived += send(feedback, way, vector)
        feedback.commit()
    missing = torch.stack(vectors).double().sum(0) - arrived
    assert float(missing.abs().max()) < 0.25  # one residual: a quarter of the blocks' largest number
    feedback.begin(64.0)
    torch.testing.assert_close(feedback.exact(torch.zeros(SIZE), 0).double(), missing, rtol=0, atol=1e-4)


def test_without_feedback_four_bits_never_send_small_numbers() -> None:
    small = torch.arange(SIZE) % 10 != 0
    vectors = rounds(200)
    wanted = torch.stack(vectors).sum(0)[small]
    forgetful, mindful = Feedback(SIZE), Feedback(SIZE)
    without, arrived = torch.zeros(SIZE), torch.zeros(SIZE)
    for vector in vectors:
        forgetful.begin(1.0)
        mindful.begin(1.0)
        without += send(forgetful, Blockwise4Bit(), vector)
        arrived += send(mindful, Blockwise4Bit(), vector)
        forgetful.discard()
        mindful.commit()
    assert not without[small].any()
    assert float((arrived[small] - wanted).norm() / wanted.norm()) < 0.25


def test_the_partition_may_change_from_round_to_round() -> None:
    feedback = Feedback(SIZE)
    vectors = rounds(60)
    arrived = torch.zeros(SIZE)
    for number, vector in enumerate(vectors):
        feedback.begin(8.0)
        arrived += send(feedback, Blockwise4Bit(), vector, cuts=(0, 13 * number + 1, 900 + number, SIZE))
        feedback.commit()
    feedback.begin(8.0)
    left = feedback.exact(torch.zeros(SIZE), 0)
    torch.testing.assert_close(arrived + left, torch.stack(vectors).sum(0), rtol=1e-5, atol=1e-5)


def test_with_changing_weights_the_sum_over_samples_arrives() -> None:
    feedback = Feedback(SIZE)
    wanted, arrived = torch.zeros(SIZE), torch.zeros(SIZE)
    for number, vector in enumerate(rounds(60)):
        weight = float((7, 0, 1, 64)[number % 4])
        feedback.begin(weight)
        wanted += weight * vector
        arrived += weight * send(feedback, Blockwise4Bit(), vector)
        feedback.commit()
    feedback.begin(16.0)
    left = 16.0 * feedback.exact(torch.zeros(SIZE), 0)
    assert float(left.abs().max()) > 1e-3
    torch.testing.assert_close(arrived + left, wanted, rtol=1e-5, atol=1e-3)


def test_a_round_without_weight_sends_nothing_of_the_residual_and_keeps_it() -> None:
    feedback = Feedback(SIZE)
    first, second = rounds(2)
    feedback.begin(2.0)
    lost = first - send(feedback, Blockwise4Bit(), first)
    feedback.commit()
    feedback.begin(0.0)
    assert torch.equal(feedback.exact(second, 0), second)
    send(feedback, Blockwise4Bit(), second)
    feedback.commit()
    feedback.begin(1.0)
    torch.testing.assert_close(feedback.exact(torch.zeros(SIZE), 0), 2.0 * lost)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Feedback(SIZE).begin(weight)


def test_a_failed_round_changes_nothing() -> None:
    feedback, untroubled = Feedback(SIZE), Feedback(SIZE)
    for number, vector in enumerate(rounds(6)):
        feedback.begin(3.0)
        send(feedback, Blockwise4Bit(), 10 * vector, cuts=(0, 500, 1500))
        feedback.exact(vector[1500:], 1500)
        if number % 2:
            feedback.discard()  # else it is forgotten when the next round begins
        found = []
        for each in (feedback, untroubled):
            each.begin(5.0)
            found.append(send(each, Blockwise4Bit(), vector))
            each.commit()
        assert torch.equal(*found)


def test_chunks_that_took_no_part_keep_their_residual() -> None:
    feedback = Feedback(SIZE)
    first, second = rounds(2)
    feedback.begin(2.0)
    lost = first - send(feedback, Blockwise4Bit(), first)
    feedback.commit()
    feedback.begin(4.0)
    send(feedback, Blockwise4Bit(), second, cuts=(500, 900))
    feedback.commit()
    feedback.begin(4.0)
    left = feedback.exact(torch.zeros(SIZE), 0)
    torch.testing.assert_close(left[:500], lost[:500] / 2)
    torch.testing.assert_close(left[900:], lost[900:] / 2)
    assert not torch.allclose(left[500:900], lost[500:900] / 2)


def test_what_travels_nowhere_takes_its_residual_along_and_loses_nothing() -> None:
    feedback = Feedback(SIZE)
    first, second = rounds(2)
    feedback.begin(1.0)
    lost = first - send(feedback, Blockwise4Bit(), first)
    feedback.commit()
    feedback.begin(1.0)
    torch.testing.assert_close(feedback.exact(second, 0), second + lost)
    feedback.commit()
    feedback.begin(1.0)
    assert torch.equal(feedback.exact(second, 0), second)


def test_after_a_reset_nothing_is_left() -> None:
    feedback = Feedback(SIZE)
    (vector,) = rounds(1)
    for finished in (True, False):
        feedback.begin(1.0)
        send(feedback, Blockwise4Bit(), vector)
        if finished:
            feedback.commit()
        feedback.reset()
        feedback.commit()
        feedback.begin(1.0)
        assert torch.equal(feedback.exact(vector, 0), vector)


def test_without_compression_feedback_takes_no_memory() -> None:
    feedback = Feedback(2**50)  # nobody has so much
    chunk = torch.rand(100)
    for _ in range(3):
        feedback.begin(1.0)
        assert torch.equal(decode(feedback.encode(Float32(), chunk, 0), 100), chunk)
        assert feedback.exact(chunk, 2**40) is chunk
        feedback.commit()


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (SIZE - 9, 10), (0, SIZE + 1)])
def test_a_chunk_outside_the_vector_is_refused(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"of a vector of {SIZE}"):
        Feedback(SIZE).encode(Blockwise8Bit(), torch.zeros(length), offset)
