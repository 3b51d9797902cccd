"""What is read in the course of a run: its data, and another mixture while the learning rate falls."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from dedloc_kit.learning.data.loader import Loader
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.task import Batch, Task, create_task
from dedloc_kit.learning.tasks.in_blocks import DECAY, InBlocks
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.seeds import seed_of
from dedloc_kit.run.task import Source


def run_on(run: RunConfig, sources: tuple[Source, ...], **data: Any) -> RunConfig:
    """The run with other training data.

    :param data: further keys of `run.data` that change
    """
    changed = run.data.model_copy(update={"train": sources, **data})
    return run.model_copy(update={"data": changed})


def task_on(run: RunConfig, sources: tuple[Source, ...], module: str | None, **data: Any) -> Task:
    """The run's task with other training data, as `run_on` says.

    :param module: as for `create_task`
    """
    return create_task(run_on(run, sources, **data), module)


def in_blocks(run: RunConfig, task: Task, seed: int, warn: Callable[[str], None]) -> InBlocks:
    """What a task makes of the run's data where checks are on."""
    return InBlocks(run, task, seed, warn)


def of_decay(run: RunConfig, module: str | None, seed: int, warn: Callable[[str], None]) -> InBlocks:
    """The same of `data.decay`.

    :param seed: that of the usual mixture
    """
    last = run_on(run, run.data.decay)
    return in_blocks(last, create_task(last, module), seed_of(seed, "decay"), warn)


def batches_of(run: RunConfig, task: Task, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
    """As `Task.batches`; where checks are on in blocks, so that others can make any of them again."""
    if run.trust.checks == "on":
        return in_blocks(run, task, seed, warn).batches(microbatch)
    return task.batches(microbatch, seed, warn)


def loader_of(run: RunConfig, task: Task, warn: Callable[[str], None], ahead: int) -> Loader:
    """Makes the batches of `data.train` once it is started with the size of a microbatch and a seed."""

    def make(told: Callable[[str], None], microbatch: int, seed: int) -> Iterator[Batch]:
        return batches_of(run, task, microbatch, seed, told)

    return Loader(make, warn, ahead)


class Mixtures:
    """A task's batches, from `data.train` or, while the learning rate falls, from `data.decay` if it names anything.

    :param module: as for `create_task`
    :param falls: does the learning rate fall now?
    :param loader: a `loader_of` this run, which makes those of `data.train`; none: a thread does
    """

    def __init__(
        self,
        run: RunConfig,
        task: Task,
        module: str | None,
        falls: Callable[[], bool],
        loader: Loader | None = None,
    ) -> None:
        self._run, self._task, self._module, self._falls = run, task, module, falls
        self._loader = loader

    @contextmanager
    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None], ahead: int) -> Iterator[Iterator[Batch]]:
        """As `Task.batches`, at most `ahead` of them read in the background until the block is left.

        Whether the rate falls is asked when a batch is taken: what was read ahead of the other mixture is then not in
        its way, and waits.
        """
        with ExitStack() as stack:
            usual: Iterator[Batch]
            if self._loader is not None:
                usual = stack.enter_context(self._loader.start(microbatch, seed))
            else:
                usual = stack.enter_context(Prefetch(batches_of(self._run, self._task, microbatch, seed, warn), ahead))

            @cache
            def last() -> Iterator[Batch]:
                return stack.enter_context(Prefetch(self._last(microbatch, seed, warn), ahead))

            if self._run.data.decay:
                yield iter(lambda: next(last() if self._falls() else usual), None)
            else:
                yield usual

    def _last(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        """Opened when it is needed: most of a run passes before."""
        if self._run.trust.checks == "on":
            yield from of_decay(self._run, self._module, seed, warn).batches(microbatch, DECAY)
        else:
            task = task_on(self._run, self._run.data.decay, self._module)
            yield from task.batches(microbatch, seed_of(seed, "decay"), warn)
