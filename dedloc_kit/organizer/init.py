"""`dedloc init`: the folder of a run to be, made from a recipe: run.toml, coordinator.toml, a page, notebooks."""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.markup import escape
from rich.prompt import Prompt

from dedloc_kit.config.coordinator import COORDINATOR_FILE, template
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY, public_name
from dedloc_kit.config.swarm import Name
from dedloc_kit.config.task import Source
from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.folder import new_folder
from dedloc_kit.learning.data.sources.shards import loader_of
from dedloc_kit.learning.data.sources.splits import files_in, split_of
from dedloc_kit.learning.data.text.sentences import DEFAULT_LANGUAGE, LANGUAGE_CODE
from dedloc_kit.notebook.generate import notebooks_to_be
from dedloc_kit.resources import recipe, recipes

_HEADER = re.compile(r"^(?:#.*\n)*\[\[?([\w.]+)\]\]?", re.MULTILINE)
"""The head of a section in a recipe, with the comments right above it."""
_MARK = re.compile(r"\((?:language|data)\) ?")
"""Marks what to change in a copy of a recipe."""
_SOURCE = "DATASET[:SUBSET[:SPLIT]]"
_TEMPLATE = Path(__file__).with_name("init.md")
HELD_OUT = "test"
"""The split that is held out where none is named."""
PURPOSES = {
    "gpt": "a model that writes: it goes on with a text",
    "causal-pipeline": "the same, too big for any volunteer: each holds one of its stages",
    "experts": "the same, of parts of which each volunteer holds some: its layers are mixtures of experts",
    "encoder": "a model that understands: to search, to sort, to find names",
    "sahajbert": "the same, small enough for slow computers and lines",
    "chat": "a model to talk to: one that writes already learns from conversations",
    "continue": "go on from a model that exists, with your own text and your own words",
    "text-to-image": "a model that draws what a sentence says",
    "swav": "a model that sees: what pictures have in common, learned without labels",
    "albert-demo": "a toy, to see how all this works",
}
"""What each recipe is for, in the words of those who choose."""

_DATA = "# What everyone learns from; a `weight` is the source's share, and all of them make 1.\n"
_SHARDS = """\
# `dedloc prepare tokens run.toml` turns it into token ids: volunteers then neither tokenize nor download as much.
"""
_PICTURES = """\
# What it learns from: `column` and `caption` are where the pictures are and the words for them. Name with `unsafe` what
# marks those that nobody wants to see.
"""
_NO_EVALUATION = """\
# Held-out data, on which the coordinator measures what the model can do; without it there is the training loss alone.
# [data.evaluation]
# dataset = "OWNER/NAME"
# split = "test"
"""


@dataclass
class Plan:
    """What the organizer says on the command line."""

    name: str
    recipe: str | None
    datasets: list[str]
    """Each as `DATASET[:SUBSET[:SPLIT]][=WEIGHT]`."""
    evaluation: str | None
    language: str | None
    about: str | None
    start: str | None = None
    """The model to go on from, `OWNER/NAME@COMMIT`, for a recipe that does."""


def init(plan: Plan) -> Path:
    """Write the folder `NAME` of a run to be into the current one; returns its path.

    Raises UserError if it exists already, if a flag is missing and nobody can be asked, or if one makes no sense.
    """
    _check_name(plan.name)
    folder = Path(plan.name)
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it or choose another name")
    try:
        base = _completed(plan)
    except EOFError:
        raise UserError("there was no answer, so nothing is written") from None
    sources = [_source_for(base, each, folder) for each in plan.datasets]
    evaluation = _held_out(base, plan, sources, folder)
    assert plan.recipe is not None
    text = run_toml((recipe(plan.recipe) / "run.toml").read_text(encoding="utf-8"), plan, sources, evaluation)
    try:
        with new_folder(folder) as temporary:
            (temporary / "run.toml").write_text(text, encoding="utf-8")
            run = load_run(temporary / "run.toml")
            learned = sources or list(run.data.train)
            (temporary / COORDINATOR_FILE).write_text(template(), encoding="utf-8")
            (temporary / "README.md").write_text(_page(run, learned, plan.recipe), encoding="utf-8")
            notebooks_to_be(run, temporary / "notebooks")
    except OSError as error:
        raise UserError(f"{folder.absolute()} cannot be written ({error.strerror}); change to another folder") from None
    return folder


def choices() -> dict[str, str]:
    """The recipes there are, each with what it is for; those of the kit first."""
    found = recipes()
    known = [name for name in PURPOSES if name in found]
    return {name: PURPOSES.get(name, "your own") for name in [*known, *(name for name in found if name not in known)]}


def next_commands(folder: Path) -> list[str]:
    """What the organizer does now, as commands; behind a # what there is to know."""
    path = folder / "run.toml"
    run = load_run(path)
    options, check = run.task.options, f"dedloc check {path}"
    commands = [f"dedloc prepare tokenizer {path}"] if isinstance(options.get("tokenizer"), str) else []
    if _draws(run):
        commands = [f"dedloc prepare images {path} --shards"]
    elif commands and "init_from" in options:
        commands[0] += "    # or remove the line `tokenizer` there: then the model keeps the words that it has"
        if run.data.evaluation is not None:
            model = str(options["init_from"]).partition("@")[0]
            check += f" --compare {model}    # what words of your own are worth, and where it begins with both"
    return [*commands, check, f"dedloc launch {path}"]


def parse_source(text: str, column: str, folder: Path, split: str | None = None) -> Source:
    """The source `DATASET[:SUBSET[:SPLIT]][=WEIGHT]`; a local dataset's path is written as seen from `folder`.

    Raises UserError with what is wrong.

    :param split: where the text names none, unless it is a file or a folder that has no such split
    """
    where, equals, after = text.rpartition("=")
    weighted = bool(equals) and re.fullmatch(r"\d*\.?\d+", after) is not None
    dataset, subset, named, *more = [*(where if weighted else text).split(":"), "", ""]
    if not dataset or any(more) or "=" in subset + named:
        raise UserError(f"'{text}' is no dataset; write {_SOURCE}=WEIGHT, such as wikimedia/wikipedia:20231101.bn=0.23")
    values: dict[str, object] = {"dataset": dataset, "column": column}
    if (place := Path(dataset).expanduser()).exists():
        values["dataset"] = os.path.relpath(place, folder)
        split = split if split in _splits_in(place / subset) else None
    elif re.fullmatch(HUB_REPOSITORY, dataset) is None:
        raise UserError(f"there is no folder or file {dataset}, and on the Hub a dataset is called OWNER/NAME")
    values |= {key: value for key, value in (("subset", subset), ("split", named or split)) if value}
    if weighted:
        values["weight"] = float(after)
    try:
        return Source.model_validate(values)
    except ValidationError:
        raise UserError(f"the weight of '{text}' must be more than 0") from None


def _held_out(base: RunConfig, plan: Plan, sources: list[Source], folder: Path) -> Source | None:
    """The named data, or else that of the first folder to train on that has some."""
    if plan.evaluation or _draws(base):
        return _source_for(base, plan.evaluation, folder, HELD_OUT) if plan.evaluation else None
    for source in sources:
        if HELD_OUT in _splits_in(Path(os.path.normpath(folder / source.dataset)) / (source.subset or "")):
            return source.model_copy(update={"split": HELD_OUT, "weight": 1.0})
    return None


def _splits_in(folder: Path) -> set[str]:
    """Of the data in a folder; nothing if it is none."""
    return {split_of(path.relative_to(folder)) for path in files_in(folder) if loader_of(path)}


def run_toml(text: str, plan: Plan, sources: list[Source], evaluation: Source | None) -> str:
    """A recipe's run.toml with another name, another purpose and other data; all else, comments too, stays.

    Where the data is made of pictures with captions, those are what changes.
    """
    of_captions = "[[images.sources]]" in text
    changed, dropped = ("images.sources", ()) if of_captions else ("data.train", ("data.evaluation", "data.cooldown"))
    lines = text.splitlines(keepends=True)
    text = _MARK.sub("", "".join(line for line in lines if not (line.startswith("#") and _MARK.search(line))))
    starts = [match.start() for match in _HEADER.finditer(text)]
    head, *sections = [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]
    head = _with_value(_with_value(head, "name", plan.name), "about", plan.about or "")
    parts = [f"# Made by `dedloc init` from the recipe {plan.recipe}; what follows are its comments.\n#\n"]
    parts += [head.replace(f"called {plan.recipe}-", f"called {plan.name}-")]
    for section in sections:
        match = _HEADER.match(section)
        assert match is not None
        if match[1] == "task":
            tokenizer = "tokenizer" if of_captions else None  # a published one knows its own languages alone
            values = {"language": plan.language, "init_from": plan.start, "tokenizer": tokenizer}
            for key, value in values.items():
                section = _with_value(section, key, value) if value else section
            parts.append(section)
        elif match[1] == changed:  # where the first one was all of them come
            if sources:
                parts.append(_captioned(sources) if of_captions else _data(sources, evaluation, "\ntokenizer" in text))
            sources = []
        elif match[1] not in dropped:
            parts.append(section)
    return "".join(parts)


def _with_value(text: str, key: str, value: str) -> str:
    """A section with another text for a key; one that it lacks is put below its name."""
    written = json.dumps(value, ensure_ascii=False)
    changed, found = re.subn(rf'^({key} *= *)"[^"]*"', lambda match: match[1] + written, text, count=1, flags=re.M)
    return (
        changed if found else re.sub(r"^name *=.*\n", lambda match: f"{match[0]}{key} = {written}\n", text, flags=re.M)
    )


def _data(sources: list[Source], evaluation: Source | None, shards: bool) -> str:
    parts = [_source_toml("[[data.train]]", source) for source in sources]
    parts.append(_source_toml("[data.evaluation]", evaluation) if evaluation else _NO_EVALUATION)
    return _DATA + (_SHARDS if shards else "") + "\n".join(parts) + "\n"


def _captioned(sources: list[Source]) -> str:
    return (
        _PICTURES
        + "\n".join(f'{_source_toml("[[images.sources]]", each)}caption = "caption"\n' for each in sources)
        + "\n"
    )


def _source_toml(header: str, source: Source) -> str:
    plain = Source(dataset=source.dataset).model_dump()
    values = {key: value for key, value in source.model_dump().items() if key == "dataset" or value != plain[key]}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join([header, *lines]) + "\n"


def _draws(base: RunConfig) -> bool:
    """Whether it learns from codes of pictures, which are made of what the organizer names."""
    return "pictures" in base.task.options


def _of_text(base: RunConfig) -> bool:
    """Whether it has a language."""
    return "language" in base.task.options or isinstance(base.task.options.get("tokenizer"), str)


def _source_for(base: RunConfig, text: str, folder: Path, split: str | None = None) -> Source:
    """As `parse_source`, for a recipe."""
    column = base.data.train[0].column
    column = "messages" if "," in column else column  # what a recipe's own dataset calls its prompts says nothing
    source = parse_source(text, "image" if _draws(base) else column, folder, split)
    if _draws(base) and source.weight != 1:
        raise UserError(f"every picture is taken once, so '{text}' can have no weight; leave ={source.weight:g} out")
    return source


def _check_name(name: str) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise UserError(
            f"'{name}' cannot be the name of a run; use lower-case letters, digits and dashes, such as our-bert"
        ) from None


def _completed(plan: Plan) -> RunConfig:
    """Ask for what is missing, if somebody sits there; returns the recipe's run.

    Who says all that has to be said is asked for nothing: a notebook's `!` looks like a terminal, and nobody answers.
    """
    asking = sys.stdin.isatty() and not (plan.recipe and plan.datasets)
    console = Console(highlight=False)
    if plan.recipe is None:
        if not asking:
            known = ", ".join(f"{name} ({purpose})" for name, purpose in choices().items())
            raise UserError(f"say which recipe with --recipe; there are: {known}")
        console.print("What is it to be?")
        for name, purpose in choices().items():
            console.print(f"  [bold]{name:12}[/bold] {escape(purpose)}")
        plan.recipe = Prompt.ask("Which one", choices=list(choices()), default="gpt", console=console)
    base = load_run(recipe(plan.recipe) / "run.toml")
    of_text = _of_text(base)
    if plan.language is not None and not of_text:
        raise UserError(f"the recipe {plan.recipe} is about pictures, which have no language; leave --language out")
    if plan.start is not None and "init_from" not in base.task.options:
        raise UserError(f"the recipe {plan.recipe} begins untrained; leave --start out, or choose continue or chat")
    if _draws(base) and plan.evaluation is not None:
        raise UserError(f"the recipe {plan.recipe} holds some captions out by itself; leave --evaluation out")
    if not plan.datasets and not asking:
        raise UserError(f"say what to train on with --dataset {_SOURCE}=WEIGHT, once for each dataset")
    if asking:
        _ask(plan, base, console)
    if plan.language:
        _check_language(plan.language)
    if plan.start:
        _check_start(plan.start)
    return base


def _check_start(name: str) -> None:
    if re.fullmatch(rf"{HUB_REPOSITORY}@[0-9a-f]{{40}}", name) is None:
        raise UserError(
            f"'{name}' names no commit of a model; give OWNER/NAME@COMMIT, the 40 digits are on its page on the Hub "
            "under Files, History"
        )


def _check_language(code: str) -> None:
    if re.fullmatch(LANGUAGE_CODE, code) is None:
        raise UserError(f"'{code}' is no language code; give the ISO 639 code with --language, such as bn or sw")


def _ask(plan: Plan, base: RunConfig, console: Console) -> None:
    def prompt(question: str, default: str = "", check: Callable[[str], object] = str) -> str:
        """The answer; one that makes no sense is asked for again, for the others would be lost with it."""
        while True:
            answer = Prompt.ask(question, default=default, show_default=bool(default), console=console).strip()
            try:
                if answer:
                    check(answer)
                return answer
            except UserError as error:
                console.print(escape(str(error)))

    def check_source(answer: str) -> None:
        _source_for(base, answer, Path(plan.name))

    if plan.about is None:
        plan.about = prompt("What is it for? A sentence for volunteers")
    if plan.language is None and _of_text(base):
        usual = str(base.task.options.get("language", DEFAULT_LANGUAGE))
        plan.language = prompt("Its language, as ISO 639 code", usual, _check_language)
    if plan.start is None and "init_from" in base.task.options:
        console.print(f"The recipe goes on from {public_name(str(base.task.options['init_from']))}")
        plan.start = prompt("Another one, OWNER/NAME@COMMIT; nothing to keep it", check=_check_start) or None
    if not plan.datasets:
        console.print(f"What to train on: {escape(_SOURCE)}=WEIGHT, on the Hub or a folder; nothing ends the list")
    while not plan.datasets:
        while answer := prompt(f"Dataset {len(plan.datasets) + 1}", check=check_source):
            plan.datasets.append(answer)
    if plan.evaluation is None and not _draws(base):
        question = f"Held-out data to measure on, {escape(_SOURCE)}; nothing for the split test of a folder above"
        plan.evaluation = prompt(question, check=check_source) or None


def _page(run: RunConfig, learned: list[Source], base: str) -> str:
    """README.md for the community."""
    language = run.task.options.get("language")
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=run.name,
        about=run.about or "*Write here in a sentence or two what the model is for, and who needs it.*",
        language=f"\n**Language:** `{language}`\n" if language else "",
        steps=f"{run.optimizer.total_steps:,}",
        batch=f"{run.global_batch:,}",
        data="\n".join(f"- {public_name(source.dataset)} {source.subset or ''}".rstrip() for source in learned),
        recipe=base,
    )
