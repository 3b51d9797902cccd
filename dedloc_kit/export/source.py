"""What a person names when it wants a trained model: a run's folder or one of its checkpoints, a folder, OWNER/NAME.

Nothing that is named is changed, for another process may write to it. A name of the Hub is never a path, and all that
a run's folder says is checked as if it came from the network.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dedloc_kit.blocks.weights.manifest import INDEX, SINGLE, weight_files
from dedloc_kit.config.places import with_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.export.checkpoint_file import CheckpointFile
from dedloc_kit.hub import CARD_FILE, HubUnavailable, model_files, repository_and_revision
from dedloc_kit.learning.train.state.checkpoint import path_of, step_to_use, steps_in
from dedloc_kit.machine.home import known_copies
from dedloc_kit.machine.paths import exists, expanded
from dedloc_kit.pretrained import CONFIG, GENERATION_CONFIG, MODEL_FOLDER, TOKENIZER_FILES, WEIGHTS
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation, Requirement
from dedloc_kit.records.record import Record
from dedloc_kit.records.state import StateInfo
from dedloc_kit.version import __version__

if TYPE_CHECKING:
    from torch import nn

EXPORTED_FILE = "exported.json"
"""In a folder that was written here: of what it is."""
MAX_FILE = 2**26
"""Bytes of any file of a model but its weights."""
ATTEMPTS = 5
"""A run that writes may remove a checkpoint between the look at the folder and the opening of the file."""
_CHECKPOINTS = "checkpoints"


class Exported(Record):
    """What a folder that was written here says of itself."""

    run_id: str = ""
    """Of the run whose model it is; empty: of none."""
    step: int = 0
    round: str = ""
    """The all-reduce that led to it: after a rewind there is another model of the same step."""
    files: tuple[str, ...]
    """All that were written."""

    def is_of(self, info: StateInfo) -> bool:
        """Is it what a checkpoint holds?"""
        return (self.run_id, self.step, self.round) == (info.run_id, info.step, round_of(info))

    @classmethod
    def of(cls, folder: Path) -> "Exported | None":
        """None if the folder was not written here."""
        try:
            with (folder / EXPORTED_FILE).open("rb") as file:
                return cls.model_validate_json(file.read(MAX_FILE))
        except (OSError, ValidationError):
            return None


@dataclass(frozen=True)
class Finished:
    """A folder that transformers loads."""

    folder: Path
    name: str
    """For people, and for the names of files."""
    on_hub: bool = False
    """Whether it was downloaded."""


@dataclass(frozen=True)
class Trained:
    """What a run's model was after a global step; its checkpoint is open, so it cannot vanish any more."""

    folder: Path
    """The run's."""
    run: RunConfig
    """It reads this machine's copies of what it names."""
    checkpoint: Path
    tensors: CheckpointFile

    @property
    def name(self) -> str:
        """For people, and for the names of files."""
        return self.run.name

    @property
    def step(self) -> int:
        return self.tensors.info.step

    def model(self, task: Any) -> "nn.Module":
        """The model of the run's task as it was then, on the CPU. Raises UserError if the checkpoint is not of it."""
        from dedloc_kit.learning.evaluate.pretrained import with_tensors

        try:
            if self.run.experts is not None:
                return with_tensors(task, self.run, self.tensors, self.checkpoint).eval()
            if self.run.pipeline is None:
                return self._filled(task.model(), "model.").eval()
            stages = [(f"stage{n}.model.", task.stage(n).model()) for n in range(self.run.pipeline.count)]
            whole: nn.Module = task.whole([self._filled(model, begin) for begin, model in stages])
            return whole.eval()
        except ValueError as error:
            raise UserError(f"{error}; name another checkpoint of the run") from None

    def _filled(self, model: "nn.Module", begin: str) -> "nn.Module":
        """:param begin: of the names of its tensors in the checkpoint"""
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if self.tensors.shape(f"{begin}{name}") != tuple(each.shape):
                raise UserError(
                    f"{self.checkpoint} has no {name} like the model of {self.run.run_id}; name another checkpoint"
                )
            self.tensors.read_into(f"{begin}{name}", each)
        return model

    @property
    def finished(self) -> Path | None:
        """The folder that the run itself has written of this step, if it has."""
        folder = self.folder / MODEL_FOLDER
        written = Exported.of(folder)
        return folder if written is not None and written.is_of(self.tensors.info) else None


def round_of(info: StateInfo) -> str:
    """The all-reduce that led to a state."""
    return info.rounds[-1] if info.rounds else ""


def find(where: str, step: int | None = None, data: Mapping[str, Path] | None = None) -> Finished | Trained:
    """What a person names; what is on the Hub is downloaded first.

    :param where: a run's folder (its best checkpoint, or the newest one where none was measured), the folder in which
        `dedloc demo` keeps one, a checkpoint in it, a folder that transformers loads, or `OWNER/NAME[@REVISION]`
    :param step: of a run's folder the checkpoint of this global step
    :param data: copies of what the run names, as `PeerConfig.data`, if they are not where they were when it was led

    Raises UserError with what is wrong and the fix.
    """
    path = expanded(where)
    if exists(path):
        return _local(path.absolute(), step, data or {})
    if step is not None:
        raise UserError(f"--step is for the folder of a run; {where} is none on this machine")
    if (named := repository_and_revision(where)) is None:
        raise UserError(
            f"{where} does not exist; name a run's folder, a checkpoint in it, a model's folder, or OWNER/NAME of the "
            "Hub"
        )
    return Finished(_downloaded(*named), named[0].rpartition("/")[2], on_hub=True)


def model_names(folder: Path) -> list[str]:
    """The files of a folder that belong to its model; raises UserError if it has no whole one, or one is too large."""
    small = [name for name in (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, CARD_FILE) if (folder / name).is_file()]
    for name in small:
        if (folder / name).stat().st_size > MAX_FILE:
            raise UserError(f"{folder / name} is larger than {MAX_FILE} bytes, which no model needs; correct it")
    if CONFIG not in small:
        raise UserError(f"{folder} holds no model of transformers: there is no {CONFIG}; name a folder that has one")
    try:
        kind = json.loads((folder / CONFIG).read_bytes())["model_type"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        kind = None
    if not isinstance(kind, str):
        raise UserError(
            f"{folder} holds no model of transformers: its {CONFIG} names no model_type; use it as its card says"
        )
    weights = weight_files(folder)
    if missing := [name for name in weights if not (folder / name).is_file()]:
        raise UserError(f"{folder} lacks {missing[0]}; get the model again")
    return [*small, *sorted(weights), *([] if SINGLE in weights else [INDEX])]


def _local(path: Path, step: int | None, data: Mapping[str, Path]) -> Finished | Trained:
    if path.is_file():
        run = next((each for each in path.parents[:2] if is_run(each)), None)
        if path.suffix != ".safetensors" or run is None:
            raise UserError(
                f"{path} is no checkpoint in a run's folder; name one (RUN/{_CHECKPOINTS}/step-00000042.safetensors), "
                "the run's folder, or the folder of a model"
            )
        if step is not None:
            raise UserError(f"--step is for the folder of a run, and {path} is a file; leave it out")
        return _trained(run, path, data)
    for run in (path, path / "coordinator", path.parent):
        if is_run(run) and (run != path.parent or path.name == _CHECKPOINTS):
            return _best(run, data) if step is None else _of_step(run, step, data)
    if (path / CONFIG).is_file():
        if step is not None:
            raise UserError(f"--step is for the folder of a run, and {path} is one of a model; leave it out")
        return Finished(path, path.name)
    raise UserError(
        f"{path} is neither a run's folder (with {INVITATION_FILE} and {_CHECKPOINTS}) nor one that transformers loads "
        f"(with {CONFIG}); name another"
    )


def is_run(folder: Path) -> bool:
    """Is it the folder of a run that is, or was, led from here?"""
    return (folder / INVITATION_FILE).is_file() and (folder / _CHECKPOINTS).is_dir()


def _best(run: Path, data: Mapping[str, Path]) -> Trained:
    for _ in range(ATTEMPTS):
        if (step := step_to_use(run / _CHECKPOINTS)) is None:
            lost = " that is not lost" if steps_in(run / _CHECKPOINTS) else ""
            raise UserError(f"{run} has no checkpoint{lost} yet; wait until the run has taken more global steps")
        try:
            return _trained(run, path_of(run / _CHECKPOINTS, step), data)
        except FileNotFoundError:
            continue
    raise UserError(f"{run} changes faster than it can be read; try again")


def _of_step(run: Path, step: int, data: Mapping[str, Path]) -> Trained:
    try:
        return _trained(run, path_of(run / _CHECKPOINTS, step), data)
    except FileNotFoundError:
        kept = ", ".join(f"{each}" for each in sorted(steps_in(run / _CHECKPOINTS))) or "none yet"
        raise UserError(f"{run} has no checkpoint of step {step}; it keeps: {kept}") from None


def _trained(run: Path, checkpoint: Path, data: Mapping[str, Path]) -> Trained:
    """Raises FileNotFoundError if the checkpoint is gone."""
    try:
        tensors = CheckpointFile(checkpoint)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{checkpoint} cannot be read ({error.strerror}); check its permissions") from None
    except ValueError as error:
        raise UserError(f"{error}; name another checkpoint of the run, with --step") from None
    config = _configuration(run, data)
    of = tensors.info.run_id
    if of != config.run_id and of.rpartition("-")[0] != config.name:
        raise UserError(f"{checkpoint} belongs to the run {of}, and {run} is of {config.run_id}; name its own folder")
    return Trained(run, config, checkpoint, tensors)


def _configuration(folder: Path, data: Mapping[str, Path]) -> RunConfig:
    """What the run's invitation says, with this machine's copies: those that are named, those with which it was led
    here, and in place of a tokenizer that is gone the one in the run's own model folder."""
    path = folder / INVITATION_FILE
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE).decode("utf-8")
        needed = Requirement.model_validate_json(text).version
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no invitation"
        raise UserError(f"{path}, which says what the run's model is, cannot be read ({why})") from None
    if needed != __version__:
        there = (folder / MODEL_FOLDER / CONFIG).is_file()
        other = f", or use {folder / MODEL_FOLDER}, which needs no dedloc_kit" if there else ""
        raise UserError(
            f"the run in {folder} is of dedloc_kit {needed}, and here is {__version__}: do this with {needed}{other}"
        )
    invitation = Invitation.parse(text)
    run = invitation.run_config()
    copies = {name: place for name, place in known_copies(run.run_id, invitation.organizer).items() if place.exists()}
    written = Exported.of(folder / MODEL_FOLDER)
    tokenizer = run.task.options.get("tokenizer")
    if written and written.run_id == run.run_id and isinstance(tokenizer, str) and "/" not in tokenizer:
        copies.setdefault(tokenizer, folder / MODEL_FOLDER)
    return with_copies(run, copies | dict(data))


def _downloaded(repository: str, revision: str | None) -> Path:
    files = [CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, *WEIGHTS, CARD_FILE]
    try:
        return model_files(repository, revision, files)
    except HubUnavailable as error:
        raise UserError(f"{repository} cannot be read now ({error}); check the connection and try again") from None
