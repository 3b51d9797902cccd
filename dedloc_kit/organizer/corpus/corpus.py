"""Cleans the text of a run in three steps: read and judge, compare, write shards.

Each step keeps its work in hidden folders of the workplace until all is written. An interrupted step resumes from there
and gives the same result.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from itertools import compress, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.display.human import count, visible
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.token_shards import shard_path
from dedloc_kit.organizer.corpus.duplicates import Duplicates, SketchFiles, find_duplicates, write_array
from dedloc_kit.organizer.corpus.held_out import HeldOut
from dedloc_kit.organizer.corpus.language import Identifier
from dedloc_kit.organizer.corpus.reading import Cleaner, Reading, batches, cut, part_path, read_texts, write_texts
from dedloc_kit.organizer.corpus.report import SHOWN, Display, Progress, Removed, card, described, described_copies
from dedloc_kit.organizer.corpus.sketch import KEYS, check_rensa
from dedloc_kit.organizer.prepare_source import Sizes, Workplace, identity_of, workplace
from dedloc_kit.organizer.prepare_tokens import named_sources

VERSION = 1
"""Of the rules and the sketches. Work of another version is not resumed."""
SIZES = Sizes(file=2**25, characters=2**20, texts=2**14)
"""Minimal characters of a part, checked after each chunk of `characters`."""
GROUP = 2**20
"""Characters of a row group: a reader fetches it at once."""
_COMPARED = ".compared"


def check_learns_text(run: RunConfig) -> None:
    """Raise UserError for a task whose data is no plain text."""
    options, name = run.task.options, run.task.name
    if name == "chat" or "pictures" in options or not options.keys() & {"tokenizer", "init_from"}:
        raise UserError(f"the task '{name}' learns from no plain text, so there is no corpus to clean")


def prepare_corpus(
    run: RunConfig, folder: Path, languages: Sequence[str], display: Display, sizes: Sizes = SIZES
) -> Progress:
    """Write the run's training text, `data.cooldown` too, without bad lines and documents, other languages, held-out
    text and copies of earlier documents. Each source has a subfolder; it is missing if nothing of the source is left.

    Returns the totals. Raises UserError if the folder exists, a source cannot be used, a package is missing, or nothing
    is left. Finished work stays beside `folder`, and the next call resumes from it.

    :param languages: to keep, as `Identifier` names them; empty: all
    """
    check_rensa()
    identifier = Identifier()
    identifier.check(languages)
    sources = {name: (source, find_shards(source, display.line)) for source, name in named_sources(run)}
    held_out, maker = run.data.evaluation, f"{VERSION} {sizes} {sorted(languages)}"
    if held_out is not None:
        maker = identity_of(held_out, maker, find_shards(held_out, display.line))
    identities = {name: identity_of(source, maker, files) for name, (source, files) in sources.items()}

    @cache
    def cleaner() -> Cleaner:
        return Cleaner(identifier, languages, _read_held_out(held_out, display))

    with workplace(folder, Progress) as work:
        reading = {name: f".read-{name}" for name in sources}
        work.keep([*sources, *reading.values(), _COMPARED])
        state = work.progress(_COMPARED, sha256("".join(identities.values()).encode()).hexdigest())
        if not state.done:
            made = {}
            for name, (source, files) in sources.items():
                before = work.progress(reading[name], identities[name])
                read = Reading(source, files, work, reading[name])
                made[name] = read.read(before, cleaner, display, f"{name}: documents read", sizes)
                for line in described(name, made[name]):
                    display.line(line)
            parts = [(name, number) for name, source in made.items() for number in range(source.parts)]
            if not parts:
                hint = ", or leave --language out" if languages else ""
                raise UserError(f"no document is left, for the reasons above; name other data{hint}")
            paths = [part_path(work.folder / reading[name], number) for name, number in parts]
            state = _compare(paths, work, state, display)
            state = _write(parts, paths, work, state, display)
            state = state.model_copy(update={"read": sum(source.read for source in made.values()), "done": True})
            subsets = [name for name in made if (work.folder / name).is_dir()]
            (work.folder / "README.md").write_text(card(run.name, subsets, made, state), encoding="utf-8")
            work.save(_COMPARED, state)
        for name in (*reading.values(), _COMPARED):
            shutil.rmtree(work.folder / name, ignore_errors=True)
    return state


def _read_held_out(source: Source | None, display: Display) -> HeldOut:
    if source is None:
        display.line("the run's file has no [data.evaluation], so there is no held-out text to look for")
        return HeldOut.of([])
    documents = cut(in_order(source, texts, warn=display.line))
    found = HeldOut.of(display.each("held-out documents read", documents))
    if not found.whole:
        display.line(f"of the held-out text the first {count(len(found.sizes) - 1, 'document')} are looked for")
    return found


def _compare(paths: Sequence[Path], work: Workplace[Progress], state: Progress, display: Display) -> Progress:
    """Find the copies among the documents of all parts, key by key, and save which they are."""
    files, array = SketchFiles(paths), _copies_file(work)
    found = Duplicates(np.load(array, allow_pickle=False)) if state.keys else Duplicates.none(int(files.starts[-1]))
    left = range(state.keys, KEYS)
    for number in display.each("keys compared", left, len(left)):
        find_duplicates(files, found, number)
        write_array(array, found.values)
        state = state.model_copy(update={"keys": number + 1})
        work.save(_COMPARED, state)

    def text(document: int) -> str:
        file, place = files.place(document)
        return visible(next(islice(read_texts(paths[file]), place, None)), SHOWN)

    removed = {}
    for reason, equal in (("equal to an earlier document", True), ("similar to an earlier document", False)):
        copies = np.flatnonzero(~found.stay & ((found.key == 0) == equal))
        if len(copies):
            first = int(copies[0])
            example = f"{text(first)} (beside: {text(int(found.of[first]))})"
            removed[reason] = Removed(number=len(copies), example=example)
    state = state.model_copy(update={"removed": removed})
    for line in described_copies(state):
        display.line(line)
    return state


def _write(
    parts: Sequence[tuple[str, int]],
    paths: Sequence[Path],
    work: Workplace[Progress],
    state: Progress,
    display: Display,
) -> Progress:
    """Write what stays of each part as a shard of its source.

    :param parts: the source of each, and its number there
    """
    starts, stay = SketchFiles(paths).starts, Duplicates(np.load(_copies_file(work), allow_pickle=False)).stay
    if not state.parts:
        for name, _ in parts:  # shards of an attempt with other data
            shutil.rmtree(work.folder / name, ignore_errors=True)
    left = range(state.parts, len(parts))
    for number in display.each("files written", left, len(left)):
        name, part = parts[number]
        chosen = stay[starts[number] : starts[number + 1]]
        if chosen.any():
            (work.folder / name).mkdir(exist_ok=True)
        characters = _write_shard(paths[number], chosen, shard_path(work.folder / name, part))
        made = {"documents": state.documents + int(chosen.sum()), "characters": state.characters + characters}
        state = state.model_copy(update={"parts": number + 1, **made})
        work.save(_COMPARED, state)
    return state


def _write_shard(part: Path, stay: NDArray[np.bool_], shard: Path) -> int:
    """Write the documents of a part that stay; returns their characters."""
    characters = 0

    def staying() -> Iterator[str]:
        nonlocal characters
        for text in compress(read_texts(part), stay):
            characters += len(text)
            yield text

    write_texts(batches(staying(), GROUP), shard)
    return characters


def _copies_file(work: Workplace[Progress]) -> Path:
    return work.folder / _COMPARED / "copies.npy"
