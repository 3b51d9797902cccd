"""What tells one state from another."""

import time

import numpy as np
import pytest
import torch

from dedloc_kit.learning.train.state.sketch import BLOCK, NUMBERS, differ, read, sketch
from tests.fork_server import said_by

SEEDS = [bytes([number]) * 32 for number in range(20)]


def a_state(seed: int = 0) -> list[torch.Tensor]:
    # Not torch's own numbers: they depend on the processor.
    large = torch.from_numpy(np.random.default_rng(seed).standard_normal(3 * BLOCK + 7, dtype=np.float32))
    return [large, large[:BLOCK].view(64, 64) * 1e-9, torch.tensor(1000.0), torch.zeros(5), torch.ones(BLOCK)]


def test_the_same_state_has_the_same_sketch_also_if_it_was_rounded_otherwise() -> None:
    for seed in SEEDS:
        told = sketch(a_state(), seed)
        assert differ(a_state(), seed, told) == []
        rounded = [tensor * (1 + 2e-7 * torch.rand_like(tensor)) for tensor in a_state()]
        assert differ(rounded, seed, told) == []


@pytest.mark.parametrize("number", range(5))
def test_a_change_in_one_tensor_is_seen_in_that_one_however_small_its_values_are(number: int) -> None:
    for seed in SEEDS:
        changed = a_state()
        changed[number] = changed[number] * 1.001 if number != 3 else changed[number] + 1e-12
        assert differ(changed, seed, sketch(a_state(), seed)) == [number]


def test_two_values_that_were_exchanged_or_changed_alike_are_seen() -> None:
    for seed in SEEDS:
        for pair in ([3, 4], [3, BLOCK + 3], [1, 3 * BLOCK + 5]):
            alike, exchanged = a_state(), a_state()
            alike[0][pair] += 0.5
            exchanged[0][pair] = exchanged[0][pair[::-1]]
            told = sketch(a_state(), seed)
            assert differ(alike, seed, told) == differ(exchanged, seed, told) == [0]


def test_a_state_that_fits_the_sketch_of_one_seed_does_not_fit_that_of_another() -> None:
    values = torch.randn(2 * NUMBERS, generator=torch.Generator().manual_seed(0))
    signs = torch.tensor([sketch([row], SEEDS[0])[0] for row in torch.eye(2 * NUMBERS)])  # [values, numbers]
    unseen = torch.linalg.svd(signs.T).Vh[-1]
    forged = values + unseen
    assert differ([forged], SEEDS[0], sketch([values], SEEDS[0])) == []
    assert differ([forged], SEEDS[1], sketch([values], SEEDS[1])) == [0]


@pytest.mark.child
def test_a_machine_without_vector_instructions_has_the_same_sketch() -> None:
    code = "from tests.learning.train.state.test_sketch import *\nprint(differ(a_state(), SEEDS[0], %s))\n"
    code += "print(torch.backends.cpu.get_cpu_capability())"
    found, capability = said_by(code % sketch(a_state(), SEEDS[0]), ATEN_CPU_CAPABILITY="default").splitlines()
    assert (found, capability) == ("[]", "DEFAULT")


def test_a_sketch_is_one_pass_over_the_state() -> None:
    large = [torch.randn(10_000_000)]
    began = time.process_time()
    sketch(large, SEEDS[0])
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    "values", [None, {}, [1.0], [[1.0]], [[1] * NUMBERS], [["1.0"] * NUMBERS], [[1.0] * NUMBERS] * 2**17]
)
def test_what_is_no_sketch_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="no sketch"):
        read(values)


def test_numbers_that_are_not_finite_fit_nothing() -> None:
    told = [[float("nan")] * NUMBERS, *sketch(a_state(), SEEDS[0])[1:]]
    assert differ(a_state(), SEEDS[0], told) == [0]
    with pytest.raises(ValueError, match="of 4 tensors, not 5"):
        differ(a_state(), SEEDS[0], told[1:])
