"""Training in one process, without any code of the swarm: the trunk, and all experts of a run that has some."""

from collections.abc import Callable, Sequence

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Microbatch, counting
from dedloc_kit.experts.mixture import connect
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.computing.loss_scale import loss_scaled
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate


class PlainLoop:
    """The usual loop: gradients of microbatches by their samples, clipped, one step of the run's optimizer.

    :ivar bank: the experts, each of which is clipped and takes its step by itself; none in a run without
    """

    def __init__(self, run: RunConfig, task: Task) -> None:
        self.run, self._task, self.step = run, task, 0
        self.model = task.model()
        groups = task.groups(self.model)
        self._optimizer = build_optimizer(run.optimizer, groups)
        self.bank: Bank | None = None
        if run.experts is not None:
            self.bank = Bank(run)
            self.bank.hold_all()
            connect(self.model, self.bank)

    def take(self, batches: Sequence[Batch], before: Callable[[], object] = lambda: None) -> float:
        """A global step over these microbatches; returns the mean loss.

        :param before: called before each of them
        """
        total, mean = sum(map(samples_in, batches)), 0.0
        for batch in batches:
            before()
            samples = samples_in(batch)
            share = samples / total
            # The experts weight gradients by samples themselves, as they do for trainers that know of no total yet.
            with counting(Microbatch(self.step + 1, samples)), loss_scaled(share):
                loss = self._task.loss(self.model, self._task.prepare(batch), self.step).mean * share
            loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.optimizer.max_grad_norm)
        rate = learning_rate(self.run.optimizer, self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        if self.bank is not None:
            self.bank.take(self.step, total, rate)
        return mean
