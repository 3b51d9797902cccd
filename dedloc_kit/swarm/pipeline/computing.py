"""What a stage peer's device does with calls; each microbatch is added once."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dedloc_kit.learning.train.computing.device import half_precision, make_current
from dedloc_kit.swarm.pipeline.protocol import Batch, Call, Cut
from dedloc_kit.swarm.remote.judging import Refusal

Half = Callable[[torch.device], torch.dtype | None]

WEIGHT = 0.1
"""Of the newest in the average time of a call."""
SCALE, GROWTH = 2.0**16, 2000
"""By which a gradient is multiplied first where float16 would lose a small one, and after how many backward calls
without an overflow twice as much is tried (Micikevicius et al. 2017, section 3.2)."""
MAX_SESSIONS = 1024
"""Drivers that may have a session of their own; the first one goes back to that of all."""


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

    def forget(self) -> bool:
        """Drop what was taken for the next step; False if it is on its way to the others, then nothing is dropped."""
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
    """A stage and its model, in half precision where its device is fast at it. Each call is answered, so each waits for
    the device. All but `step`, `sketch`, `session_of`,
    `check`, `samples` and `beside` is for the thread that trains, also to make it.

    What is not finite is no fault of the driver, whose tensors were: the model may have diverged.

    :param most: samples that a driver may have added in one step
    :param half: the type to compute with on a device, or none for float32
    :ivar session: see `Held`; of all drivers that have not taken this peer for gone in it
    :ivar served: samples that were added, in this session
    """

    def __init__(
        self, stage: Cut, model: nn.Module, gradients: Gradients, most: int, half: Half = half_precision
    ) -> None:
        self.stage = stage
        self.served = 0
        self.session = secrets.token_hex(8)
        self._model, self._gradients, self._most = model, gradients, most
        self._step = -1
        self._added: set[tuple[str, int]] = set()
        self._samples: Counter[str] = Counter()  # of `_step`, by driver
        self._elsewhere: Counter[str] = Counter()  # of these, those that their driver has had computed elsewhere
        self._sessions: dict[str, str] = {}  # of drivers that have one of their own
        self._seconds: dict[str, float] = {"forward": 0.0} if self._last else {}
        self._device = next(model.parameters()).device
        make_current(self._device)
        self._half = half(self._device)
        self._scale, self._fitted = SCALE if self._half is torch.float16 else 1.0, 0

    @property
    def step(self) -> int:
        return self._gradients.step

    @property
    def sketch(self) -> tuple[float, ...]:
        """Of the parameters, for others to compare."""
        return self._gradients.sketch

    @property
    def samples(self) -> dict[str, int]:
        """That were added for the next step, by driver."""
        return dict.copy(self._samples) if self._step == self.step else {}

    def beside(self, drivers: Container[str]) -> int:
        """How many of these samples are no part of the batch: those of other drivers than these, which are gone, and
        those that their driver has had computed elsewhere."""
        samples, elsewhere = self.samples, dict.copy(self._elsewhere)
        return sum(elsewhere.get(each, 0) if each in drivers else added for each, added in samples.items())

    def session_of(self, driver: str) -> str:
        """In which this driver's calls are taken, see `Held`."""
        return self._sessions.get(driver, self.session)

    @property
    def microbatches_per_second(self) -> float:
        """Forward and backward; 0 before both are measured."""
        known = sum(self._seconds.values())
        return 1 / known if len(self._seconds) == 2 and known else 0.0

    def check(self, driver: str, call: Call) -> None:
        """Raises Refusal for a call of another step or session."""
        if call.step != self.step:
            raise Refusal("stale", f"of step {call.step}; held is {self.step}", self.step)
        if call.session not in ("", self.session_of(driver)):
            raise Refusal("stale", "for what was begun before this peer stood still", self.step)

    def begin_anew(self) -> None:
        """Drop what was added for the next step, and say so by another session: whoever sent it may have taken this
        peer for gone, and have had it computed elsewhere. What is on its way to a round stays."""
        if self._gradients.forget():
            self._forget()
            self.session = secrets.token_hex(8)
            self._sessions.clear()

    def leave_out(self, driver: str) -> None:
        """This driver has taken this peer for gone, and has had computed elsewhere what it had sent.

        That is no part of the batch any more, and of its calls in the session until now none is taken. A sum cannot be
        taken apart, though: it is dropped once all say so that have added to it, for no driver has a say in what others
        have sent. Until then what this one had counts twice, as if it had sent it to two peers.
        """
        samples = self.samples
        if driver in samples:
            self._elsewhere[driver] = samples[driver]
        self._sessions[driver] = secrets.token_hex(8)
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        if samples and all(self._elsewhere[each] >= added for each, added in samples.items()):
            self.begin_anew()

    def compute(self, given: Given) -> Computed:
        """Raises Refusal."""
        self.check(given.driver, given.call)
        began = time.perf_counter()
        if self._step != given.call.step:
            self._step = given.call.step
            self._forget()
        compute = self._forward if given.call.what == "forward" else self._backward
        output, loss = compute(given)
        if output is not None:
            if not output.isfinite().all():
                raise Refusal("failed", "the stage gives NaN or infinity")
            output = self._on_cpu(output)
        seconds = time.perf_counter() - began
        before = self._seconds.get(given.call.what, seconds)
        self._seconds[given.call.what] = before + WEIGHT * (seconds - before)
        return Computed(output, loss, seconds)

    @torch.no_grad()
    def _forward(self, given: Given) -> tuple[Tensor | None, float | None]:
        output = self._through(given, self._on_device(given.hidden), given.batch)
        return (None, _finite(output)) if self._last else (output, None)

    def _backward(self, given: Given) -> tuple[Tensor | None, float | None]:
        adds = given.call.adds and _microbatch(given) not in self._added
        if adds:
            self._may_add(given)
        hidden = self._on_device(given.hidden)
        if hidden is not None:
            hidden.requires_grad_(True)
        try:
            loss = self._differentiate(given, hidden, adds)
            if adds:
                self._add(given, hidden, loss)
        except BaseException:
            self._clear()
            raise
        return None if hidden is None else hidden.grad, loss

    def _differentiate(self, given: Given, hidden: Tensor | None, adds: bool) -> float | None:
        """Leave the gradients in `.grad`, those of the parameters only if they are to be added; returns the loss.

        Raises Refusal if they are not finite even without a scale.
        """
        gradient = None if self._last else self._on_device(given.gradient)
        for scale in self._scales():
            output = self._through(given, hidden, given.batch)
            loss = _finite(output) if self._last else None
            seed = (torch.ones_like(output) if gradient is None else gradient) * scale
            if adds:
                output.backward(seed)
            elif hidden is not None:  # the answer, and nothing else
                (hidden.grad,) = torch.autograd.grad(output, hidden, seed)
            if self._fits(hidden, scale):
                return loss
            self._clear()
            if hidden is not None:
                hidden.grad = None
            if not output.isfinite().all():
                break  # no scale is to blame
        raise Refusal("failed", "its gradients are not finite")

    def _scales(self) -> Iterator[float]:
        """By which a gradient is multiplied, in turn until it fits. Where half of the usual scale is too much for
        float16, what is too small for it without any is below a millionth of the largest."""
        yield self._scale
        if self._scale > 1.0:
            yield from dict.fromkeys((self._scale / 2, 1.0))

    def _fits(self, hidden: Tensor | None, scale: float) -> bool:
        """Divide the gradients by the scale again; False if they overflow. If a smaller scale than the usual one is
        right, that is halved: a single microbatch must not take it away from all that follow."""
        if self._half is not torch.float16:
            return True
        inputs = [*self._model.parameters(), *([] if hidden is None else [hidden])]
        gradients = [each.grad for each in inputs if each.grad is not None]
        if gradients and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
            return False
        torch._foreach_div_(gradients, scale)
        self._fitted += 1
        if scale < self._scale:
            self._scale, self._fitted = self._scale / 2, 0
        elif self._fitted == GROWTH:
            self._scale, self._fitted = 2 * self._scale, 0
        return True

    def _clear(self) -> None:
        for parameter in self._model.parameters():
            if parameter.grad is not None:  # which is part of a vector
                parameter.grad.zero_()

    def _may_add(self, given: Given) -> None:
        if self._gradients.closed:
            raise Refusal("closed", f"the batch of step {given.call.step} is full", self.step)
        if self._samples[given.driver] + given.call.samples > self._most:
            raise Refusal("full", f"{self._samples[given.driver]} samples of one driver are enough for a step")

    def _add(self, given: Given, hidden: Tensor | None, loss: float | None) -> None:
        finite = hidden is None or hidden.grad is None or bool(hidden.grad.isfinite().all())
        if not finite or not self._gradients.accumulate(loss or 0.0, given.call.samples):
            raise Refusal("failed", "its gradients are not finite")
        self._added.add(_microbatch(given))
        self._samples[given.driver] += given.call.samples
        self.served += given.call.samples

    def _forget(self) -> None:
        self._added.clear()
        self._samples.clear()
        self._elsewhere.clear()

    def _through(self, given: Given, hidden: Tensor | None, batch: Batch) -> Tensor:
        on_device: Any = {name: self._on_device(values) for name, values in batch.items()}
        with torch.autocast(self._device.type, self._half, enabled=self._half is not None):
            output = self.stage.forward(self._model, hidden, on_device)
        return output.float()

    def _on_device(self, tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.to(self._device)

    def _on_cpu(self, tensor: Tensor) -> Tensor:
        """Through memory that the system does not move: a GPU copies there several times as fast."""
        if self._device.type != "cuda":
            return tensor.cpu()
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return there.copy_(tensor)

    @property
    def _last(self) -> bool:
        return self.stage.number == self.stage.count - 1


def _microbatch(given: Given) -> tuple[str, int]:
    """No driver has a say in another's numbers."""
    return given.driver, given.call.number


def _finite(loss: Tensor) -> float:
    if not loss.isfinite():
        raise Refusal("failed", "its loss is not finite")
    return float(loss.detach())
