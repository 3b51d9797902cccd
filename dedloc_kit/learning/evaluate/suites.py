"""`dedloc evaluate --suite`: the standard suites of lm-evaluation-harness, and tasks of one's own, scored by itself.

The harness reads the questions, asks the model through its own `HFLM`, and scores the answers; the figures are those of
`lm_eval`. Tasks that have names come from the installed package. Nothing that comes from the Hub is code.
"""

import logging
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dedloc_kit.display.human import count
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.patience import one_line
from dedloc_kit.learning.evaluate.pretrained import Pretrained
from dedloc_kit.learning.evaluate.report import Report, Row, SuitesReport, shown
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import SuiteSettings
from dedloc_kit.learning.evaluate.suite_languages import Named, harness, task_of
from dedloc_kit.machine.paths import expanded

METRICS = {
    "acc": "accuracy",
    "acc_norm": "accuracy by length",
    "exact_match": "exact matches",
    "f1": "F1",
    "bits_per_byte": "bits per byte",
    "word_perplexity": "perplexity per word",
    "byte_perplexity": "perplexity per byte",
    "perplexity": "perplexity",
}
"""By the harness's names; of a task's metrics the first of these is its score."""


def chosen(settings: SuiteSettings, warn: Callable[[str], None]) -> list[Named]:
    """The tasks that are the suites, in their order; a suite that lacks the language is left out, and told.

    Raises UserError for what the person can put right.
    """
    harness()
    tasks, lacking = [], []
    for suite in dict.fromkeys(settings.suite):
        if _is_file(suite):
            tasks.append(_own(suite, warn))
        elif (task := _named(suite, settings)) is not None:
            tasks.append(task)
        else:
            lacking.append(_lacking(suite, settings))
    if not tasks:
        raise UserError(f"{' and '.join(lacking)}; choose another suite, or a task of your own (FILE.yaml)")
    for text in lacking:
        warn(f"{text}; it is left out")
    return tasks


def check(settings: SuiteSettings) -> None:
    """Raise UserError unless all suites are there in the language; the harness is not loaded, nor are tasks read."""
    harness()
    for suite in settings.suite:
        if _is_file(suite):
            _existing(suite)
        elif _named(suite, settings) is None:
            raise UserError(f"{_lacking(suite, settings)}; leave it out")


def evaluate(
    models: Mapping[str, str | Path], tasks: Sequence[Named], settings: SuiteSettings, session: Session
) -> SuitesReport:
    """Score models by tasks, and show the scores.

    :param models: folders by name; the first one is compared with the others
    :param tasks: those of `chosen`

    Raises UserError for what the person can put right.
    """
    with _quiet() as warnings:
        loaded = [(task, _load(task)) for task in tasks]
        scores: dict[str, list[_Score]] = {}
        for name, folder in models.items():
            model = _model(name, str(folder), settings.batch, session)
            scores[name] = [_score(name, model, task, found, settings, session, warnings) for task, found in loaded]
            del model  # before the next one takes its place
    (checkpoint, ours), *others = scores.items()
    reports = [
        Report(
            checkpoint=checkpoint,
            settings={"task": task.name, **settings.model_dump(mode="json", exclude={"suite"})},
            samples={"questions": ours[number].questions},
            metric=ours[number].metric,
            over="questions",
            trained=ours[number].row,
            against={name: theirs[number].row for name, theirs in others},
        )
        for number, task in enumerate(tasks)
    ]
    return session.finish(SuitesReport(suites=tuple(reports)))


def _is_file(suite: str) -> bool:
    return suite.endswith((".yaml", ".yml"))


def _named(suite: str, settings: SuiteSettings) -> Named | None:
    if settings.language is None:
        task_of(suite, "en")  # a name that is none comes first
        raise UserError(
            f"the suite {suite} has many languages; name one: --language uk, or suite_language of a coordinator"
        )
    return task_of(suite, settings.language)


def _lacking(suite: str, settings: SuiteSettings) -> str:
    return f"{suite} has no questions in the language {settings.language!r:.40}"


def _existing(file: str) -> Path:
    path = expanded(file).absolute()
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise UserError(f"{file} does not exist; name the file of a task in the form of lm-evaluation-harness")
    return path


def _own(file: str, warn: Callable[[str], None]) -> Named:
    """A task of the person's own disk; what it names there as code runs, and that is told."""
    from lm_eval.api.registry import metric_registry
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    path = _existing(file)
    task = Named("", path.parent, path)
    with _explained(task):
        read = load_yaml(path, resolve_func=False)
        name = read.get("group", read.get("task"))
        if not isinstance(name, str):
            raise ValueError("it has neither a task nor a group with a name")
        configs = [read]
        if "group" in read:  # its tasks are in files beside it
            index = TaskManager(include_defaults=False, include_path=path.parent).task_index
            configs += [entry.cfg for entry in index.values() if entry.cfg]
        import lm_eval.api.metrics  # noqa: F401 - fills the registry

        for metric in (each for config in configs for each in _metrics(config)):
            known = metric.get("metric")
            # Anything else is fetched from the Hub by the library `evaluate`, and run; a path is a function.
            if metric.get("hf_evaluate") or not (known in metric_registry or str(known).startswith("/")):
                raise ValueError(f"the metric {known!r:.40} is none of the harness, and no code of the Hub is run")
    if b"!function" in path.read_bytes():
        warn(f"{file} names functions in files beside it; they run as your own code")
    return task._replace(name=name)


def _metrics(config: Any) -> Iterator[dict[str, Any]]:
    """All that a task is scored by, also within a group."""
    match config:
        case {"metric_list": [*metrics]}:
            yield from (each for each in metrics if isinstance(each, dict))
    match config:
        case {"task": [*inner]}:
            for each in inner:
                yield from _metrics(each)


def _load(task: Named) -> Any:
    """The tasks with their questions, which may be downloaded."""
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    with _explained(task):
        by_name = task.file is None or "group" in load_yaml(task.file, resolve_func=False)
        manager = TaskManager(include_defaults=False, include_path=task.folder if by_name else None)
        return manager.load([task.name if by_name else str(task.file)])


def _model(name: str, folder: str, batch: int, session: Session) -> Any:
    """The harness's own model around one that was loaded without code of its own."""
    from lm_eval.models.huggingface import HFLM

    pretrained = Pretrained(folder, max_length=2**20)
    if pretrained.kind != "causal":
        raise UserError(f"{name} is no causal language model; the suites ask such ones alone")
    model = pretrained.language_model(dtype="auto").to(session.device)
    return HFLM(pretrained=model, tokenizer=pretrained.tokenizer, backend="causal", batch_size=batch)


class _Warnings(logging.Handler):
    """In place of the harness's own: it warns once for each row that it cuts off, and of how it is used here.

    :ivar cut: was a row cut off?
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.cut = False

    def emit(self, record: logging.LogRecord) -> None:
        self.cut |= "Truncating" in record.getMessage()


@contextmanager
def _quiet() -> Iterator[_Warnings]:
    log, warnings = logging.getLogger("lm_eval"), _Warnings()
    log.addHandler(warnings)
    log.propagate = False
    try:
        yield warnings
    finally:
        log.removeHandler(warnings)
        log.propagate = True


class _Score(NamedTuple):
    metric: str
    questions: int
    row: Row


def _score(
    name: str,
    model: Any,
    task: Named,
    found: Any,
    settings: SuiteSettings,
    session: Session,
    warnings: _Warnings,
) -> _Score:
    """Ask a model the questions of a task, and tell the score."""
    started, warnings.cut = time.monotonic(), False
    with _explained(task) if task.file is not None else nullcontext():
        result = _scored(model, found, settings.samples)
    seconds = round(time.monotonic() - started, 1)
    if warnings.cut:
        session.warn(
            f"{name} takes {model.max_length} tokens at once: longer questions of {task.name} lost their beginning, so "
            "its score says less"
        )
    metric, row = _row(name, task, result)
    questions = sum(each["effective"] for each in result["n-samples"].values())
    asked = f"{count(questions, 'question')} in {seconds:.0f} s on {session.where}"
    session.line(f"{name}: {metric} {shown(row.mean, metric)} ± {shown(row.spread, metric)}, {asked}")
    return _Score(metric, questions, row.model_copy(update={"seconds": seconds}))


def _scored(model: Any, tasks: Any, samples: int | None) -> Any:
    """What `simple_evaluate` of the harness does, without its look at the machine, which takes seconds."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
    from lm_eval.evaluator import evaluate as scored
    from lm_eval.utils import set_torch_seed

    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    set_torch_seed(DEFAULT_OTHER_SEED)
    for task in tasks["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return scored(lm=model, task_dict=tasks, limit=samples, log_samples=False)


def _row(name: str, task: Named, result: Mapping[str, Any]) -> tuple[str, Row]:
    """The metric in words, and the score by it."""
    found = {key.partition(",")[0]: value for key, value in reversed(result["results"][task.name].items())}
    metric = next((each for each in METRICS if each in found), None)
    if metric is None:
        given = ", ".join(key for key in found if key not in ("alias", "name", "sample_len")) or "nothing"
        raise UserError(f"{task.name} is scored by {given}; here by {', '.join(METRICS)}: name one in its metric_list")
    mean, stderr = found[metric], found.get(f"{metric}_stderr")
    if not isinstance(mean, int | float) or not math.isfinite(mean):
        raise UserError(
            f"{name} gives no finite score in {task.name}; its training has diverged, or its file is damaged"
        )
    spread = float(stderr) if isinstance(stderr, int | float) and math.isfinite(stderr) else None
    return f"{METRICS[metric]} of {task.name}", Row(mean=float(mean), spread=spread, kind="causal")


@contextmanager
def _explained(task: Named) -> Iterator[None]:
    """Say in one line what the harness, which raises anything, could not do with a task."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if task.file is not None:
            raise UserError(
                f"{task.file} cannot be used ({one_line(error)}); correct it; data that it "
                "names is looked for in the folder in which you are"
            ) from None
        raise UserError(
            f"{task.name} cannot be read from the Hub ({one_line(error)}); check the connection, or name a task of "
            "your own (FILE.yaml) with data that lies here"
        ) from None
