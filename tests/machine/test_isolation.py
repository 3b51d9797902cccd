"""Nothing that lies in the folder where the user stands is imported by a process of ours."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dedloc_kit
from dedloc_kit.ledger.copying import restore, write_copy
from dedloc_kit.ledger.ledger import Ledger
from dedloc_kit.machine.isolation import isolated
from tests.commands import assert_refused
from tests.swarm.harness import Swarm
from tests.tiny import tiny_run

CHECKOUT = Path(__file__).parents[2]
PACKAGE = Path(dedloc_kit.__file__).parent
HIDING = ("random", "json", "argparse", "torch", "tokenizers", "datasets", "pyarrow", "hivemind", "apex", "tabnanny")
"""Of the standard library (`tabnanny` is never loaded yet), of libraries that we use, and one that others look for."""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in whose files say that they were run, and fail."""
    folder = tmp_path / "trap"
    for name in HIDING:
        module = folder / name / "__init__.py" if name == "datasets" else folder / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"open({str(folder / 'sprung')!r}, 'a').write({name!r} + ' ')\nraise SystemExit('trapped')\n")
    monkeypatch.chdir(folder)
    # An empty part means the current folder, as in PYTHONPATH=$PYTHONPATH:/somewhere.
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{CHECKOUT}")
    return folder


@pytest.mark.soak
def test_a_coordinator_and_a_volunteer_train_in_a_folder_whose_files_hide_libraries(tmp_path: Path, trap: Path) -> None:
    with Swarm(tiny_run(), tmp_path / "swarm") as swarm:
        swarm.coordinator()
        swarm.volunteer("volunteer", microbatch=32).wait_for_step(1)
    assert not (trap / "sprung").exists(), (trap / "sprung").read_text()


@pytest.mark.soak
def test_a_ledger_is_filled_in_a_folder_whose_files_hide_libraries(tmp_path: Path, trap: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    write_copy(tmp_path / "ledger.sqlite", tmp_path / "copy")
    restore(tmp_path / "restored.sqlite", tmp_path / "copy")
    assert not (trap / "sprung").exists(), (trap / "sprung").read_text()


@pytest.mark.soak
def test_the_command_itself_runs_in_a_folder_whose_files_hide_libraries(trap: Path) -> None:
    command = [sys.executable, "-m", "dedloc_kit.cli", "join", "none.json"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert_refused(done, "there is no invitation at 'none.json'")
    assert not (trap / "sprung").exists(), (trap / "sprung").read_text()


@pytest.fixture
def forked_workers() -> None:
    """These are not: what a worker imports as it begins is what matters here."""


@pytest.mark.soak
def test_a_task_module_is_found_in_the_folder_where_its_owner_stands_and_hides_nothing(
    tmp_path: Path, trap: Path
) -> None:
    (trap / "my_task.py").write_text("import my_data\nimport random\nfrom tests.tiny import TASKS\n")
    (trap / "my_data.py").write_text("import tabnanny\n")
    with Swarm(tiny_run(), tmp_path / "swarm") as swarm:
        swarm.coordinator(task_module="my_task")
    assert not (trap / "sprung").exists(), (trap / "sprung").read_text()


def test_what_people_put_on_the_path_on_purpose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/one{os.pathsep}{os.pathsep}/two{os.pathsep}")
    monkeypatch.setenv("PYTHONUSERBASE", "/users")
    given = isolated({"MORE": "1"})
    assert given["PYTHONPATH"] == f"/one{os.pathsep}/two"
    assert (given["PYTHONSAFEPATH"], given["PYTHONUSERBASE"], given["MORE"]) == ("1", "/users", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    assert "PYTHONPATH" not in isolated()


def started_unisolated(source: str) -> list[int]:
    """Lines that start a Python process with another environment than `isolated`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    starting = [call for call in calls if ast.unparse(call.func).startswith(("subprocess.", "os.exec", "os.spawn"))]
    return [call.lineno for call in starting if "sys.executable" in source and "isolated(" not in ast.unparse(call)]


def test_every_python_process_of_ours_is_started_isolated() -> None:
    found = {path: started_unisolated(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    assert not any(found.values()), {path: lines for path, lines in found.items() if lines}


def test_the_check_finds_a_process_that_is_not_isolated() -> None:
    assert started_unisolated("command = [sys.executable, '-m', 'x']\nsubprocess.run(command, env={})") == [2]
    assert started_unisolated("subprocess.run([sys.executable], env=isolated())") == []
