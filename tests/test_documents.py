"""What the documents offer to copy is accepted: each command, each block of TOML. And they keep to their lengths."""

import re
from collections.abc import Iterator, Sequence
from inspect import isclass
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from dedloc_kit.cli.main import main, parser
from dedloc_kit.cli.table import COMMANDS, Command
from dedloc_kit.config.coordinator import COORDINATOR_FILE, settings_beside
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.task import Source
from dedloc_kit.learning.task import parse_options, task_class
from dedloc_kit.resources import recipe, recipes
from tests.documents import DOCS, PAGES, REFERENCE, ROOT, blocks, commands, inline_commands, keys, words

MOST_IN_README = 900
MOST_IN_DOCS = 14_250
PACKAGE = ROOT / "dedloc_kit"
TOML = [
    pytest.param(info.split()[1:], text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (info, text) in enumerate(blocks(page))
    if info.split()[:1] == ["toml"]
]
"""Each with the words behind `toml`: the recipe whose keys it changes, or `coordinator`."""


def names(below: Sequence[Command], *before: str) -> Iterator[list[str]]:
    """Every command, and every group, by the words that name it."""
    for command in below:
        yield [*before, command.name]
        yield from names(command.below, *before, command.name)


NAMED = [found for below in COMMANDS.values() for found in names(below)]


def command_of(typed: list[str]) -> list[str]:
    """The words of the command that is named; none in front of an option of `dedloc` itself."""
    return max((each for each in NAMED if each == typed[: len(each)]), key=len, default=[])


def accepted(typed: list[str]) -> bool:
    """Whether the command line takes these words."""
    try:
        parser().parse_args(typed)
    except SystemExit as ended:
        return ended.code in (None, 0)
    return True


def makes_sense(typed: list[str]) -> bool:
    """Whether a sentence may name a command so: whole, or without some of its arguments, as `dedloc join --compile`."""
    command = command_of(typed)
    missing = (typed[: len(command)] + ["X"] * count + typed[len(command) :] for count in range(3))
    return typed == command or any(map(accepted, missing))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_can_be_given(page: Path) -> None:
    assert [typed for typed in commands(page) if not accepted(typed)] == []
    assert [typed for typed in inline_commands(page) if not makes_sense(typed)] == []


def test_there_are_commands_to_be_tested() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert sum(len(inline_commands(page)) for page in PAGES) > 60


def test_arguments_stand_in_the_order_that_the_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser takes a PEER for a RUN; whoever reads the page does not."""
    found = [(page, typed) for page in PAGES for typed in [*commands(page), *inline_commands(page)]]
    for page, typed in found:
        with pytest.raises(SystemExit):
            main([*command_of(typed), "--help"])
        usage = re.sub(r"\[[^]]*\]", "", capsys.readouterr().out.partition("\n\n")[0]).split()
        places = [word for before, word in pairwise(usage) if word.isupper() and not before.startswith("--")]
        given = [word for before, word in pairwise(["", *typed]) if not before.startswith("--") and word in places]
        assert given == [place for place in places if place in given], f"{page}: dedloc {' '.join(typed)}"


@pytest.mark.parametrize(("changes", "text"), TOML)
def test_every_toml_block_is_accepted(changes: list[str], text: str, tmp_path: Path) -> None:
    if changes == ["coordinator"]:
        (tmp_path / COORDINATOR_FILE).write_text(text, encoding="utf-8")
        assert settings_beside(tmp_path / "run.toml")
        return
    (tmp_path / "changes.toml").write_text(text, encoding="utf-8")
    run = load_run(recipe(*changes or ["sahajbert"]) / "run.toml", tmp_path / "changes.toml")
    parse_options(run, task_class(run.task.name).Options)


def fields(section: type[Section]) -> set[str]:
    """The keys of a section and of those within it."""
    found = set(section.model_fields)
    for field in section.model_fields.values():
        parts = [field.annotation, *get_args(field.annotation)]
        found |= {name for each in parts if isclass(each) and issubclass(each, Section) for name in fields(each)}
    return found


def test_every_key_in_a_sentence_is_one_of_a_configuration() -> None:
    tasks = ("albert", "causal", "chat", "encoder", "span-corruption", "swav", "text-to-image")
    sections: list[type[Section]] = [
        RunConfig,
        LaunchOptions,
        CoordinatorConfig,
        Source,
        *(task_class(name).Options for name in tasks),
    ]
    known = {name for section in sections for name in fields(section)}
    for name in recipes():
        model = load_run(recipe(name) / "run.toml").task.options.get("model", {})
        known |= set(model) if isinstance(model, dict) else set()
    named = {(page.name, key) for page in PAGES for key in keys(page)}
    assert len(named) > 20
    assert sorted(each for each in named if each[1].rpartition(".")[2] not in known) == []


def test_the_documents_keep_to_their_lengths() -> None:
    assert words(ROOT / "README.md") <= MOST_IN_README
    assert sum(words(page) for page in DOCS.glob("*.md") if page != REFERENCE) <= MOST_IN_DOCS


def test_the_readme_names_every_folder_of_the_package_once() -> None:
    listing = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("`dedloc_kit/`:\n\n```\n")[2].partition("```")[0]
    )
    names = [name for line in listing.splitlines() for name in re.split(r" {2,}", line)[0].split()]
    assert [name for name in names if not (PACKAGE / name).exists()] == []
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(name for name in names if name.endswith("/")) == sorted(folders)
    inside = re.findall(r"(?<![\w/])((?:[a-z_]+/)*[a-z_]+\.py)", listing)
    assert [name for name in inside if not list(PACKAGE.rglob(name))] == []
