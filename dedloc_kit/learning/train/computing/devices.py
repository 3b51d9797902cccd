"""All devices of a host at work for its one peer, each with a replica of the model and microbatches of its own size.

Threads are enough: torch lets others run while it computes or waits for a GPU, and data are read elsewhere. What the
devices have computed is taken in one thread, so that nothing else has to know how many there are.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing.compute import Batch, Compute, as_it_is
from dedloc_kit.learning.train.computing.device import describe_device, half_precision, make_current
from dedloc_kit.learning.train.computing.microbatch import Microbatches, find_microbatch, samples_in
from dedloc_kit.learning.train.computing.recomputing import Again, Part, Wanted, recompute
from dedloc_kit.learning.train.state.state import Replica

MOST_TIMES = 8
"""What others have computed at once is too much for a device that takes so many times less: it would take long, and
memory that there may not be."""

_log = logging.getLogger(__name__)

Loss = Callable[[nn.Module, Batch, int], Tensor]
Prepare = Callable[[Batch], Batch]


class Computed(NamedTuple):
    """A microbatch whose gradients a replica holds."""

    replica: int
    """Its number."""
    samples: int
    loss: float
    rescaled: bool
    """Its gradients overflowed because of float16, as they do now and then; the next ones will not."""
    batch: Batch
    """What it was."""


@dataclass(frozen=True)
class Caller:
    """Whoever lets the devices work."""

    refresh: Callable[[int], None]
    """Lets a replica take over the newest parameters."""
    leave_out: Callable[[int], bool]
    """Told of a replica whose device has failed; says whether the others can go on without it."""


class _Here(Executor):
    """Calls at once: a lone device needs no thread of its own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Device:
    """One device and its thread."""

    def __init__(
        self, number: int, replica: Replica, loss: Loss, prepare: Prepare, stream: Iterator[Batch], alone: bool
    ) -> None:
        self.number, self.device, self._replica = number, replica.device, replica
        self.name = f"{describe_device(self.device)} ({self.device})"
        self.microbatches = Microbatches(stream)
        self._line: Executor = _Here() if alone else ThreadPoolExecutor(1, f"device {number}")
        self._line.submit(make_current, self.device).result()
        self.compute = self._line.submit(
            lambda: Compute(
                replica.model,
                lambda model, batch: loss(model, batch, replica.step),
                self.device,
                half_precision(self.device),
                prepare,
            )
        ).result()
        self.batch: Batch = {}
        """What it computes."""
        self.most = 0
        """Samples at once, as far as it has been seen to take them."""

    def find_size(self, batch: Batch) -> Future[int]:
        return self._line.submit(find_microbatch, self.compute, batch)

    def begin(self) -> Future[float | None]:
        self.batch = next(self.microbatches)
        self.most = max(self.most, samples_in(self.batch))
        return self._line.submit(self.compute.gradients, self.batch)

    def recompute(self, wanted: Wanted) -> Future[Part | None]:
        return self._line.submit(recompute, self._replica, self.compute, wanted)

    def make_room(self) -> str:
        """Its memory did not hold a microbatch: that comes again, in a way that needs less. Returns what to tell."""
        samples = samples_in(self.batch)
        self.most = max(1, samples // 2)
        if samples > 1:
            self.microbatches.put_back(self.batch, samples // 2)
            return f"the memory does not hold {samples} samples at once; going on with {samples // 2}"
        self.compute.save_memory()
        self.microbatches.put_back(self.batch, 1)
        return "the memory hardly holds one sample; going on in a way that needs less memory and more time"

    def close(self) -> None:
        """Wait for what it computes, and end the thread."""
        self._line.shutdown(cancel_futures=True)
        with suppress(RuntimeError):  # of a device that has failed
            self.compute.clear()


class Devices:
    """Lets them work; use it in one thread, and `close` it.

    :param losses: of a model, a batch on its device and the global step whose parameters the model holds; one for each
        replica, for a task may keep something from one microbatch to the next
    :param stream: batches, which come to whichever device is next
    :param in_step: whether all begin and end together, because what they compute must be of the same parameters;
        otherwise each goes on as soon as it can
    :param prepare: of the task, see `Task.prepare`
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        losses: Sequence[Loss],
        stream: Iterator[Batch],
        caller: Caller,
        *,
        in_step: bool,
        prepare: Prepare = as_it_is,
    ) -> None:
        self._caller, self._in_step = caller, in_step
        self._devices = [
            _Device(number, replica, loss, prepare, stream, alone=len(replicas) == 1)
            for number, (replica, loss) in enumerate(zip(replicas, losses, strict=True))
        ]
        self._working: dict[Future[float | None], _Device] = {}

    def find_sizes(self) -> list[int]:
        """Let batches come in the size that suits each device; those that it is tried with come again.

        Raises UserError if no device's memory holds a single sample.
        """
        batches = [(device, next(device.microbatches)) for device in self._devices]
        trials = [(device, batch, device.find_size(batch)) for device, batch in batches]
        found = []
        for device, batch, trial in trials:
            try:
                found.append(trial.result())
            except (RuntimeError, UserError) as error:
                self._leave_out(device, error)
            else:
                device.microbatches.put_back(batch, found[-1])
        return found

    def compute(self) -> list[Computed]:
        """Give each device that waits a microbatch. Returns what those have computed that are done, which may be none;
        in step these are all."""
        idle = [device for device in self._devices if device not in self._working.values()]
        for device in idle:
            self._caller.refresh(device.number)
        self._working |= {device.begin(): device for device in idle}
        done, _ = wait(self._working, return_when=ALL_COMPLETED if self._in_step else FIRST_COMPLETED)
        computed = [self._taken(self._working.pop(future), future) for future in done]
        return sorted(filter(None, computed))

    def recompute(self, wanted: Wanted) -> Part | None:
        """Compute on a device that waits what somebody else has computed, as `training.recomputing.Again`. Call it when
        all that the devices have computed is taken. None also if no device waits, or none takes so many samples."""
        device = next((device for device in self._devices if device not in self._working.values()), None)
        if device is None or samples_in(wanted.batch) > MOST_TIMES * device.most:
            return None
        return self._recompute_on(device, wanted)

    def each(self) -> list[tuple[str, Again]]:
        """The name of each device, and how it computes again, also what is larger than it has seen. Call these when no
        device works."""
        return [(device.name, partial(self._recompute_on, device)) for device in self._devices]

    def close(self) -> None:
        for device in self._devices:
            device.close()

    def _recompute_on(self, device: _Device, wanted: Wanted) -> Part | None:
        try:
            return device.recompute(wanted).result()
        except RuntimeError as error:
            self._leave_out(device, error)
            return None

    def _taken(self, device: _Device, future: Future[float | None]) -> Computed | None:
        try:
            loss = future.result()
            if loss is None:
                _log.warning(device.make_room() + self._where(device))
        except (RuntimeError, UserError) as error:
            self._leave_out(device, error)
            return None
        if loss is None:
            return None
        return Computed(device.number, samples_in(device.batch), loss, device.compute.rescaled, device.batch)

    def _where(self, device: _Device) -> str:
        return f" ({device.name})" if len(self._devices) > 1 else ""

    def _leave_out(self, device: _Device, error: Exception) -> None:
        """Go on without a device that has failed; raises what it failed with if the others cannot."""
        if len(self._devices) == 1 or not self._caller.leave_out(device.number):
            raise error
        self._devices.remove(device)
        device.close()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        _log.warning("%s is left out, the others go on: %.200s", device.name, reason)
