"""Standard suites on whatever a person names as a model: a run's folder, a checkpoint in it, a folder, OWNER/NAME."""

from collections.abc import Sequence
from contextlib import ExitStack

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.export.folder import as_folder
from dedloc_kit.export.source import find
from dedloc_kit.learning.evaluate import pretrained, suites
from dedloc_kit.learning.evaluate.report import SuitesReport
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import SuiteSettings
from dedloc_kit.learning.evaluate.suite_languages import reference


def evaluate_suites(
    names: Sequence[str],
    settings: SuiteSettings,
    session: Session,
    run: RunConfig | None = None,
    task_module: str | None = None,
) -> SuitesReport:
    """Score models by standard suites, and show the scores; the first model is compared with the others.

    :param run: of a checkpoint that lies outside of its run's folder
    :param task_module: as for `create_task`
    Raises UserError for what the person can put right.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tasks = suites.chosen(settings, session.warn)
    with ExitStack() as stack:
        if run is not None:
            models = {name: stack.enter_context(pretrained.as_folder(name, run)) for name in names}
        else:
            found = {name: find(name) for name in names}  # all, before any is written
            models = {name: str(stack.enter_context(as_folder(each, task_module))) for name, each in found.items()}
        if len(models) < len(names):
            raise UserError("a model is named twice; name each one once")
        report = suites.evaluate(models, tasks, settings, session)
    if len(names) == 1 and settings.language is not None and (other := reference(settings.language)) is not None:
        session.line(f"to compare with a published model of this language (2.15 B parameters): --against {other}")
    return report
