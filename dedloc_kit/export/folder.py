"""A run's model as a folder for people: weights, tokenizer and card, on the Hub, in the run's folder and anywhere."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.curve import CURVE_FILE, MAX_POINTS, curve
from dedloc_kit.errors import UserError
from dedloc_kit.export.model_card import model_card
from dedloc_kit.export.placing import explained
from dedloc_kit.export.scores import reports
from dedloc_kit.export.source import Finished, Trained, model_names
from dedloc_kit.hub import CARD_FILE, RUN_FILE, described
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.ledger import Contributor, EvaluationPoint, Ledger
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE
from dedloc_kit.records.steps import GlobalStep

LEDGER_FILE = "ledger.sqlite"


class NotForPeople(UserError):
    """The task of a run writes no model that is used without dedloc_kit."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(
            f"the task '{run.task.name}' trains no model that is used without dedloc_kit; use its checkpoints, with "
            "the task"
        )


@dataclass(frozen=True)
class History:
    """What led to a model, as its card tells it."""

    steps: Sequence[GlobalStep]
    evaluations: Sequence[EvaluationPoint]
    contributors: Sequence[Contributor]
    samples: int

    @classmethod
    def of(cls, ledger: Ledger, step: int) -> "History":
        """Of all that the run knows until a global step; who contributed is told as of now."""
        every = max(1, ledger.last_step() // MAX_POINTS)
        later = sum(each.samples for each in ledger.steps(after=step))
        return cls(
            [each for each in ledger.steps(every=every) if each.step <= step],
            [each for each in ledger.evaluations() if each.step <= step],
            ledger.contributors(),
            max(0, ledger.samples_total() - later),
        )


@dataclass(frozen=True)
class Place:
    """Where people find a model.

    :ivar name: as they load it: `OWNER/NAME` of the Hub, or a folder such as `./bengali`
    :ivar repository: of the Hub, to which the training state is pushed as well
    :ivar metadata: the head of the card that is there so far
    """

    name: str
    repository: str | None = None
    metadata: Mapping[str, Any] | None = None


def write_model(
    folder: Path, model: nn.Module, task: Task, step: int, history: History, place: Place, run_folder: Path
) -> bool:
    """Write a model for people into an existing folder; whether it can be used without dedloc_kit.

    :param model: on the CPU, its parameters not shared with anything
    :param run_folder: where what `dedloc evaluate` found is looked for
    """
    usage = task.export(model, folder, place.name)
    card = model_card(
        task.run,
        step,
        repository=place.repository,
        usage=usage,
        steps=history.steps,
        evaluations=history.evaluations,
        contributors=history.contributors,
        samples=history.samples,
        metadata=place.metadata or {},
        scores=reports(run_folder),
    )
    training = [(each.step, each.loss) for each in history.steps if each.loss is not None]
    held_out = [(each.step, each.loss) for each in history.evaluations]
    listed = [asdict(each) for each in history.contributors]
    for name, text in (
        (CARD_FILE, card),
        (CONTRIBUTORS_FILE, json.dumps(listed, ensure_ascii=False, indent=1)),
        (CURVE_FILE, curve(training, held_out)),
        (RUN_FILE, described(task.run)),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    return usage is not None


def write_trained(folder: Path, source: Trained, place: Place, task_module: str | None = None) -> None:
    """Write the model of a run's checkpoint into an existing folder.

    :param task_module: as for `create_task`
    Raises NotForPeople, or UserError with what is wrong with the run's folder.
    """
    task = create_task(source.run, task_module)
    history = _history(source)
    if not write_model(folder, source.model(task), task, source.step, history, place, source.folder):
        raise NotForPeople(source.run)


@contextmanager
def as_folder(source: Finished | Trained, task_module: str | None = None, beside: Path | None = None) -> Iterator[Path]:
    """What was found as a folder that transformers loads: as it lies there, or written for as long as it is used.

    What a run has written itself it may put a newer one in the place of, as a whole.

    :param beside: a folder for what is to be written, which goes in the end; none: where temporary files are
    Raises UserError as `write_trained` and `model_names`.
    """
    if isinstance(source, Finished):
        model_names(source.folder)
        yield source.folder
    elif source.finished is not None:
        yield source.finished
    else:
        with ExitStack() as stack:
            with explained(beside or Path(gettempdir())):
                folder = Path(stack.enter_context(TemporaryDirectory(prefix=".dedloc-model-", dir=beside)))
                write_trained(folder, source, Place(source.name), task_module)
            yield folder


def _history(source: Trained) -> History:
    path = source.folder / LEDGER_FILE
    if not path.is_file():
        return History((), (), (), 0)
    ledger = Ledger(path, read_only=True)
    try:
        return History.of(ledger, source.step)
    finally:
        ledger.close()
