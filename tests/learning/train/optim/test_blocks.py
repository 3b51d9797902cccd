"""Numbers in 8 bits keep what they are over many steps, whatever lies beside them."""

import torch

from dedloc_kit.learning.train.optim.blocks import BLOCK, Blocks

SOME = slice(0, 2)


def kept(values: torch.Tensor, dtype: torch.dtype, step: int) -> torch.Tensor:
    """What is left of two blocks of numbers."""
    codes, scales = torch.zeros(2, BLOCK, dtype=dtype), torch.zeros(2)
    blocks, found = Blocks(codes, scales, factor=1.0), torch.empty(2, BLOCK)
    if dtype == torch.int8:
        blocks.write_signed(values.clone().numpy(), SOME, step, found.numpy())
    else:
        blocks.write_positive(values.clone().numpy(), SOME, step)
    Blocks(codes, scales, factor=1.0).read(SOME, found.numpy())
    return found


def test_numbers_of_either_sign_are_off_by_less_than_a_code_and_right_on_average() -> None:
    values = torch.linspace(-3, 3, 2 * BLOCK).view(2, BLOCK)
    each = torch.stack([kept(values, torch.int8, step) for step in range(300)])
    distance = values.abs().amax(1, keepdim=True) / 126
    assert bool(((each - values).abs() < 1.001 * distance).all())
    assert bool(((each.mean(0) - values).abs() < 0.02 * distance).all()), "rounding to the nearest would stay off"
    assert bool((kept(torch.zeros(2, BLOCK), torch.int8, 7) == 0).all())


def test_positive_numbers_are_as_exact_where_they_are_a_thousandth_of_the_largest() -> None:
    values = torch.logspace(-3, 1, 2 * BLOCK).view(BLOCK, 2).T.contiguous()
    each = torch.stack([kept(values, torch.uint8, step) for step in range(300)])
    assert bool(((each / values - 1).abs() <= 1 / 16 + 1e-6).all())
    assert bool(((each.mean(0) / values - 1).abs() < 2e-3).all())
    torch.testing.assert_close(each.amax((0, 2)), values.amax(1))
    assert bool((kept(torch.zeros(2, BLOCK), torch.uint8, 7) == 0).all())
