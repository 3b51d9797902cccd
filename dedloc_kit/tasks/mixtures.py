"""What is read in the course of a run: its data, and another mixture while the learning rate falls."""

from collections.abc import Callable, Generator, Iterator
from typing import Any

from dedloc_kit.run import RunConfig, Source, seed_of
from dedloc_kit.tasks import Batch, Task, create_task


def task_on(run: RunConfig, sources: tuple[Source, ...], module: str | None, **data: Any) -> Task:
    """The run's task with other training data.

    :param module: as for `create_task`
    :param data: further keys of `run.data` that change
    """
    changed = run.data.model_copy(update={"train": sources, **data})
    return create_task(run.model_copy(update={"data": changed}), module)


class Mixtures:
    """A task's batches, from `data.train` or, while the learning rate falls, from `data.decay` if it names anything.

    :param module: as for `create_task`
    :param falls: does the learning rate fall now?
    """

    def __init__(self, run: RunConfig, task: Task, module: str | None, falls: Callable[[], bool]) -> None:
        self._run, self._task, self._module, self._falls = run, task, module, falls

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        """As `Task.batches`; whether the rate falls is asked before each batch."""
        usual = self._task.batches(microbatch, seed, warn)
        if not self._run.data.decay:
            return usual
        return self._mixed(usual, lambda: self._last(microbatch, seed, warn))

    def _last(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        """Opened when it is needed: most of a run passes before."""
        task = task_on(self._run, self._run.data.decay, self._module)
        return task.batches(microbatch, seed_of(seed, "decay"), warn)

    def _mixed(self, usual: Iterator[Batch], open_last: Callable[[], Iterator[Batch]]) -> Generator[Batch, None, None]:
        last: Iterator[Batch] | None = None
        try:
            while True:
                if self._falls():
                    last = last or open_last()
                    yield next(last)
                else:
                    yield next(usual)
        finally:
            for each in (usual, last):
                if isinstance(each, Generator):
                    each.close()  # open files are let go in the thread that reads them
