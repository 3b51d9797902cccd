"""A corpus that every machine has: the documentation strings of its own Python installation."""

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.folder import new_folder

CHARACTERS = 6_000_000
"""The most text that the corpus holds, in characters."""
SOURCE_BYTES = 90_000_000
"""Source code that is parsed at most, which bounds the time to some 15 seconds."""
TRAIN_SHARDS = 4
HELD_OUT = 0.05
"""The share of the documents in the test split."""

_MIN_DOCUMENT = 200
_MIN_PARAGRAPH = 60
_SKIPPED_FOLDERS = {"__pycache__", "tests", "test", "testing", "site-packages", "dist-packages", "_vendor"}
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_MARKUP = re.compile(r":[a-z:]+:`~?([^`<]+)[^`]*`|[`*|]+|_(?=\s)")
_NOT_PROSE = re.compile(
    r"^(>>>|\.\. |:\w|[-*+] |\d+[.)] |[@#|\\$]|[=\-~^+]{3,})"  # doctests, directives, fields, lists, tables, rules
    r"|\s{3,}\S"  # columns
    r"|https?://|\w\(|[{}<>=\\_]"  # code and links
)

_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
language:
- en
---

# Documentation strings

{documents} English texts, {characters} characters: the prose of the documentation strings of the Python standard
library and of the packages that were installed where this folder was written, without code, tables and repetitions.
Made to try a training without downloading anything. Each text stays under its package's licence: do not publish it.

| split | documents |
| --- | --- |
| train | {train} |
| test | {test} |
"""


def write_corpus(folder: Path, characters: int = CHARACTERS) -> Path:
    """Write up to `characters` of text as Parquet shards in the layout of a Hub dataset; returns `folder`.

    Source files are parsed and never run. The same installation gives the same files. A folder that is there already
    is left as it is; raises UserError if it holds something else.
    """
    import pyarrow
    from pyarrow import parquet

    if _is_corpus(folder):
        return folder
    try:
        with new_folder(folder) as temporary:
            texts = collect_documents(characters)
            held_out = max(1, round(HELD_OUT * len(texts)))
            test, train = texts[:held_out], texts[held_out:]
            data = temporary / "data"
            data.mkdir()
            for split, part, shards in (("train", train, TRAIN_SHARDS), ("test", test, 1)):
                for number in range(shards):
                    table = pyarrow.table({"text": part[number::shards]})
                    parquet.write_table(table, data / f"{split}-{number:05d}-of-{shards:05d}.parquet")
            card = _CARD.format(documents=len(texts), characters=sum(map(len, texts)), train=len(train), test=len(test))
            (temporary / "README.md").write_text(card, encoding="utf-8")
    except UserError:
        if not _is_corpus(folder):  # else another process was faster
            raise
    return folder


def collect_documents(characters: int = CHARACTERS) -> list[str]:
    """Cleaned documentation strings, no paragraph twice, in an order that only the texts decide.

    They come from the files that are richest in text, up to `characters` of text or SOURCE_BYTES of source code.
    """
    seen: set[bytes] = set()
    texts: list[str] = []
    total = parsed = 0
    for path in _richest_files():
        parsed += path.stat().st_size
        for docstring in _docstrings(path):
            text = _prose(docstring, seen)
            if text:
                texts.append(text)
                total += len(text)
        if total >= characters or parsed >= SOURCE_BYTES:
            break
    return sorted(texts, key=_digest)


def _is_corpus(folder: Path) -> bool:
    return (folder / "README.md").is_file() and (folder / "data").is_dir()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _richest_files() -> list[Path]:
    """Python files by how much triple-quoted text they hold: parsing takes long, so those with most come first."""
    paths = sysconfig.get_paths()
    ranked = []
    for root in sorted({paths["stdlib"], paths["purelib"], paths["platlib"]}):
        for parent, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
            for name in files:
                if not name.endswith(".py"):
                    continue
                path = Path(parent, name)
                source = path.read_bytes()
                quoted = sum(len(text) for text in _TRIPLE_QUOTED.findall(source))
                if quoted > 2_000:
                    ranked.append((-quoted / len(source), path.relative_to(root).as_posix(), path))
    return [path for _, _, path in sorted(ranked)]


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's remarks on other people's code
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):  # test data and templates also end in .py
        return
    waiting: list[ast.AST] = [tree]
    while waiting:  # modules, classes and their functions; walking every expression would take several times as long
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield inspect.cleandoc(docstring)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.extend(reversed(node.body))


def _prose(docstring: str, seen: set[bytes]) -> str:
    """The new paragraphs of running text, one a line; empty if they are too short. `seen` remembers every paragraph."""
    kept = []
    for lines in _blocks(docstring):
        if any(_NOT_PROSE.search(line) for line in lines):
            continue
        paragraph = " ".join(_MARKUP.sub(lambda found: found[1] or "", " ".join(lines)).split())
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        sentence = paragraph[:1].isupper() and paragraph[-1:] in (".", "!", "?")
        if not sentence or len(paragraph) < _MIN_PARAGRAPH or letters < 0.88 * len(paragraph):
            continue
        digest = _digest(paragraph)
        if digest not in seen:
            seen.add(digest)
            kept.append(paragraph)
    text = "\n".join(kept)
    return text if len(text) >= _MIN_DOCUMENT else ""


def _blocks(docstring: str) -> Iterator[list[str]]:
    """Stripped lines that stand together: a blank line or another indentation (a parameter's text) begins a new one."""
    block: list[str] = []
    indentation = 0
    for line in docstring.splitlines():
        stripped = line.strip()
        if block and (not stripped or len(line) - len(line.lstrip()) != indentation):
            yield block
            block = []
        if stripped:
            indentation = len(line) - len(line.lstrip())
            block.append(stripped)
    if block:
        yield block
