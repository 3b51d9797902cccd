"""What docs/how_it_works.md names is there: a page that leads to the wrong function is worse than none."""

import ast
import re
from pathlib import Path

import dedloc_kit

PACKAGE = Path(dedloc_kit.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "how_it_works.md").read_text(encoding="utf-8")
FUNCTIONS = re.findall(r"^\| [^|]+ \| `([^`|]+\.py)` \| `([^`|]+)` \| [^|]+ \|$", PAGE, re.MULTILINE)
MODULES = set(re.findall(r"`([a-z_/]+\.py)`", PAGE))
FOLDERS = re.findall(r"^\| `([a-z]+)/` \|", PAGE, re.MULTILINE)


def defined_in(path: Path) -> set[str]:
    """Functions, and methods as `Class.method`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            functions = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{item.name}" for item in functions}
    return names


def test_each_row_of_a_way_names_a_file_and_a_function() -> None:
    tables = PAGE.split("| what happens | file | function | process |")[1:]
    rows = [line for table in tables for line in table.split("\n\n")[0].splitlines()[2:]]
    assert len(rows) == len(FUNCTIONS) > 25


def test_a_function_that_the_page_names_is_in_its_file() -> None:
    defined = {file: defined_in(PACKAGE / file) for file, _ in FUNCTIONS}
    assert [(file, function) for file, function in FUNCTIONS if function not in defined[file]] == []


def test_a_file_that_the_page_names_is_there() -> None:
    there = {f"/{path.relative_to(PACKAGE.parent).as_posix()}" for path in PACKAGE.rglob("*.py")}
    missing = {file for file in MODULES if not any(path.endswith(f"/{file}") for path in there)}
    assert {file for file in missing if not (PACKAGE.parent / file).exists()} == set()


def test_the_page_tells_of_every_room() -> None:
    swarm = PACKAGE / "swarm"
    assert set(FOLDERS) == {path.parent.name for path in swarm.glob("*/__init__.py")}
