"""What a stage peer's device does with calls; each microbatch is added once."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dedloc_kit.swarm.pipeline.protocol import Batch, Call, Cut
from dedloc_kit.swarm.remote.judging import Refusal

WEIGHT = 0.1
"""Of the newest in the average time of a call."""


class Gradients(Protocol):
    """Where the gradients of a stage go, and whose parameters it computes with."""

    @property
    def step(self) -> int:
        """The global step whose parameters the model holds."""
        ...

    @property
    def sketch(self) -> tuple[float, ...]:
        """Of these parameters."""
        ...

    @property
    def closed(self) -> bool:
        """Is this peer's part of the next step fixed? What is computed then is for no step."""
        ...

    def accumulate(self, loss: float, samples: int) -> bool:
        """Take the gradients that the model's parameters have, means over so many samples, and clear them; False if
        they or the loss are not finite, then nothing is taken.

        :param loss: 0 unless this is the last stage
        """
        ...


@dataclass(frozen=True)
class Given:
    """A call with what came behind it, checked; the tensors are on the CPU."""

    driver: str
    call: Call
    batch: Batch
    hidden: Tensor | None
    gradient: Tensor | None


class Computed(NamedTuple):
    """Hidden states or the gradient of the input, on the CPU; the loss of the last stage."""

    output: Tensor | None
    loss: float | None
    seconds: float


class StageComputer:
    """A stage and its model. All but `step` and `sketch` is for the thread that trains.

    :param most: samples that a driver may have added in one step
    :ivar served: samples that were added, in this session
    """

    def __init__(self, stage: Cut, model: nn.Module, gradients: Gradients, most: int) -> None:
        self.stage = stage
        self.served = 0
        self._model, self._gradients, self._most = model, gradients, most
        self._step = -1
        self._added: set[tuple[str, int]] = set()
        self._samples: Counter[str] = Counter()  # of `_step`, by driver
        self._seconds: dict[str, float] = {"forward": 0.0} if self._last else {}

    @property
    def step(self) -> int:
        return self._gradients.step

    @property
    def sketch(self) -> tuple[float, ...]:
        """Of the parameters, for others to compare."""
        return self._gradients.sketch

    @property
    def microbatches_per_second(self) -> float:
        """Forward and backward; 0 before both are measured."""
        known = sum(self._seconds.values())
        return 1 / known if len(self._seconds) == 2 and known else 0.0

    def check(self, call: Call) -> None:
        """Raises Refusal for a call of another step."""
        if call.step != self.step:
            raise Refusal("stale", f"of step {call.step}; held is {self.step}", self.step)

    def compute(self, given: Given) -> Computed:
        """Raises Refusal."""
        self.check(given.call)
        began = time.perf_counter()
        if self._step != given.call.step:
            self._step = given.call.step
            self._added.clear()
            self._samples.clear()
        compute = self._forward if given.call.what == "forward" else self._backward
        output, loss = compute(given)
        if output is not None and not output.isfinite().all():
            raise Refusal("failed", "the stage gives NaN or infinity")
        seconds = time.perf_counter() - began
        before = self._seconds.get(given.call.what, seconds)
        self._seconds[given.call.what] = before + WEIGHT * (seconds - before)
        return Computed(output, loss, seconds)

    @torch.no_grad()
    def _forward(self, given: Given) -> tuple[Tensor | None, float | None]:
        output = self._through(given, self._on_device(given.hidden), given.batch)
        return (None, _finite(output)) if self._last else (output.float().cpu(), None)

    def _backward(self, given: Given) -> tuple[Tensor | None, float | None]:
        adds = given.call.adds and _microbatch(given) not in self._added
        if adds:
            self._may_add(given)
        hidden = self._on_device(given.hidden)
        if hidden is not None:
            hidden.requires_grad_(True)
        try:
            output = self._through(given, hidden, given.batch)
            loss = _finite(output) if self._last else None
            gradient = None if self._last else self._on_device(given.gradient)
            if adds:
                output.backward(gradient)
                self._add(given, hidden, loss)
            elif hidden is not None:  # the answer, and nothing else
                (hidden.grad,) = torch.autograd.grad(output, hidden, gradient)
        except BaseException:
            for parameter in self._model.parameters():
                parameter.grad = None
            raise
        return None if hidden is None or hidden.grad is None else hidden.grad.float().cpu(), loss

    def _may_add(self, given: Given) -> None:
        if self._gradients.closed:
            raise Refusal("closed", f"the batch of step {given.call.step} is full", self.step)
        if self._samples[given.driver] + given.call.samples > self._most:
            raise Refusal("full", f"{self._samples[given.driver]} samples of one driver are enough for a step")

    def _add(self, given: Given, hidden: Tensor | None, loss: float | None) -> None:
        finite = hidden is None or hidden.grad is None or bool(hidden.grad.isfinite().all())
        if not finite or not self._gradients.accumulate(loss or 0.0, given.call.samples):
            raise Refusal("values", "its gradients are not finite")
        self._added.add(_microbatch(given))
        self._samples[given.driver] += given.call.samples
        self.served += given.call.samples

    def _through(self, given: Given, hidden: Tensor | None, batch: Batch) -> Tensor:
        on_device: Any = {name: self._on_device(values) for name, values in batch.items()}
        return self.stage.forward(self._model, hidden, on_device)

    def _on_device(self, tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.to(next(self._model.parameters()).device)

    @property
    def _last(self) -> bool:
        return self.stage.number == self.stage.count - 1


def _microbatch(given: Given) -> tuple[str, int]:
    """No driver has a say in another's numbers."""
    return given.driver, given.call.number


def _finite(loss: Tensor) -> float:
    if not loss.isfinite():
        raise Refusal("values", "its loss is not finite")
    return float(loss.detach())
