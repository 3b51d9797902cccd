"""Copies between the processor and a device. Where that is a GPU they use pinned memory and streams of their own, so
that they run beside the kernels; what is on the CPU is not copied.
"""

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

_IN_FLIGHT = 4
"""Copies to a device without pinned memory that may be under way; so long nobody else gets the memory they read."""


class Readout:
    """A few float32 values of a device, to be read later."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._done = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
            self._done = torch.cuda.Event(blocking=True)  # otherwise whoever waits keeps a core busy
            self._done.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """Wait until the device has computed them."""
        if self._done is not None:
            self._done.synchronize()
        values: list[float] = self._values.tolist()
        return values


class Copies:
    """The copies of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.here = device.type == "cpu"
        """Whether the device is the processor: nothing has to be copied, and each outcome is known at once."""
        # One for each way: a batch must not wait behind a sum, which waits for kernels.
        gpu = device.type == "cuda"
        self._in = torch.cuda.Stream(device) if gpu else None
        self._out = torch.cuda.Stream(device) if gpu else None
        self._sources = deque[list[Tensor]](maxlen=_IN_FLIGHT)

    def to_device(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Start to copy tensors of the CPU; kernels that are launched from now on wait for them, nobody else does. What
        is on the device stays as it is."""
        if self.here:
            return list(tensors)
        if self._in is None:
            self._sources.append(sources := list(tensors))
            return [tensor.to(self.device, non_blocking=True) for tensor in sources]
        kernels = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._in):
            copied = [
                tensor if tensor.is_cuda else tensor.pin_memory().to(self.device, non_blocking=True)
                for tensor in tensors
            ]
        kernels.wait_stream(self._in)
        for tensor in copied:
            tensor.record_stream(kernels)
        return copied

    def mark(self) -> "torch.cuda.Event | None":
        """What the device has been given so far, for `to_host`."""
        return None if self._out is None else torch.cuda.current_stream(self.device).record_event()

    def to_host(self, values: Tensor, mark: "torch.cuda.Event | None") -> Tensor:
        """A copy on the CPU (there: `values` themselves). Waits for the kernels before `mark`, but for none after it.

        :param values: kept alive and unchanged by the caller until this returns
        """
        if self._out is None:
            return values.cpu()
        copied = self.pinned(values.numel())
        with torch.cuda.stream(self._out):
            if mark is not None:
                self._out.wait_event(mark)
            copied.copy_(values, non_blocking=True)
            done = torch.cuda.Event(blocking=True)
            done.record(self._out)
        done.synchronize()
        return copied

    def readout(self, values: Tensor) -> Readout:
        """Start to copy a few float32 values of the device to the CPU."""
        return Readout(values)

    def pinned(self, size: int) -> Tensor:
        """float32 [size] on the CPU, uninitialised, that this device copies from and to without waiting."""
        return torch.empty(size, pin_memory=self._in is not None)
