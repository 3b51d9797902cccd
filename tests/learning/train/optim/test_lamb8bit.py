"""LAMB with a state of 8 bits beside LAMB with its own, and the same bits everywhere."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import SMALL_TENSOR
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lamb8bit import Lamb8Bit
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.transfer.contents import StateLayout
from tests.fork_server import said_by
from tests.tiny import TinyTask, tiny_run

ROWS, WIDTH, WARM_UP = 60, 384, 20
EITHER: tuple[Callable[..., Lamb | Lamb8Bit], ...] = (Lamb, Lamb8Bit)
WIDE = {"name": "tiny", "hidden": 1100}
"""Has tensors of 8800 values."""


def moves(kind: Callable[..., Lamb | Lamb8Bit], gradients: Iterable[Tensor]) -> list[Tensor]:
    """What each step changes of a table of embeddings."""
    table = torch.nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.02)
    optimizer, steps = kind([table], lr=0.01, weight_decay=0.01), []
    for gradient in gradients:
        before = table.detach().clone()
        table.grad = gradient.clone()
        optimizer.step()
        steps.append(table.detach() - before)
    return steps


def noise(steps: int) -> list[Tensor]:
    """Gradients of the table: those of a row are 60 times as large as those of another."""
    generator = torch.Generator().manual_seed(2)
    sizes = torch.arange(1.0, ROWS + 1)[:, None] * 1e-3
    return [torch.randn(ROWS, WIDTH, generator=generator) * sizes for _ in range(steps)]


def test_a_row_without_a_gradient_for_a_thousand_steps_rests_and_then_moves_as_far_as_ever() -> None:
    gradients = noise(WARM_UP + 1000 + 5)
    for gradient in gradients[WARM_UP : WARM_UP + 1000]:
        gradient[10] = gradient[31] = 0
    plain, coded = (moves(kind, gradients) for kind in EITHER)
    for rows in ([10], [31], list(range(ROWS))):
        for theirs, ours in [*zip(plain, coded, strict=True)][WARM_UP + 200 :]:
            assert float(ours[rows].norm()) <= 1.1 * float(theirs[rows].norm())
    for theirs, ours in zip(plain[-5:], coded[-5:], strict=True):
        assert float(ours[10].norm()) >= 0.9 * float(theirs[10].norm())


@pytest.mark.parametrize("size", [1e-30, 1e4])
@pytest.mark.parametrize("where", [(5, 7), (5,), ()], ids=["value", "row", "all"])
def test_a_gradient_far_from_all_others_makes_no_larger_step_than_with_float32(
    size: float, where: tuple[int, ...]
) -> None:
    gradients = noise(WARM_UP + 10)
    gradients[WARM_UP][where] = size
    plain, coded = (moves(kind, gradients) for kind in EITHER)
    for theirs, ours in [*zip(plain, coded, strict=True)][WARM_UP:]:
        assert bool(ours.isfinite().all())
        assert float(ours.norm()) <= 1.1 * float(theirs.norm())
        assert float(ours.abs().max()) <= 1.1 * float(theirs.abs().max())


@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_nothing_but_gradients_of_such_a_size_are_followed_too(size: float) -> None:
    plain, coded = (moves(kind, [torch.full((ROWS, WIDTH), size)] * 50) for kind in EITHER)
    for theirs, ours in zip(plain, coded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-9)


def test_a_small_tensor_goes_where_lamb_lets_it_go_and_a_large_one_nearly() -> None:
    def trained(kind: Callable[..., Lamb | Lamb8Bit], size: int) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        param = torch.nn.Parameter(torch.randn(size, generator=generator))
        optimizer = kind([param], 0.01, betas=(0.9, 0.99), eps=1e-4, weight_decay=0.1, max_weight_norm=5.0)
        for _ in range(30):
            param.grad = param.detach() + torch.randn(size, generator=generator)
            optimizer.step()
        return param.detach()

    for size, tolerance in ((1, 1e-6), (SMALL_TENSOR - 1, 1e-6), (SMALL_TENSOR, 2e-3), (200_003, 2e-3)):
        expected, found = (trained(kind, size) for kind in EITHER)
        assert float((found - expected).norm() / expected.norm()) < tolerance


def test_the_state_takes_a_quarter_of_the_bytes() -> None:
    params = [torch.nn.Parameter(torch.zeros(1000, 500)), torch.nn.Parameter(torch.zeros(500))]
    plain, coded = (sum(tensor.nbytes for tensor in kind(params, lr=0.1).state_tensors()) for kind in EITHER)
    assert coded <= 0.26 * plain


SCRIPT = """
import hashlib, sys, torch
from dedloc_kit.records.steps import Receipt
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.state import TrainingState
from tests.tiny import tiny_run

run = tiny_run(optimizer={"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 10, "state_dtype": "8bit"})
print(torch.backends.cpu.get_cpu_capability())
for threads in (1, 2, 4):
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(500, 701), torch.nn.Linear(701, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-99, 99, parameter.shape, generator=generator) * 1e-3)
    state = TrainingState(model, lambda m: build_optimizer(run.optimizer, [{"params": list(m.parameters())}]), run)
    for step in range(1, 7):
        gradient = torch.randint(-999, 999, state.flat.shape, generator=generator) * 1e-4
        state.apply(gradient, Receipt(step=step, round="ab", time=1.0, seconds=0.0, record=b""))
    print(hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state.tensors())).hexdigest())
"""


@pytest.mark.child
def test_neither_the_number_of_threads_nor_the_instructions_of_the_processor_change_a_bit() -> None:
    best = torch.backends.cpu.get_cpu_capability().lower()
    names: set[str] = set()
    bits: set[str] = set()
    for kind in {"default", best, best.replace("avx512", "avx2")}:
        name, *found = said_by(SCRIPT, ATEN_CPU_CAPABILITY=kind).split("\n", 3)
        names.add(name)
        bits.update(line.strip() for line in found)
    assert len(bits) == 1
    assert len(names) > 1 or best not in ("avx2", "avx512")


def state_of(kept: str, hidden: int = 1100) -> TrainingState:
    """After three steps."""
    optimizer = {"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 10, "state_dtype": kept}
    run = tiny_run(task={"name": "tiny", "hidden": hidden}, optimizer=optimizer)
    task = TinyTask(run)
    state = TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, task.groups(m)), run)
    for step in (1, 2, 3):
        take_step(state, step)
    return state


def take_step(state: TrainingState, step: int) -> None:
    gradient = torch.randn(state.flat.shape, generator=torch.Generator().manual_seed(step))
    state.apply(gradient, Receipt(step=step, round="ab", time=1.0, seconds=0.0, record=b""))


def test_who_takes_the_state_over_as_it_travels_goes_on_with_the_same_bits() -> None:
    donor, newcomer = state_of("8bit"), state_of("8bit")
    take_step(donor, 4)
    with donor.for_newcomer() as (_, tensors):
        layout = StateLayout(tensors)
        newcomer.load(layout.views(layout.pack(tensors)), donor.info)
    assert any(bool(tensor.any()) for tensor in newcomer.tensors() if tensor.dtype == torch.int8)
    for state in (donor, newcomer):
        take_step(state, 5)
    assert all(map(torch.equal, donor.tensors(), newcomer.tensors()))
    assert layout.size < 7 * newcomer.layout.size, "of 12 bytes a value"


@pytest.mark.parametrize(("kept", "others", "fix"), [("8bit", "float32", "remove"), ("float32", "8bit", "set")])
def test_a_checkpoint_with_the_other_kind_of_state_is_refused_by_the_key(kept: str, others: str, fix: str) -> None:
    state, other = state_of(kept), state_of(others)
    tensors, info = other.copy()
    before = state.flat.clone()
    with pytest.raises(ValueError, match=f"{fix} optimizer.state_dtype = ") as refused:
        state.load_named(tensors, info.model_copy(update={"run_id": state.run_id}))
    assert "\n" not in str(refused.value)
    assert torch.equal(state.flat, before)
