"""What each stage of a pipeline takes, tried on this machine one after the other, or foreseen from its shapes alone.

No two of them are held at once.
"""

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import StageCost
from dedloc_kit.learning.task import Batch, Loss, StageTask, Task
from dedloc_kit.learning.train.computing.card import Card, samples_in
from dedloc_kit.learning.train.computing.device import half_precision
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.machine.memory_model import StageMemory
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of

_SHORT = 64
"""Tokens of a sample with which every stage is tried first, and alone where a whole one would take longer than: """
_SECONDS = 5.0

_log = logging.getLogger(__name__)


def rows_of(run: RunConfig, batch: Batch) -> int:
    """How many samples like those of a batch make a microbatch of the run's pipeline."""
    assert run.pipeline is not None
    length = max(values.shape[1] for values in batch.values())
    return max(1, run.pipeline.microbatch_tokens // length)


def full_rows(run: RunConfig, task: Task) -> int:
    """How many samples of full length make a microbatch."""
    assert run.pipeline is not None
    return max(1, min(run.global_batch, run.pipeline.microbatch_tokens // task.sample_tokens))


def expected_memory(run: RunConfig, task: Task, number: int) -> StageMemory:
    """What a stage will take with a microbatch of full samples. Nothing is computed or held."""
    assert run.pipeline is not None
    stage, model = task.stage(number), task.stage(number).outline()
    parameters = sum(each.numel() for each in model.parameters())
    length = min(task.sample_tokens, run.pipeline.microbatch_tokens)
    try:
        kept = _imagined(stage, model, full_rows(run, task), length)
    except Exception as error:  # whatever in a model needs more than shapes, such as who is an expert for which token
        _log.warning("the activations of stage %d cannot be foreseen: %r", number, error)
        kept = 0
    return StageMemory.of(parameters, kept, run.optimizer.state_dtype)


def _imagined(stage: StageTask, model: nn.Module, rows: int, length: int) -> int:
    """As `kept_bytes`, of tensors that have shapes alone."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        batch = {name: torch.zeros(rows, length, dtype=torch.int64) for name in stage.takes}
        hidden = torch.zeros(rows, length, stage.width, requires_grad=True) if stage.number else None
        return kept_bytes(model, lambda: stage.forward(model, hidden, batch))


def kept_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """That a forward pass keeps for the backward pass beside the parameters."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def stage_costs(run: RunConfig, task: Task, batch: Batch, device: torch.device) -> tuple[StageCost, ...]:
    """Of a microbatch, from what one sample takes; of a large stage from what a part of a sample takes.

    :param batch: one sample; [1, length] each
    Raises UserError where this machine does not hold a stage.
    """
    assert run.pipeline is not None
    return tuple(_cost(run, task.stage(number), batch, device) for number in range(run.pipeline.count))


def _cost(run: RunConfig, stage: StageTask, sample: Batch, device: torch.device) -> StageCost:
    model = stage.model()
    layout = FlatLayout.of([each for group in stage.groups(model) for each in group["params"]])
    codec = codec_of(run.averaging.compression)
    small = codec.small.byte_count(layout.size - layout.large)
    model.to(device)
    length = max(values.shape[1] for values in sample.values())
    trial = _Trial(stage, model, {name: sample[name] for name in stage.takes}, device)
    tokens = min(_SHORT, length)
    trial.seconds(tokens)  # the first one is slower
    seconds = trial.seconds(tokens)
    if seconds * length / tokens <= _SECONDS:
        tokens = length
        seconds = trial.seconds(tokens)
    flops, kept = trial.counted(tokens)
    rows = rows_of(run, sample)
    times = rows * length / tokens
    return StageCost(
        parameters=layout.size,
        gradient_bytes=codec.gradients.byte_count(layout.large) + small,
        average_bytes=codec.averages.byte_count(layout.large) + small,
        width=stage.width,
        tokens=rows * length,
        flops=flops * times,
        kept_bytes=int(kept * times),
        seconds=seconds * times,
    )


class _Trial:
    """A stage with the first tokens of a sample; hidden states are drawn. It waits for the device after each call."""

    def __init__(self, stage: StageTask, model: nn.Module, sample: Batch, device: torch.device) -> None:
        self._stage, self._model, self._sample, self._device = stage, model, sample, device
        self._half = half_precision(device)
        replica = FlatModel(model, device)
        self._card = Card(replica, lambda m, batch, step: Loss.of(self._loss(m, batch), 1), self._half)

    def seconds(self, tokens: int) -> float:
        """Of a forward call and a backward call, which computes forward again."""
        batch = self._batch(tokens)
        began = time.perf_counter()
        with torch.no_grad(), torch.autocast(self._device.type, self._half, enabled=self._half is not None):
            self._loss(self._model, batch).item()  # waits for the device
        if self._card.measure(batch) is None:
            raise UserError(
                f"the memory of this device does not hold stage {self._stage.number} of {self._stage.count} and "
                f"{tokens} tokens; cut the model into more stages (pipeline.stages)"
            )
        self._card.clear()
        return time.perf_counter() - began

    def counted(self, tokens: int) -> tuple[float, int]:
        """Floating point operations of the matrix products of both calls, and the bytes that a forward pass in float32
        keeps for the backward pass beside the parameters."""
        batch = self._batch(tokens)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._model.requires_grad_(False)  # see rehearsal.py, where a sample is counted likewise
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                self._loss(self._model, batch)
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)
        return 4.0 * counter.get_total_flops(), kept_bytes(self._model, lambda: self._loss(self._model, batch))

    def _batch(self, tokens: int) -> Batch:
        batch = {name: values[:, :tokens].to(self._device) for name, values in self._sample.items()}
        if self._stage.number:
            rows = samples_in(batch)
            batch["hidden"] = torch.zeros(rows, tokens, self._stage.width, device=self._device).normal_()
        return batch

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        given = dict(batch)
        hidden = given.pop("hidden", None)
        if hidden is not None:
            hidden = hidden.detach().requires_grad_()
        after = self._stage.forward(model, hidden, given)
        return after if after.ndim == 0 else after.float().mean()
