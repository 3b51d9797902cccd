"""What a run needs on the organizer's machine before it can start: data for the demo, a tokenizer."""

import time
from collections.abc import Iterator
from pathlib import Path

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, upload
from dedloc_kit.learning.models.picture_model.files import completed
from dedloc_kit.organizer.going_on import going_on_from, model_folder
from dedloc_kit.resources import recipe, small_text

_UNNAMED = "@COMMIT"
"""The end of a recipe's `task.init_from` that leaves the choice to its user."""


def prepare_demo(name: str, folder: Path, start: str | None = None) -> RunConfig:
    """The run of a recipe in its small form (`smoke.toml` if it has one), with all that it names but lacks.

    That is a tokenizer, which is made in `folder` the first time, and, where the recipe's data is not on this machine,
    the text that the kit brings. Raises UserError if that cannot be.

    :param start: what to go on from, as `going_on.model_folder` takes it
    """
    source = recipe(name)
    small = source / "smoke.toml"
    run = load_run(source / "run.toml", small if small.is_file() else None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); set DEDLOC_HOME to another folder") from None
    tokenizer, named = (run.task.options.get(key) for key in ("tokenizer", "init_from"))
    if start is not None:
        if named is None:
            raise UserError(f"the recipe {name} begins untrained; leave --init-from out, or choose the recipe chat")
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        run = going_on_from(run, model_folder(start, folder))
    elif isinstance(named, str) and named.endswith(_UNNAMED):
        raise UserError(
            f"the recipe {name} goes on from a model; make one with: dedloc demo --recipe gpt --keep FOLDER, and add "
            "--init-from FOLDER"
        )
    elif isinstance(named, str) and _lacking(named):
        raise UserError(f"the recipe {name} goes on from a model in {named}; make it as {source / 'README.md'} says")
    if "pictures" in run.task.options:
        if any(_lacking(part.dataset) for part in run.data.train):
            raise UserError(
                f"the recipe {name} learns from codes of pictures; make them as {source / 'README.md'} says"
            )
        run = completed(run)
    if any(_lacking(part.dataset) for part in run.data.train):
        if not isinstance(tokenizer, str):
            raise UserError(f"the pictures of the recipe {name} are not on this machine; choose a recipe of text")
        run = _with_text(run, str(small_text()))
    if isinstance(tokenizer, str) and _lacking(tokenizer):
        path = folder / Path(tokenizer).name
        run = run.model_copy(update={"task": run.task.model_copy(update={"tokenizer": str(path)})})
        if not path.exists():
            prepare_tokenizer(run)
    return run


def _lacking(name: str) -> bool:
    """Whether a dataset or a tokenizer is no name on the Hub and not on this machine either."""
    return Path(name).is_absolute() and not Path(name).exists()


def _with_text(run: RunConfig, dataset: str) -> RunConfig:
    data = {"train": (Source(dataset=dataset),), "evaluation": Source(dataset=dataset, split="test")}
    return run.model_copy(update={"data": run.data.model_copy(update=data)})


def prepare_tokenizer(run: RunConfig, characters: int | None = None, module: str | None = None) -> Path:
    """Train the tokenizer that the run names, on its training data; returns the folder.

    :param characters: how many to read; default: `dedloc_kit.learning.data.tokenizers.tokenizer.CHARACTERS`
    :param module: as for `create_task`
    """
    from dedloc_kit.learning.data.sources.stream import documents
    from dedloc_kit.learning.data.tokenizers.tokenizer import (
        CHARACTERS,
        tokenization_of,
        train_tokenizer,
        training_text,
    )
    from dedloc_kit.learning.task import task_class

    characters = characters or CHARACTERS
    folder, vocabulary = tokenizer_folder(run), run.task.options.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise UserError("task.vocab_size must say how many tokens the tokenizer is to have")
    task = task_class(run.task.name, module)
    if not task.special_tokens:
        raise UserError(f"the task '{run.task.name}' learns no tokens, so it needs no tokenizer")
    if task.own_records:
        raise UserError(
            f"the task '{run.task.name}' has the tokenizer of the model that it goes on from; remove task.tokenizer"
        )
    tokenization = tokenization_of(run.task, task.tokenization)
    seed = seed_of(run.name, "tokenizer")
    with TrainingDisplay(characters) as display:
        texts = documents(run.data.train, seed=seed, warn=display.line)
        read = display.watch(training_text(texts, characters, seed, tokenization))
        tokens = train_tokenizer(read, vocabulary, folder, tokenization, task.special_tokens)
        if tokens < vocabulary:
            display.line(f"the text gives only {tokens} tokens of the {vocabulary} that task.vocab_size asks for")
    return folder


def tokenizer_folder(run: RunConfig) -> Path:
    """Where the run's own tokenizer is or is to be; raises UserError if the run names none of its own."""
    if not has_own_tokenizer(run):
        raise UserError("task.tokenizer must be a local folder to train one; a tokenizer on the Hub is used as it is")
    return Path(run.task.options["tokenizer"])


def has_own_tokenizer(run: RunConfig) -> bool:
    """Whether the run names a tokenizer of this machine."""
    tokenizer = run.task.options.get("tokenizer")
    return isinstance(tokenizer, str) and Path(tokenizer).is_absolute()


def push_tokenizer(folder: Path, repository: str, private: bool = False) -> str:
    """Upload a tokenizer to a model repository on the Hub, made if there is none; returns `OWNER/NAME@COMMIT`.

    The token is the one that `hf auth login` keeps, or `HF_TOKEN`. Raises UserError if there is none, or the Hub
    refuses or cannot be reached; the folder stays as it is.
    """
    from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer

    load_tokenizer(str(folder))  # nothing but a tokenizer is made public
    try:
        commit = upload(folder, repository, ["tokenizer*.json"], kind="model", private=private)
    except HubUnavailable as error:
        raise UserError(
            f"the tokenizer is in {folder}, but not on the Hub ({error}); check the Internet connection, then give "
            "the same command again: it only uploads"
        ) from None
    return f"{repository}@{commit}"


class TrainingDisplay(BarDisplay):
    """How far the training of a tokenizer is: a bar on a terminal, a few lines elsewhere."""

    def __init__(self, characters: int) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            stderr=True,
        )
        self._characters = characters
        self._task = self._bar.add_task("reading", total=characters, note="")

    def watch(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces as they are; once they have all been read, the trainer computes."""
        start, read, shown = time.monotonic(), 0, 0
        step = self._characters // (500 if self.console.is_terminal else 4)
        for piece in pieces:
            yield piece
            read += len(piece)
            if read < shown + step:
                continue
            shown = read
            rate = read / (time.monotonic() - start)
            note = f"{read / 1e6:.1f} of {self._characters / 1e6:.1f} million characters, {rate / 1e6:.2f} a second"
            self._bar.update(self._task, completed=read, note=note)
            if not self.console.is_terminal:
                self.line(f"read {note}")
        self.line(f"read {read / 1e6:.1f} million characters; training the vocabulary")
        self._bar.remove_task(self._task)
        self._bar.add_task("training", total=None, note="")
