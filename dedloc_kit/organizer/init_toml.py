"""The run.toml of a run to be: a recipe's, with another name, purpose and other data."""

import json
import re

from dedloc_kit.config.task import Source
from dedloc_kit.organizer.init_plan import Plan

_HEADER = re.compile(r"^(?:#.*\n)*\[\[?([\w.]+)\]\]?", re.MULTILINE)
"""The head of a section in a recipe, with the comments right above it."""
_MARK = re.compile(r"\((?:language|data)\) ?")
"""Marks what to change in a copy of a recipe."""
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
