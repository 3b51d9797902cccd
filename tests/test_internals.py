"""docs/internals.md names what is there: a page that leads to the wrong function is worse than none."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import dedloc_kit

PACKAGE = Path(dedloc_kit.__file__).parent
ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "internals.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^\| [^|]+ \| `([^`|]+\.py)` \| `([^`|]+)` \|$", PAGE, re.MULTILINE)
PATHS = set(re.findall(r"`([a-z0-9_./]+(?:\.py|/))`", PAGE))


def defined_in(path: Path) -> set[str]:
    """Functions, and methods as `Class.method`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            functions = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{item.name}" for item in functions}
    return names


def test_each_step_of_a_gradient_names_a_file_and_a_function() -> None:
    table = PAGE.split("| step | file | function |")[1].split("\n\n")[0]
    assert len(table.splitlines()[2:]) == len(STEPS) > 15


def test_the_functions_are_in_their_files() -> None:
    defined = {file: defined_in(PACKAGE / file) for file, _ in STEPS}
    assert [(file, function) for file, function in STEPS if function not in defined[file]] == []


def test_the_paths_exist() -> None:
    assert [path for path in sorted(PATHS) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_each_folder_of_the_package_has_a_line() -> None:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*/__init__.py")} - {"."}
    table = PAGE.split("| folder | contents |")[1].split("\n\n")[0]
    named = re.findall(r"`([a-z0-9_/]+)/`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert sorted(named) == sorted(folders)


def test_the_picture_is_a_plain_svg() -> None:
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)
    names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(DOCS / picture).iter()}
    assert names <= {"svg", "title", "defs", "marker", "g", "path", "rect", "text"}
