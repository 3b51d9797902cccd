"""The progress of a corpus, and what was removed from it and why."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from dedloc_kit.display.human import count, some, visible
from dedloc_kit.organizer.corpus.rules import DOCUMENT_RULES, LINE_RULES
from dedloc_kit.organizer.prepare_source import Reached
from dedloc_kit.organizer.prepare_tokens import lost_files

SHOWN = 60
"""Characters of an example."""
_LANGUAGES = 5
"""That are named."""

Item = TypeVar("Item")


class Display(Protocol):
    """What people see while a corpus is made."""

    def each(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """The same items, while they are counted."""
        ...

    def line(self, text: str) -> None: ...


class Removed(BaseModel):
    """The number of documents or lines removed for one reason, and the beginning of the first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: NonNegativeInt
    example: str

    def said(self, reason: str) -> str:
        return f"  {self.number:,}: {reason}, such as: {self.example}"


class Progress(Reached):
    """How far a source is read, or how far all of them are compared and written."""

    read: NonNegativeInt = 0
    """Documents before any was removed."""
    characters: NonNegativeInt = 0
    """Of the documents that are kept."""
    parts: NonNegativeInt = 0
    """Files written."""
    keys: NonNegativeInt = 0
    """Keys compared."""
    removed: dict[str, Removed] = Field(default={})
    """Documents, by the reason."""
    lines: dict[str, Removed] = Field(default={})
    languages: dict[str, NonNegativeInt] = Field(default={})
    """Documents of each language, among those that break no rule."""


class Tally:
    """What was removed and why, up to a place in a source."""

    def __init__(self, before: Progress) -> None:
        self.read, self.characters = before.read, before.characters
        self.removed, self.lines, self.languages = dict(before.removed), dict(before.lines), dict(before.languages)

    def remove(self, reason: str, document: str) -> None:
        _add(self.removed, reason, document)

    def remove_line(self, reason: str, line: str) -> None:
        _add(self.lines, reason, line)

    def identify(self, language: str) -> None:
        self.languages[language] = self.languages.get(language, 0) + 1


def _add(kind: dict[str, Removed], reason: str, text: str) -> None:
    known = kind.get(reason)
    kind[reason] = Removed(
        number=known.number + 1 if known else 1, example=known.example if known else visible(text, SHOWN)
    )


def described(name: str, source: Progress) -> list[str]:
    """What became of a source before its documents were compared, in lines."""
    bad = f"; {count(source.bad_rows, 'bad row')} left out" if source.bad_rows else ""
    lines = [f"{name}: {count(source.read, 'document')} read{bad}, {source.documents:,} kept"]
    if source.lines:
        lines.append(f"{name}: {count(sum(each.number for each in source.lines.values()), 'line')} removed:")
        lines += _said(source.lines)
    if source.removed:
        lines.append(f"{name}: {count(sum(each.number for each in source.removed.values()), 'document')} removed:")
        lines += _said(source.removed)
    if source.languages:
        ordered = sorted(source.languages, key=lambda language: (-source.languages[language], language))
        shares = some([f"{language} {source.languages[language]:,}" for language in ordered], _LANGUAGES)
        lines.append(f"{name}: languages of documents that break no rule: {shares}")
    return [*lines, *lost_files(name, source)]


def described_copies(state: Progress) -> list[str]:
    """What was removed since it is a copy, in lines."""
    number = sum(each.number for each in state.removed.values())
    return [f"{number:,} cop{'y' if number == 1 else 'ies'} removed{':' if number else ''}", *_said(state.removed)]


def _said(removed: Mapping[str, Removed]) -> list[str]:
    return [removed[reason].said(reason) for reason in sorted(removed, key=lambda each: (-removed[each].number, each))]


def card(run_name: str, subsets: Iterable[str], made: Mapping[str, Progress], state: Progress) -> str:
    """The corpus's README.md, as the Hub reads it: its subsets, what was removed, and by which rules."""
    configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in subsets]
    said = [line for name, source in made.items() for line in described(name, source)]
    rules = [f"| {rule.name} | {kind} | {rule.source} |" for kind, rules in _RULES for rule in rules]
    return "\n".join(
        (
            f"---\nconfigs: {json.dumps(configs)}\n---\n",
            f"Text for the run `{run_name}`: {count(state.documents, 'document')} of {state.read:,}, "
            f"{state.characters:,} characters.\n",
            "```",
            *(line.replace("`", "'") for line in (*said, *described_copies(state))),
            "```\n",
            "| what goes | | rule of |\n| --- | --- | --- |",
            *rules,
            "",
        )
    )


_RULES = (("line", LINE_RULES), ("document", DOCUMENT_RULES))
