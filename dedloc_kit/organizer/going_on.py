"""A run that goes on from a model on this machine: what its configuration has to say of it."""

from pathlib import Path
from typing import Any

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import SEQUENCE_LENGTH, TaskConfig


def model_folder(where: str, folder: Path) -> Path:
    """The folder of a model that a person names: a run's or a demo's folder, a checkpoint, a folder of transformers.

    :param folder: the model of a checkpoint is written below it, once

    Raises UserError with what is wrong and the fix.
    """
    from dedloc_kit.export.source import Finished, find

    found = find(where)
    if isinstance(found, Finished):
        return found.folder.resolve()
    if found.finished is not None:
        return found.finished.resolve()
    written = folder / f"{found.run.run_id}-{found.step}"
    if not written.is_dir():
        from dedloc_kit.export.folder import Place, write_trained
        from dedloc_kit.learning.data.folder import new_folder

        with new_folder(written) as temporary:
            write_trained(temporary, found, Place(str(written)))
    return written.resolve()


def going_on_from(run: RunConfig, model: Path) -> RunConfig:
    """A run with `task.init_from` that goes on from the model in a folder, whose shape and tokenizer it takes.

    Samples are no longer than the model's context. Raises UserError if the model is none for the run's task.
    """
    from dedloc_kit.learning.models.init_from import Start
    from dedloc_kit.learning.task import task_class

    kind: Any = task_class(run.task.name)
    shape, keys = Start(str(model)).described(kind.family)
    options = {**run.task.options, "init_from": str(model), **keys, "model": shape}
    context, length = shape.get("max_position_embeddings"), options.get("sequence_length", SEQUENCE_LENGTH)
    if isinstance(context, int) and isinstance(length, int):
        options["sequence_length"] = min(context, length)
    return run.model_copy(update={"task": TaskConfig(name=run.task.name, **options)})
