"""Links within the documents lead somewhere, and what is written for assistants has its form."""

import re
from pathlib import Path

import pytest

from dedloc_kit.cli.table import COMMANDS

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "recipes", "notebooks", "dashboards", "benchmarks")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SKILL.md", "llms.txt")),
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        where, _, anchor = link.partition("#")
        target = (page.parent / where).resolve() if where else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_skill_is_short_and_names_commands_and_pages() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    head = re.fullmatch(r"---\nname: ([a-z-]{1,64})\ndescription: (.{1,1024})\n---\n.*", text, re.DOTALL)
    assert head is not None
    assert len(text.split()) <= 500
    known = {command.name for commands in COMMANDS.values() for command in commands}
    assert {*re.findall(r"dedloc ([a-z-]+)", text)} <= known
    assert [page for page in re.findall(r"\b(?:docs/)?\w+\.md\b", text) if not (ROOT / page).exists()] == []


def test_llms_txt_has_a_title_a_summary_and_a_line_for_each_link() -> None:
    title, _, summary, *_ = lines = (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert summary.startswith("> ")
    links = [line for line in lines if line.startswith("- ")]
    assert links
    assert all(re.fullmatch(r"- \[[^]]+\]\([^)]+\): .+", line) for line in links)
