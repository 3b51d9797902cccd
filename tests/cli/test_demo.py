"""The demo, as its user runs it."""

import json
import math
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.distributions import Categorical

from dedloc_kit.data.masking import IGNORED
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.tasks import create_task


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's home: the first demo makes the corpus and the tokenizer, the others find them."""
    return tmp_path_factory.mktemp("home")


def start_demo(home: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dedloc_kit.cli", "demo", "--no-browser", *arguments],
        env={**os.environ, "DEDLOC_HOME": str(home), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def loss_by_frequency(folder: Path) -> float:
    """What knowing how frequent each token is, and nothing of what stands around it, is worth."""
    task = create_task(prepare_demo("albert-demo", folder))
    batches = islice(task.batches(32, 0, warn=print), 200)
    labels = torch.cat([batch["labels"][batch["labels"] != IGNORED] for batch in batches])
    entropy = float(Categorical(torch.bincount(labels).float()).entropy())
    return entropy + math.log(2)  # and the order of sentences


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_two_volunteers_teach_the_model_more_than_how_frequent_each_token_is(home: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    demo = start_demo(home, tmp_path, "--volunteers", "2", "--steps", "130", "--report", str(report))
    said, _ = demo.communicate(timeout=1940)
    assert demo.returncode == 0, said
    result = json.loads(report.read_text())
    assert result["global_steps"] == 130
    assert all(samples >= result["global_batch"] for samples in result["samples_per_step"])
    assert len(result["contributions"]) == 2
    assert sum(result["contributions"].values()) == result["samples_total"] == sum(result["samples_per_step"])
    assert result["loss_last"] < result["loss_first"] - 1.0
    # Below it at all is proof; by how much hangs on the samples, and how old they are, that a loaded machine gets in.
    assert result["eval_loss_last"] < loss_by_frequency(home / "demo" / "albert-demo")
    assert result["max_parameter_difference"] == 0.0, "everyone applied the same bits"
    assert 0 < result["seconds_to_first_step"] < result["wall_seconds"]
    assert list(tmp_path.glob("dedloc-demo-*")) == [], "nothing is left on the disk"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_demo_of_a_model_that_writes_shows_what_it_writes_and_how_it_learns(home: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    asked = ("--recipe", "gpt", "--volunteers", "1", "--steps", "15", "--report", str(report))
    demo = start_demo(home, tmp_path, *asked)
    said, _ = demo.communicate(timeout=1100)
    assert demo.returncode == 0, said
    result = json.loads(report.read_text())
    assert result["eval_loss_last"] < result["eval_loss_first"] - 0.5
    assert "after step 0 it writes: " in said
    assert "after step 15 it writes: " in said
