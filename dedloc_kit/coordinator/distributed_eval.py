"""What a run's held-out loss is, as whoever holds the stages of its model computes it."""

from collections.abc import Callable, Iterator, Sequence

from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.records.evaluation import Evaluation


def evaluated_in_parts(task: Task, rows: int, losses: Callable[[Sequence[Batch]], Sequence[float]]) -> Evaluation:
    """As `evaluate` of the task, without a model.

    :param rows: of a part, at most
    :param losses: the mean loss of each part
    """
    weighed = [(part, task.weight(part)) for batch in task.held_out_batches() for part in _in_rows(batch, rows)]
    weighed = [(part, weight) for part, weight in weighed if weight]
    found = losses([part for part, _ in weighed])
    total = sum(loss * weight for loss, (_, weight) in zip(found, weighed, strict=True))
    return task.evaluation_of(total / sum(weight for _, weight in weighed))


def _in_rows(batch: Batch, rows: int) -> Iterator[Batch]:
    for begin in range(0, len(next(iter(batch.values()))), rows):
        yield {name: values[begin : begin + rows] for name, values in batch.items()}
