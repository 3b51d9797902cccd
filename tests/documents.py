"""The documents as tests read them: their commands and their blocks."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference.md"
"""Generated, and of any length."""
FOLDERS = ("docs", "recipes", "dashboards", "benchmarks", "notebooks")
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SKILL.md"]
    + [page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")]
)
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(?:sudo -u dedloc \S+/|docker exec dedloc )?dedloc (.*)")
_INLINE = re.compile(r"`dedloc ([^`]+)`")
_KEY = re.compile(
    r"([a-z_.]+)\s=\s[^`]+|((?:access|averaging|data|experts|optimizer|pipeline|task|trust)\.(?!py$|toml$)[a-z_.]+)"
)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Each fenced block: what stands behind its first fence, and its text."""
    yield from _FENCED.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[list[str]]:
    """The words behind `dedloc` of each command in a block without a language, in the order of the page."""
    text = "".join(text for info, text in blocks(page) if not info)
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := _TYPED.match(line))]


def inline_commands(page: Path) -> list[list[str]]:
    """The words behind `dedloc` of each command in a sentence."""
    return [shlex.split(found, comments=True) for found in _INLINE.findall(prose(page))]


def keys(page: Path) -> list[str]:
    """The keys of a configuration that a sentence names, as `optimizer.name` or with a value."""
    found = (_KEY.fullmatch(code) for code in re.findall(r"`([^`]+)`", prose(page)))
    return [match[1] or match[2] for match in found if match]


def documented(page: Path, command: str, changes: Mapping[str, str]) -> list[str]:
    """The first command of this name on a page, as a test can run it.

    :param changes: what stands in the page for whoever reads it, and what a test has in its place
    """
    typed = [*commands(page), *inline_commands(page)]
    found = next(each for each in typed if each[: len(command.split())] == command.split())
    for there, here in changes.items():
        found = [word.replace(there, here) for word in found]
    return found


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())
