"""The notebooks for organizers: up to date, and they run from top to bottom as they are."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from dedloc_kit.notebook.generate import TUTORIALS, tutorial
from tests.notebook.test_run_notebooks import processes_with
from tests.swarm.harness import wait_until

CHECKOUT = Path(__file__).parents[2]
DEADLINE = 240


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_checked_in_notebook_is_what_the_generator_makes(name: str) -> None:
    made = tutorial(name)
    nbformat.validate(nbformat.reads(made, as_version=4))
    assert (CHECKOUT / "notebooks" / f"{name}.ipynb").read_text() == made, "run python -m dedloc_kit.notebook.generate"


@pytest.mark.slow
def test_a_run_is_organized_and_its_model_used_in_notebooks(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    environment = {
        **os.environ,
        "DEDLOC_HOME": home,
        "PYTHONPATH": str(CHECKOUT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }
    said = {}
    for name in TUTORIALS:
        notebook = nbformat.read(CHECKOUT / "notebooks" / f"{name}.ipynb", as_version=4)
        elsewhere = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=DEADLINE, resources=elsewhere).execute(env=environment)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        said[name] = "".join(output.get("text", "") for output in outputs)
        figures = [output for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
        assert len(figures) == (2 if name == "use_model" else 0)
    assert "limited by" in said["organize"]
    assert "step 3" in said["organize"]
    assert "the coordinator ended with 0" in said["organize"]
    assert "model.safetensors" in said["organize"]
    assert "question" in said["use_model"]
    wait_until(lambda: not processes_with(home), "a process of the run is left")
