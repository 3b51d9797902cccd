"""Conversations from a dataset's rows: lists of messages, or a prompt and its response in two columns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.charsets import NOT_UTF8
from dedloc_kit.learning.data.sources.data_issues import LazyRow
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import read_rows
from dedloc_kit.learning.data.sources.shards import Shard

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
ROLES = (SYSTEM, USER, ASSISTANT)
MESSAGES = "messages"
"""The column of conversations, if a source names none."""
_TEXT = "text"
"""What a source's `column` is if nobody sets it."""
_SHOWN = 40
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(eq=False)
class Conversation(LazyRow):
    """Turns of a user and the assistant, one after the other; a system turn may come first. The assistant ends it."""

    messages: tuple[Message, ...]

    @property
    def text(self) -> str:
        """For people who look at the data."""
        return "\n".join(f"{message.role}: {message.content}" for message in self.messages)


class Flaw(NamedTuple):
    """Why a row holds no conversation that can be learned from."""

    kind: str
    """The same for all rows that are refused for this reason."""
    reason: str


def columns_of(source: Source) -> tuple[str, ...]:
    """The column of conversations, or those of prompts and of responses (`prompt,response`)."""
    if source.column == _TEXT:
        return (MESSAGES,)
    first, comma, second = (part.strip() for part in source.column.partition(","))
    return (first, second) if comma and first and second else (source.column,)


def conversations(source: Source, shard: Shard, warn: Warn) -> Iterator[Conversation | BadRow]:
    """The conversations of a shard; what is none, or has nothing to learn from, is a bad row. Empty rows are left
    out."""
    columns = columns_of(source)
    for number, row in read_rows(shard, columns, warn):
        if isinstance(row, BadRow):
            yield row
            continue
        values = [row[column] for column in columns]
        if any(value is None for value in values):
            continue
        found = parse(values[0], columns[0]) if len(columns) == 1 else _pair(values[0], values[1], columns)
        yield BadRow(number, found.reason, found.kind) if isinstance(found, Flaw) else Conversation(number, found)


def _pair(prompt: Any, response: Any, columns: tuple[str, ...]) -> tuple[Message, ...] | Flaw:
    for value, column in zip((prompt, response), columns, strict=True):
        if not isinstance(value, str):
            return _wrong("type", f"holds {type(value).__name__}, not text, in column '{column}'", _OTHER_COLUMN)
    return checked((Message(USER, prompt), Message(ASSISTANT, response)))


def parse(value: Any, column: str) -> tuple[Message, ...] | Flaw:
    """The messages of a row, `[{"role": "user", "content": "Hello"}, ...]`, or what is wrong with them."""
    if not isinstance(value, list):
        return _wrong(
            "type", f"holds {type(value).__name__}, not a list of messages, in column '{column}'", _OTHER_COLUMN
        )
    messages = []
    for each in value:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            return _wrong("message", "has a message without a role and a content that are text", _OTHER_COLUMN)
        messages.append(Message(role, content))
    return checked(messages)


def checked(messages: list[Message] | tuple[Message, ...]) -> tuple[Message, ...] | Flaw:
    """The conversation up to its last assistant turn, or what is wrong with it.

    An empty system turn says nothing and is left out.
    """
    if any(_SURROGATE.search(each.role + each.content) for each in messages):
        return _wrong("UTF-8", NOT_UTF8, "write the file as UTF-8")
    if unknown := next((each.role for each in messages if each.role not in ROLES), None):
        shown = f"has a turn of the role {unknown!r:.{_SHOWN}}"
        return _wrong("role", shown, f"rename it to one of: {', '.join(ROLES)}")
    turns = [each for each in messages if each.role != SYSTEM or each.content.strip()]
    if not turns:
        return _wrong("nothing", "has no turns", "leave such rows out")
    if all(each.role == SYSTEM for each in turns):
        return _wrong("system", "has system turns only, so nothing is learned from it", "add the answers")
    if any(not each.content.strip() for each in turns):
        return _wrong("empty", "has an empty turn", "fill it, or leave such rows out")
    if any(each.role == SYSTEM for each in turns[1:]):
        return _wrong("late system", "has a system turn that is not the first turn", "put it first")
    roles = [each.role for each in turns if each.role != SYSTEM]
    if twice := next((one for one, other in pairwise(roles) if one == other), None):
        return _wrong(f"two {twice}", f"has two {twice} turns in a row", "join them into one")
    if roles[0] == ASSISTANT:
        return _wrong("first", "begins with an assistant turn", "put a user turn before it")
    if ASSISTANT not in roles:
        return _wrong("answer", "has no assistant turn, so nothing is learned from it", "add the answer")
    return tuple(turns if roles[-1] == ASSISTANT else turns[:-1])


_OTHER_COLUMN = "set the source's column to one with messages of role and content, or to two, such as prompt,response"


def _wrong(kind: str, what: str, fix: str) -> Flaw:
    return Flaw(kind, f"{what}; {fix}")
