"""What a sparse chunk holds, what it costs, and which places and levels are refused."""

import pytest
import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.swarm.allreduce.encoding.codec import check, decode
from dedloc_kit.swarm.allreduce.encoding.compression import LARGEST
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.allreduce.encoding.sparse import Sparse

SPARSE = Sparse()
LENGTH = 2 * Sparse.block + 100


def some(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


def forged(places: list[int], levels: bytes = b"\x80\x3f" * 2, length: int = 100) -> runtime_pb2.Tensor:
    """A message of one block with these places."""
    bits = "".join(f"{place:012b}00" for place in places)
    bits += "0" * (-len(bits) % 8)
    packed = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return runtime_pb2.Tensor(dtype="sparse", size=(length,), buffer=levels + packed)


def test_the_largest_of_each_block_are_there_with_their_signs_and_the_others_are_zero() -> None:
    values = some()
    found = decode(SPARSE.compress(values), LENGTH)
    for mine, theirs in zip(values.split(Sparse.block), found.split(Sparse.block), strict=True):
        kept = theirs != 0
        assert kept.sum() == Sparse.kept
        assert mine[kept].abs().min() >= mine[~kept].abs().max()
        assert torch.equal(theirs[kept].sign(), mine[kept].sign())
        assert len(theirs[kept].abs().unique()) == 2


def test_a_level_is_the_mean_of_what_it_stands_for() -> None:
    values = torch.zeros(Sparse.block)
    values[:64] = torch.tensor([1.0] * 32 + [-3.0] * 16 + [5.0] * 16)
    found = decode(SPARSE.compress(values), Sparse.block)
    assert found[:32].eq(1.0).all()
    assert found[32:48].eq(-4.0).all()
    assert found[48:64].eq(4.0).all()


def test_a_long_chunk_takes_less_than_three_hundredths_of_a_byte_for_each_number() -> None:
    assert SPARSE.byte_count(2**17) / 2**17 < 0.0284


def test_with_feedback_everything_arrives_in_the_end() -> None:
    values, feedback = some(), Feedback(LENGTH)
    arrived = torch.zeros(LENGTH)
    for _ in range(200):
        feedback.begin(1.0)
        arrived += decode(feedback.encode(SPARSE, values, 0), LENGTH)
        feedback.commit()
    assert float((arrived / 200 - values).norm() / values.norm()) < 0.3


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([*range(63), 100], id="beyond the chunk"),
        pytest.param([*range(63), 4095], id="beyond the chunk, in the block"),
        pytest.param([0, *range(63)], id="twice"),
        pytest.param([*range(62), 63, 62], id="not ascending"),
    ],
)
@pytest.mark.parametrize("read", [check, decode])
def test_places_that_cannot_be_are_refused(read: object, places: list[int]) -> None:
    assert callable(read)
    read(forged([*range(64)]), 100)
    with pytest.raises(ValueError, match="not ascending, or not its own"):
        read(forged(places), 100)


@pytest.mark.parametrize("level", [float("nan"), float("inf"), -1.0, 2 * LARGEST])
@pytest.mark.parametrize("read", [check, decode])
def test_levels_that_cannot_be_are_refused(read: object, level: float) -> None:
    assert callable(read)
    wrong = torch.tensor([1.0, level]).bfloat16().view(torch.uint8).numpy().tobytes()
    with pytest.raises(ValueError, match="level"):
        read(forged([*range(64)], wrong), 100)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_bytes_come_are_read_or_refused(seed: int) -> None:
    noise = torch.randint(256, (SPARSE.byte_count(LENGTH),), generator=torch.Generator().manual_seed(seed))
    message = runtime_pb2.Tensor(dtype="sparse", size=(LENGTH,), buffer=noise.to(torch.uint8).numpy().tobytes())
    with pytest.raises(ValueError, match=r"level|ascending"):
        decode(message, LENGTH)
