"""Hidden states in 8 bits."""

import math

import pytest
import torch

from dedloc_kit.swarm.remote import activations
from dedloc_kit.swarm.remote.activations import pack, size, unpack

SHAPE = (2, 5, 96)
CODES = 2 * 4 + 10 * 4 * 4 + 10 * 3 * 2
"""Where they begin."""


def hidden(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Two of its channels are a hundred times as large as the rest."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values[..., [7, 40]] *= 100
    return values


@pytest.mark.parametrize("shape", [SHAPE, (1, 576), (3, 2, 33), (4, 3), (1, 1), (7,), (2, 0, 32)])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e30])
def test_it_is_off_by_less_than_half_a_level_of_its_block(shape: tuple[int, ...], scale: float) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
    content = pack(values)
    found = unpack(content, shape)
    assert len(content) == size(shape)
    assert found.shape == values.shape
    assert ((found - values).abs() <= 0.0041 * values.abs().amax() if values.numel() else found == values).all()


def test_large_channels_are_kept_and_the_others_stay_as_good_as_without_them() -> None:
    values = hidden()
    found = unpack(pack(values), SHAPE)
    assert torch.equal(found[..., [7, 40]], values[..., [7, 40]])
    assert (found - values).abs().max() < 0.02
    assert size((8, 128, 4096)) < 0.54 * 2 * 8 * 128 * 4096


def test_zeros_stay_zeros() -> None:
    assert not unpack(pack(torch.zeros(SHAPE)), SHAPE).any()


def test_what_is_packed_stays_as_it_was() -> None:
    values = hidden()
    pack(values)
    assert torch.equal(values, hidden())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_not_packed(value: float) -> None:
    values = hidden()
    values[1, 2, 3] = value
    with pytest.raises(ValueError, match="not finite"):
        pack(values)


@pytest.mark.parametrize(
    ("at", "bits"), [(8, 0x7F800000), (8, 0x7FC00000), (CODES - 4, 0x7F807F80), (CODES - 4, 0x7F7F7F7F)]
)
def test_bytes_that_would_become_numbers_that_are_not_finite_are_refused(at: int, bits: int) -> None:
    content = bytearray(pack(hidden()))
    content[at : at + 4] = bits.to_bytes(4, "little")
    with pytest.raises(ValueError, match="not finite"):
        unpack(bytes(content), SHAPE)


def test_a_channel_that_there_is_not_is_refused() -> None:
    content = bytearray(pack(hidden()))
    content[0] = 96
    with pytest.raises(ValueError, match=r"^channel 96 is kept, of 96$"):
        unpack(bytes(content), SHAPE)


def test_bytes_of_another_shape_are_refused() -> None:
    content = pack(hidden())
    for other in (content[:-1], content + b"\0", b""):
        with pytest.raises(ValueError, match=rf"^{len(other)} bytes are no packed tensor of the shape \(2, 5, 96\)$"):
            unpack(other, SHAPE)
    with pytest.raises(ValueError, match="of 65537 channels cannot be packed"):
        unpack(content, (1, activations.MAX_CHANNELS + 1))
