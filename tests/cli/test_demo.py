"""The demo, as its user runs it."""

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.distributions import Categorical

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.prepare import prepare_demo
from tests.batches import batches_from
from tests.commands import dedloc

STEPS = 150


def loss_by_frequency(folder: Path) -> float:
    """What knowing how frequent each token is, and nothing of what stands around it, is worth."""
    task = create_task(prepare_demo("albert-demo", folder))
    batches = islice(batches_from(task, 32, 0, warn=print), 20)
    labels = torch.cat([batch["labels"][batch["labels"] != IGNORED] for batch in batches])
    entropy = float(Categorical(torch.bincount(labels).float()).entropy())
    return entropy + math.log(2)  # and the order of sentences


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_two_volunteers_teach_the_model_more_than_how_frequent_each_token_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "r.json"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    asked = ("--no-browser", "--volunteers", "2", "--steps", str(STEPS), "--report", report)
    done = dedloc("demo", *asked, folder=tmp_path, deadline=1140.0)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    assert result["global_steps"] == STEPS
    assert all(samples >= result["global_batch"] for samples in result["samples_per_step"])
    assert len(result["contributions"]) == 2
    assert sum(result["contributions"].values()) == result["samples_total"] == sum(result["samples_per_step"])
    assert result["loss_last"] < result["loss_first"] - 1.0
    # Below it at all is proof; by how much hangs on the samples, and how old they are, that a loaded machine gets in.
    assert result["eval_loss_last"] < loss_by_frequency(tmp_path / "home" / "demo" / "albert-demo")
    assert result["max_parameter_difference"] == 0.0, "everyone applied the same bits"
    assert 0 < result["seconds_to_first_step"] < result["wall_seconds"]
    assert list(tmp_path.glob("dedloc-demo-*")) == [], "nothing is left on the disk"
