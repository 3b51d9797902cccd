"""AdamW as torch has it, with a state that another peer can take over."""

from pathlib import Path

import torch
from torch import Tensor

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.learning.train.optim.adamw import AdamW
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from tests.tiny import TinyTask, tiny_run


def reference_adamw(
    start: Tensor, gradients: list[Tensor], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> Tensor:
    """Algorithm 2 of arXiv 1711.05101 in float64."""
    x = start.double()
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        update = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        x = x - lr * (update + weight_decay * x)
    return x


def test_a_runs_settings_lead_to_the_updates_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(130, 201, generator=generator)
    gradients = [torch.randn(130, 201, generator=generator) * 10.0 ** (i % 4 - 3) for i in range(20)]
    config = OptimizerConfig(name="adamw", learning_rate=0.01, betas=(0.8, 0.95), epsilon=1e-4, warmup_steps=0)
    param = torch.nn.Parameter(start.clone())
    optimizer = build_optimizer(config, [{"params": [param], "weight_decay": 0.1}])
    for gradient in gradients:
        param.grad = gradient.clone()
        optimizer.step()
    expected = reference_adamw(start, gradients, 0.01, (0.8, 0.95), 1e-4, 0.1)
    torch.testing.assert_close(param.detach().double(), expected, rtol=2e-5, atol=1e-6)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    def trained(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(3)
        params = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in (1_000_003, 7, 4099)]
        optimizer = AdamW(params, lr=0.1)
        for _ in range(5):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator)
            optimizer.step()
        return torch.cat([param.detach() for param in params])

    before = torch.get_num_threads()
    try:
        assert torch.equal(trained(1), trained(3))
    finally:
        torch.set_num_threads(before)


def test_a_peer_that_takes_over_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    run = tiny_run(optimizer={"name": "adamw", "learning_rate": 0.01, "warmup_steps": 3, "total_steps": 100})

    def fresh() -> TrainingState:
        task = TinyTask(run)
        groups = task.groups
        return TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, groups(m)), run)

    def train(state: TrainingState, steps: int) -> None:
        for step in range(state.step, state.step + steps):
            gradient = torch.randn(state.layout.size, generator=torch.Generator().manual_seed(step))
            state.apply(gradient, Receipt(step=step + 1, round="ab", time=1.0, seconds=0.0, record=b""))

    ours, newcomer = fresh(), fresh()
    assert len(ours.optimizer.state_tensors()) == 3 * len(ours.parameters), "before the first step"
    train(ours, 3)
    checkpoint.save(tmp_path / "state.safetensors", *ours.copy())
    newcomer.load_named(*checkpoint.load(tmp_path / "state.safetensors"))
    train(ours, 3)
    train(newcomer, 3)
    assert all(torch.equal(a, b) for a, b in zip(ours.tensors(), newcomer.tensors(), strict=True))
