"""The demo, as its user runs it."""

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributions import Categorical
from transformers import AutoTokenizer

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.prepare import prepare_demo
from tests.batches import batches_from
from tests.commands import assert_refused, dedloc
from tests.text_runs import write_text

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


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_what_one_demo_has_kept_another_one_teaches_to_answer(tmp_path: Path) -> None:
    given = tmp_path / "home" / "demo" / "gpt"
    given.mkdir(parents=True)
    write_text(given)  # a minute of a core less than what it would make of all that this machine has
    (given / "causal").rename(given / "tokenizer-smoke")
    short = ("--no-browser", "--volunteers", "1")
    kept, learned = tmp_path / "kept", tmp_path / "learned"
    first = dedloc("demo", "--recipe", "gpt", "--steps", "4", *short, "--keep", kept, folder=tmp_path, deadline=500.0)
    assert first.returncode == 0, first.stdout + first.stderr
    assert_refused(
        dedloc("demo", "--recipe", "gpt", *short, "--keep", kept, folder=tmp_path), "exists already", "--keep"
    )
    assert_refused(dedloc("demo", "--recipe", "chat", *short, folder=tmp_path), "goes on from a model", "--from FOLDER")

    report = tmp_path / "report.json"
    asked = ("--recipe", "chat", "--steps", "10", *short, "--from", kept, "--keep", learned, "--report", report)
    second = dedloc("demo", *asked, folder=tmp_path, deadline=500.0)
    assert second.returncode == 0, second.stdout + second.stderr
    result = json.loads(report.read_text())
    assert result["eval_loss_last"] < result["eval_loss_first"] - 0.5
    assert result["max_parameter_difference"] == 0.0, "everyone applied the same bits"
    assert "assistant: | " in second.stdout, "it shows what the model answers"

    before, after = (load_file(folder / "coordinator.safetensors") for folder in (kept, learned))
    tokens = len(AutoTokenizer.from_pretrained(given / "tokenizer-smoke"))
    assert [len(each["model.embed_tokens.weight"]) for each in (before, after)] == [tokens, tokens + 2]
