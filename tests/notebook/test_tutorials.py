"""The notebooks for organizers: up to date, and they run from top to bottom as they are."""

import io
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from PIL import Image

from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.text_to_image import TextToImage
from dedloc_kit.ledger import Ledger
from dedloc_kit.notebook.generate import TUTORIALS, tutorial
from tests.learning.evaluate.language import write_causal
from tests.learning.tasks.text_to_image_run import run_of, write_codes, write_picture_model
from tests.notebooks import execute, valid
from tests.served import ServedModel
from tests.swarm.harness import processes_with

CHECKOUT = Path(__file__).parents[2]
DEADLINE = 240


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_checked_in_notebook_is_what_the_generator_makes(name: str) -> None:
    made = tutorial(name)
    valid(made)
    assert (CHECKOUT / "notebooks" / f"{name}.ipynb").read_text() == made, "run python -m dedloc_kit.notebook.generate"


def checked_in(name: str) -> Any:
    return valid((CHECKOUT / "notebooks" / f"{name}.ipynb").read_text())


def executed(name: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a notebook in a folder; returns what its cells print."""
    notebook = checked_in(name)
    execute(notebook, DEADLINE, folder, environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(figures) == (2 if name == "use_model" else 0)
    return "".join(output.get("text", "") for output in outputs)


def test_a_model_that_writes_is_used_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the function returns\n"))
    model = write_causal(tmp_path / "model", ["where", "is", "the", "station", "this", "function", "returns"])
    notebook = checked_in("use_model")
    first, *cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert first.startswith("MODEL = ")
    names = {"MODEL": str(model), "GGUF": "", "LEDGER": ""}
    for cell in cells:
        exec(TransformerManager().transform_cell(cell), names)
    said = capsys.readouterr()
    assert "this function returns" in said.out
    assert "model is ready" in said.err
    assert "tokens/s" in said.err
    assert "question" in said.out


def test_a_model_that_draws_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_codes(tmp_path, samples=40)
    write_picture_model(tmp_path)
    run = run_of(tmp_path, ranking_samples=0)
    task = create_task(run)
    assert isinstance(task, TextToImage)
    model = task.model()
    (tmp_path / "model").mkdir()
    task.export(model, tmp_path / "model", "owner/name")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (0, 10):
        ledger.record_evaluation(step, task.evaluate(model), 1.0)
    ledger.close()
    notebook = checked_in("draw")
    first, *cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert first.startswith("MODEL = ")
    names: dict[str, Any] = {
        "MODEL": str(tmp_path / "model"),
        "RUN": "",
        "LEDGER": str(tmp_path / "ledger.sqlite"),
    }
    monkeypatch.chdir(tmp_path)
    for cell in cells:
        exec(cell, names)
    with Image.open("drawn-2.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (12, 12))
        assert picture.tobytes() == names["drawn"][2].tobytes()
    assert names["compared"][0][0].tobytes() == names["drawn"][0].tobytes(), "guidance 1 and seed 0, as the run draws"
    assert [len(row) for row in names["rows"]] == [3] * 6  # at two evaluations, and the real one
    assert [len(line.x) for line in names["figure"].data] == [2, 2, 2]


@pytest.mark.soak
def test_a_served_model_is_taught_a_task_and_a_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_causal(tmp_path / "model", ["good", "bad", "The", "moon", "sun", "matey", "be", "the", "film", "it"])
    notebook = checked_in("fine_tune")
    first, *cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert first.startswith("INVITATION = ")
    monkeypatch.chdir(tmp_path)
    with ServedModel(tmp_path, model, span="0:1") as swarm:
        swarm.wait_until_served(1)
        names: dict[str, Any] = {"INVITATION": swarm.where, "TARGETS": ("q_proj", "v_proj"), "STEPS": 15}
        for cell in cells:
            exec(cell, names)
    said = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 30
    assert losses[14] < losses[0]
    assert losses[29] < losses[15]
    after, loaded = said.splitlines()[-2:]
    assert after == f"after:  {loaded}"
    assert (tmp_path / "style" / "adapter_model.safetensors").is_file()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_is_organized_and_its_model_used_in_notebooks(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    environment = {
        **os.environ,
        "DEDLOC_HOME": home,
        "PYTHONPATH": str(CHECKOUT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # the coordinator, the volunteer and the kernel share the cores
    }
    try:
        said = {name: executed(name, tmp_path, environment) for name in ("organize", "use_model")}
    finally:
        for process in processes_with(home):  # what a cell that failed has left
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    assert "limited by" in said["organize"]
    assert "training loss" in said["organize"]
    assert "takes over the state of step 0, with 0.5 times its learning rate" in said["organize"]
    assert "the run goes on at step" in said["organize"]
    assert "the coordinator ended with 0" in said["organize"]
    assert "model.safetensors" in said["organize"]
    assert "question" in said["use_model"]
