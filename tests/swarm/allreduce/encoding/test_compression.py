"""What compression may lose, and what it refuses."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hivemind.compression import CompressionInfo, deserialize_torch_tensor
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.swarm.allreduce.encoding.codec import check, codec_of, decode
from dedloc_kit.swarm.allreduce.encoding.compression import (
    LARGEST,
    Blockwise4Bit,
    Blockwise8Bit,
    ChunkCompression,
    Float16,
    Float32,
)
from dedloc_kit.swarm.allreduce.encoding.sparse import Sparse

WAYS: tuple[ChunkCompression, ...] = (Float32(), Float16(), Blockwise8Bit(), Blockwise4Bit(), Sparse())
BLOCKWISE = WAYS[2:4]
LENGTHS = (1, 2, 127, 128, 129, 255, 256, 257, 1000, 70_001)

every_reading = pytest.mark.parametrize("read", [decode, check])
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.tag)
every_blockwise = pytest.mark.parametrize("way", BLOCKWISE, ids=lambda way: way.tag)


def gaussian(length: int, seed: int = 0) -> Tensor:
    return 1e-3 * torch.randn(length, generator=torch.Generator().manual_seed(seed))


def heavy_tailed(length: int, seed: int = 0) -> Tensor:
    """Student's t with 3 degrees of freedom: some numbers are hundreds of times the usual size, as in gradients."""
    generator = torch.Generator().manual_seed(seed)
    squares = torch.randn(3, length, generator=generator).square().mean(0)
    return 1e-3 * torch.randn(length, generator=generator) / squares.sqrt()


def travelled(way: ChunkCompression, values: Tensor) -> Tensor:
    message = runtime_pb2.Tensor.FromString(way.compress(values).SerializeToString())
    return decode(message, values.numel())


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# What is lost


@pytest.mark.parametrize("data", [gaussian, heavy_tailed])
@pytest.mark.parametrize(
    ("way", "most"), [(Float32(), 0.0), (Float16(), 3e-4), (Blockwise8Bit(), 0.02), (Blockwise4Bit(), 0.15)]
)
def test_the_error_is_a_small_part_of_the_whole(
    way: ChunkCompression, most: float, data: Callable[[int], Tensor]
) -> None:
    values = data(100_000)
    assert relative_error(travelled(way, values), values) <= most


@pytest.mark.parametrize("data", [gaussian, heavy_tailed])
@pytest.mark.parametrize(("way", "most"), [(Blockwise8Bit(), 0.0040), (Blockwise4Bit(), 0.1150)])
@pytest.mark.parametrize("length", LENGTHS)
def test_no_number_is_off_by_more_than_its_blocks_largest_allows(
    way: Blockwise8Bit | Blockwise4Bit, most: float, data: Callable[[int], Tensor], length: int
) -> None:
    values = data(length)
    for found, expected in zip(travelled(way, values).split(way.block), values.split(way.block), strict=True):
        assert float((found - expected).abs().max()) <= most * float(expected.abs().max())


@every_blockwise
def test_one_outlier_spoils_its_own_block_only(way: Blockwise8Bit | Blockwise4Bit) -> None:
    values = gaussian(10 * way.block)
    spoiled = values.clone()
    spoiled[0] = 1e6
    assert torch.equal(travelled(way, spoiled)[way.block :], travelled(way, values)[way.block :])


def test_four_bits_take_the_nearest_of_their_levels() -> None:
    levels = torch.tensor(Blockwise4Bit.LEVELS, dtype=torch.float64) / 127
    values = torch.rand(12_800, generator=torch.Generator().manual_seed(0)) * 2 - 1
    values[:: Blockwise4Bit.block] = 1.0  # the scale of every block
    found = travelled(Blockwise4Bit(), values).double()
    smallest = (values.double()[:, None] - levels).abs().min(dim=1).values
    torch.testing.assert_close((values.double() - found).abs(), smallest, rtol=0, atol=1e-6)


@every_way
@pytest.mark.parametrize("length", LENGTHS)
def test_a_message_takes_the_promised_bytes(way: ChunkCompression, length: int) -> None:
    assert len(way.compress(gaussian(length)).buffer) == way.byte_count(length)
    info = CompressionInfo.from_tensor(gaussian(length))
    assert way.estimate_compression_ratio(info) == pytest.approx(way.byte_count(2**20) / 2**22)


def test_eight_and_four_bits_take_little_more_than_their_name() -> None:
    assert 8 * Blockwise8Bit().byte_count(2**20) / 2**20 < 8.1
    assert 8 * Blockwise4Bit().byte_count(2**20) / 2**20 < 4.2


@every_way
def test_the_same_numbers_make_the_same_bytes_whatever_the_number_of_threads(way: ChunkCompression) -> None:
    values = heavy_tailed(300_000)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = way.compress(values).SerializeToString(deterministic=True)
        torch.set_num_threads(4)
        assert way.compress(values.clone()).SerializeToString(deterministic=True) == alone
    finally:
        torch.set_num_threads(threads)


@every_way
def test_compressing_leaves_its_input_alone(way: ChunkCompression) -> None:
    values = heavy_tailed(1000)
    before = values.clone()
    way.compress(values, CompressionInfo.from_tensor(values), allow_inplace=True)
    assert torch.equal(values, before)


# The edges


@every_way
@pytest.mark.parametrize("length", LENGTHS)
def test_zeros_stay_zeros(way: ChunkCompression, length: int) -> None:
    assert torch.equal(travelled(way, torch.zeros(length)), torch.zeros(length))


@every_way
def test_a_number_among_zeros_leaves_them_zeros(way: ChunkCompression) -> None:
    values = torch.zeros(500)
    values[300] = -0.01
    found = travelled(way, values)
    assert float(found[300]) == pytest.approx(-0.01, rel=0.07)
    found[300] = 0.0
    assert not found.any()


@every_way
@pytest.mark.parametrize("size", [LARGEST, 1e30, 1e5, 1e-20, 1e-30, 1e-38, 1e-40, 1e-45])
def test_huge_and_tiny_numbers_stay_finite_and_no_larger(way: ChunkCompression, size: float) -> None:
    values = torch.tensor([size, -size, size / 3, 0.0])
    found = travelled(way, values)
    assert found.isfinite().all()
    assert float(found.abs().max()) <= 1.01 * float(values.abs().max())


@every_blockwise
@pytest.mark.parametrize("size", [2.0**100, 2.0**-40, 2.0**-80])
def test_blocks_of_any_size_are_equally_exact(way: ChunkCompression, size: float) -> None:
    values = gaussian(1000)
    torch.testing.assert_close(travelled(way, values * size), travelled(way, values) * size, rtol=1e-6, atol=0)


@every_way
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), 1e38])
@pytest.mark.parametrize("place", [0, 499])
def test_numbers_that_are_not_finite_are_refused(way: ChunkCompression, wrong: float, place: int) -> None:
    values = gaussian(500)
    values[place] = wrong
    with pytest.raises(ValueError, match="not finite"):
        way.compress(values)


@every_way
@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64)])
def test_only_float32_vectors_are_taken(way: ChunkCompression, values: Tensor) -> None:
    with pytest.raises(ValueError, match="a chunk is a float32 vector"):
        way.compress(values)


# Hostile messages


def damaged(way: ChunkCompression) -> Iterator[tuple[str, runtime_pb2.Tensor]]:
    """Messages of 300 numbers with one thing wrong in each, and what is said about it."""

    def message(**changes: object) -> runtime_pb2.Tensor:
        values = {"dtype": way.tag, "size": (300,), "buffer": good.buffer, "compression": 0}
        return runtime_pb2.Tensor(**values | changes)

    good = way.compress(gaussian(300))
    for buffer in (b"", good.buffer[:-1], good.buffer + b"\0", good.buffer * 2):
        yield "does not take", message(buffer=buffer)
    for size in ((), (299,), (301,), (0,), (300, 1), (2**32 - 1,), (2**32 - 1, 2**32 - 1), (2**31,)):
        yield "shape", message(size=size)
    for tag in ("", "float64", "object", "bfloat16", "O", "Blockwise8", "x" * 10_000):
        yield "unknown form", message(dtype=tag)
    other = next(known for known in WAYS if known.tag != way.tag)
    yield "does not take", message(dtype=other.tag)
    for compression in (runtime_pb2.FLOAT16, runtime_pb2.BLOCKWISE_8BIT):
        yield "instead of", message(compression=compression)


@every_way
@every_reading
def test_a_damaged_message_is_refused_with_its_reason(
    read: Callable[[runtime_pb2.Tensor, int], object], way: ChunkCompression
) -> None:
    for reason, message in damaged(way):
        with pytest.raises(ValueError, match=reason) as raised:
            read(message, 300)
        assert len(str(raised.value)) < 200


@every_way
@pytest.mark.parametrize("size", [(), (0,), (300, 1), (2**32 - 1,), (2**32 - 1, 2**32 - 1)])
def test_a_codec_alone_refuses_an_impossible_shape_too(way: ChunkCompression, size: tuple[int, ...]) -> None:
    message = way.compress(gaussian(300))
    del message.size[:]
    message.size.extend(size)
    with pytest.raises(ValueError, match="does not take"):
        way.extract(message)


@every_blockwise
@every_reading
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf"), -1.0, 2 * LARGEST])
def test_an_impossible_scale_is_refused(
    read: Callable[[runtime_pb2.Tensor, int], object], way: ChunkCompression, scale: float
) -> None:
    message = way.compress(gaussian(1000))
    forged = torch.tensor([scale]).bfloat16().view(torch.uint8).numpy().tobytes()
    message.buffer = message.buffer[:2] + forged + message.buffer[4:]
    with pytest.raises(ValueError, match="scale"):
        read(message, 1000)


@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: way.tag)
@every_reading
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_message_with_a_number_that_is_not_finite_is_refused(
    read: Callable[[runtime_pb2.Tensor, int], object], way: ChunkCompression, wrong: float
) -> None:
    dtype = torch.float32 if way.lossless else torch.float16
    buffer = torch.tensor([1.0, wrong], dtype=dtype).numpy().tobytes()
    with pytest.raises(ValueError, match="not finite"):
        read(runtime_pb2.Tensor(dtype=way.tag, size=(2,), buffer=buffer), 2)


@every_blockwise
@pytest.mark.parametrize("seed", range(5))
def test_random_codes_decode_to_finite_numbers(way: Blockwise8Bit | Blockwise4Bit, seed: int) -> None:
    length = 10 * way.block
    largest = torch.full((10,), LARGEST).bfloat16().view(torch.uint8)
    codes = torch.randint(256, (way.byte_count(length) - 20,), generator=torch.Generator().manual_seed(seed))
    buffer = torch.cat([largest, codes.to(torch.uint8)]).numpy().tobytes()
    assert decode(runtime_pb2.Tensor(dtype=way.tag, size=(length,), buffer=buffer), length).isfinite().all()


@every_blockwise
def test_hivemind_does_not_mistake_our_messages_for_its_own(way: ChunkCompression) -> None:
    with pytest.raises(TypeError):
        deserialize_torch_tensor(way.compress(gaussian(300)))


# Codecs by name


def test_an_unknown_codec_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no compression '2bit'; choose one of: none, float16, 8bit, 4bit, sparse"):
        codec_of("2bit")


def test_small_tensors_keep_half_precision_and_lose_nothing_without_compression() -> None:
    assert [codec_of(name).small.tag for name in ("none", "float16", "8bit", "4bit")] == ["float32"] + 3 * ["float16"]
    assert codec_of("none").gradients.lossless
    assert codec_of("none").averages.lossless


def test_fewer_bits_in_the_name_are_fewer_bytes_on_the_way() -> None:
    def total(name: str) -> int:
        codec = codec_of(name)
        return codec.gradients.byte_count(2**20) + codec.averages.byte_count(2**20)

    sizes = [total(name) for name in ("none", "float16", "8bit", "4bit", "sparse")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 5
