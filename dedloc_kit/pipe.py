"""Messages between two processes of one machine: a few values and tensors."""

import json
import os
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    str(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}


class Pipe:
    """One end. Several threads may send; one receives.

    :param handle: of a socket or pipe that goes both ways; it is this object's from now on
    """

    def __init__(self, handle: int) -> None:
        self._connection = Connection(handle)
        self._sending = threading.Lock()

    def send(self, values: dict[str, Any], tensors: Sequence[Tensor | None] = ()) -> None:
        """Raises OSError if the other end is gone.

        :param values: what JSON can say
        """
        flat = [None if t is None else t.detach().to("cpu").contiguous() for t in tensors]
        heads = [None if t is None else [str(t.dtype), list(t.shape)] for t in flat]
        with self._sending:
            self._connection.send_bytes(json.dumps([values, heads]).encode())
            for tensor in flat:
                if tensor is not None:
                    self._connection.send_bytes(tensor.reshape(-1).view(torch.uint8).numpy().data)

    def receive(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        """Raises EOFError or OSError if the other end is gone."""
        values, heads = json.loads(self._connection.recv_bytes())
        tensors: list[Tensor | None] = []
        for head in heads:
            if head is None:
                tensors.append(None)
            else:
                tensor = torch.empty(head[1], dtype=_DTYPES[head[0]])
                self._connection.recv_bytes_into(tensor.reshape(-1).view(torch.uint8).numpy().data)
                tensors.append(tensor)
        return values, tensors

    def close(self) -> None:
        self._connection.close()


def inherited(handle: int) -> Pipe:
    """The end that the starter of this process has left open for it; none of its own children gets it."""
    os.set_inheritable(handle, False)
    return Pipe(handle)
