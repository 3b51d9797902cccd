"""Every benchmark keeps its numbers where it is asked to, and `make bench` runs all that need no argument."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
WITH_ARGUMENTS = {"recipe"}
"""Which recipe?"""


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_benchmark_keeps_its_numbers_in_a_file_if_asked(name: str) -> None:
    assert '"--json"' in SCRIPTS[name]
    assert "json.dump" in SCRIPTS[name]


def test_make_bench_runs_all_benchmarks_that_need_no_argument() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    named = re.search(r"^BENCHMARKS := (.*)$", makefile, re.MULTILINE)
    assert named is not None
    assert sorted(named[1].split()) == sorted(SCRIPTS.keys() - WITH_ARGUMENTS)


def test_the_readme_says_what_each_benchmark_answers() -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert {name for name in SCRIPTS if f"| `{name}.py` |" in readme} == SCRIPTS.keys()
