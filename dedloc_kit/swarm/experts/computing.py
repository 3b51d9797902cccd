"""The thread in which a host computes what others ask."""

import threading

import torch

from dedloc_kit.swarm.remote.turns import Turns

TURN_SECONDS = 0.1


class Computing(threading.Thread):
    """Takes turns until it is stopped. Not the thread that trains: that waits for hosts, which may wait for this one.

    :ivar ready: set once calls are answered at once
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__(name="experts", daemon=True)
        self._turns = turns
        self._stopped = threading.Event()
        self.ready = threading.Event()

    def run(self) -> None:
        # The first gradient in a process has torch import a large library: some seconds, which no call is to wait.
        number = torch.ones((), requires_grad=True)
        torch.autograd.grad(number * 1.0, [number], torch.ones(()))
        self.ready.set()
        while not self._stopped.is_set():
            self._turns.take(TURN_SECONDS)

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()
