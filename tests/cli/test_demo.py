"""The demo, as its user runs it."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributions import Categorical
from transformers import AutoTokenizer, pipeline

from dedloc_kit.cli.demo import what_next, with_steps
from dedloc_kit.cli.main import parser
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.prepare import prepare_demo
from tests.batches import batches_from
from tests.commands import assert_refused, dedloc
from tests.llama_cpp import INSTALLED, LlamaCpp
from tests.text_runs import write_text
from tests.tiny import tiny_run

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


PAGE = Path(__file__).parents[2] / "docs" / "organize.md"
LINES = re.findall(r"^dedloc (.*(?:first|second).*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
"""From training to a model that one talks to, as the documentation has it."""
SHORT = ("--no-browser", "--volunteers", "1", "--steps")
PROMPT = "The training of"


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_the_documented_way_leads_from_training_to_a_model_that_answers(tmp_path: Path) -> None:
    train, export, to_gguf, teach, talk = map(str.split, LINES)
    given = tmp_path / "home" / "demo" / "gpt"
    given.mkdir(parents=True)
    write_text(given)  # a minute of a core less than what it would make of all that this machine has
    (given / "causal").rename(given / "tokenizer-smoke")

    first = dedloc(*train, *SHORT, "4", folder=tmp_path, deadline=500.0)
    assert first.returncode == 0, first.stdout + first.stderr
    assert_refused(dedloc(*train, *SHORT, "4", folder=tmp_path), "exists already", "--keep")
    assert_refused(
        dedloc("demo", "--recipe", "chat", *SHORT, "4", folder=tmp_path), "goes on from a model", "--init-from FOLDER"
    )

    for command in (export, to_gguf):
        done = dedloc(*command, folder=tmp_path, deadline=200.0)
        assert done.returncode == 0, done.stdout + done.stderr
    write = pipeline("text-generation", model=str(tmp_path / "first-model"))
    written = write(PROMPT, max_new_tokens=12, do_sample=False)[0]["generated_text"]
    assert written.startswith(PROMPT)
    (file,) = (tmp_path / "first-file").glob("*.gguf")
    tokens = write.tokenizer(PROMPT)["input_ids"]
    followed = write.model.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)[0, len(tokens) :]
    if INSTALLED:
        assert LlamaCpp(file).tokenize([PROMPT]) == [write.tokenizer(PROMPT, add_special_tokens=False)["input_ids"]]
        assert LlamaCpp(file).greedy(tokens, len(followed)) == followed.tolist()

    report = tmp_path / "report.json"
    second = dedloc(*teach, *SHORT, "10", "--report", report, folder=tmp_path, deadline=500.0)
    assert second.returncode == 0, second.stdout + second.stderr
    result = json.loads(report.read_text())
    assert result["eval_loss_last"] < result["eval_loss_first"] - 0.5
    assert result["max_parameter_difference"] == 0.0, "everyone applied the same bits"
    assert "assistant: | " in second.stdout, "it shows what the model answers"
    before, after = (load_file(tmp_path / name / "coordinator.safetensors") for name in ("first", "second"))
    vocabulary = len(AutoTokenizer.from_pretrained(given / "tokenizer-smoke"))
    assert [len(each["model.embed_tokens.weight"]) for each in (before, after)] == [vocabulary, vocabulary + 2]

    chat = subprocess.run(
        [sys.executable, "-m", "dedloc_kit.cli", *talk, "--device", "cpu"],
        input="Who are you?\n",
        cwd=tmp_path,
        env={**os.environ, "DEDLOC_HOME": str(tmp_path / "home"), "PYTHONPATH": str(PAGE.parents[1])},
        capture_output=True,
        text=True,
        timeout=200.0,
        check=False,
    )
    assert chat.returncode == 0, chat.stdout + chat.stderr
    assert "step 10 is ready" in chat.stderr
    assert "<|im_" not in chat.stdout, "the template's marks are no part of an answer"


def test_a_demo_of_more_steps_than_the_recipe_takes_them_all_and_a_shorter_one_keeps_its_schedule() -> None:
    run = tiny_run(optimizer={"schedule": "cosine", "warmup_steps": 20, "total_steps": 200})
    assert with_steps(run, 400).optimizer.total_steps == 400
    assert with_steps(run, 100) == run


@pytest.mark.parametrize("kept", [None, Path("a folder")])
def test_what_to_do_next_is_commands_that_can_be_given(kept: Path | None) -> None:
    for task, recipe, chats in (("albert", "albert-demo", False), ("causal", "gpt", True), ("chat", "chat", True)):
        lines = [line.strip() for line in what_next(task, recipe, kept) if line.startswith("  ")]
        commands = [shlex.split(line.partition("  ")[0])[1:] for line in lines]
        given = [parser().parse_args(command) for command in commands]
        assert ("chat" in [each.command for each in given]) == chats
        assert ("demo" in [each.command for each in given]) == (kept is None)
        assert {"export", "init"} <= {each.command for each in given}
