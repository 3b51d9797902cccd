"""What a run needs on the organizer's machine before it can start: a corpus for the demo, a tokenizer."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from dedloc_kit.errors import UserError
from dedloc_kit.resources import recipe
from dedloc_kit.run import RunConfig, load_run, seed_of

TOKENIZER_CHARACTERS = 8_000_000
"""Characters from which a tokenizer is trained: it takes half a minute, and more hardly changes the vocabulary."""
TOKENIZER_SHUFFLE = 1_000


def prepare_demo(name: str, folder: Path) -> RunConfig:
    """Copy a recipe to a folder and give it what it names but lacks: the corpus of this machine, a tokenizer."""
    source = recipe(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "run.toml", folder / "run.toml")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); set DEDLOC_HOME to another folder") from None
    run = load_run(folder / "run.toml")
    corpus = folder / "corpus"
    if not corpus.exists() and any(Path(part.dataset).is_relative_to(corpus) for part in run.data.train):
        from dedloc_kit.data.docstrings import write_corpus

        write_corpus(corpus)
    if isinstance(run.task.options.get("tokenizer"), str) and not _exists(run.task.options["tokenizer"]):
        prepare_tokenizer(run)
    return run


def prepare_tokenizer(run: RunConfig) -> Path:
    """Train the tokenizer that the run names, on its training data; returns the folder."""
    from dedloc_kit.data.stream import documents
    from dedloc_kit.data.tokenizer import train_tokenizer

    tokenizer, vocabulary = run.task.options.get("tokenizer"), run.task.options.get("vocabulary")
    if not isinstance(tokenizer, str) or not Path(tokenizer).is_absolute():
        raise UserError("task.tokenizer must be a local folder to train one; a tokenizer on the Hub is used as it is")
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise UserError("task.vocabulary must say how many tokens the tokenizer is to have")
    warnings = Console(stderr=True, highlight=False, markup=False)
    texts = documents(
        run.data.train, seed=seed_of(run.name, "tokenizer"), shuffle_buffer=TOKENIZER_SHUFFLE, warn=warnings.print
    )
    train_tokenizer(_first_characters(texts, TOKENIZER_CHARACTERS), vocabulary, Path(tokenizer))
    return Path(tokenizer)


def _first_characters(texts: Iterator[str], limit: int) -> Iterator[str]:
    for text in texts:
        yield text
        limit -= len(text)
        if limit <= 0:
            return


def _exists(tokenizer: str) -> bool:
    return not Path(tokenizer).is_absolute() or Path(tokenizer).exists()
