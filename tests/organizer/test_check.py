"""`dedloc check`, as an organizer uses it."""

import json
from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.config.task import Source
from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.events import GoingOn, Rehearsed
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.organizer.check import (
    check_mixture,
    compare_tokenizers,
    describe,
    describe_prediction,
)
from dedloc_kit.organizer.prediction import Prediction
from tests.commands import dedloc
from tests.tiny import tiny_run
from tests.tiny_mixed import mixed_run

RUN = """
name = "tiny"
global_batch = 512
[task]
name = "tiny"
[[data.train]]
dataset = "./none.txt"
weight = {weight}
[optimizer]
warmup_steps = 0
total_steps = 1000
"""


def mixture(*weights: float) -> tuple[Source, ...]:
    return tuple(Source(dataset="a/b", weight=weight) for weight in weights)


@pytest.mark.parametrize("weights", [(1.0,), (0.77, 0.23), (77, 23), (2, 1), (0.333, 0.333, 0.333), (1.0, 1.0)])
def test_shares_that_make_a_whole_and_proportions_are_accepted(weights: tuple[float, ...]) -> None:
    check_mixture(mixture(*weights))


@pytest.mark.parametrize("weights", [(0.77,), (0.77, 0.33), (0.5, 0.4), (1.0, 0.23)])
def test_shares_that_do_not_make_a_whole_are_refused_with_their_sum(weights: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=rf"do not sum to 1: .* = {sum(weights):g} "):
        check_mixture(mixture(*weights))


@pytest.mark.child
def test_a_whole_check_tells_what_the_run_takes_and_how_long(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(weight=1))
    mix = "2xCPU@10mbit/open,1xT4"
    asked = ("run.toml", "--volunteers", mix, "--task-module", "tests.tiny", "--json")
    done = dedloc("check", *asked, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "million parameters",
        "measured",
        "estimated",
        "limited by matchmaking",
        "1,000 global steps",
        "a day, and gets",
    ):
        assert words in done.stderr
    found = json.loads(done.stdout)
    assert found["plan"]["run_id"] == found["run_id"]
    assert found["plan"]["step_seconds"] > 0


def test_how_far_a_weekend_gets_is_said_and_of_a_run_that_waits_for_its_decay_the_longest_time() -> None:
    predicted = Prediction(computing=1.0, network=1.0, matchmaking=1.0, vanishing=0.1, step=2.0, days=3.0)
    steady = {"schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}
    waits, falls = (tiny_run(optimizer=steady | changes) for changes in ({}, {"schedule": "linear"}))
    assert "a weekend     86,400 global steps in 48 hours" in describe_prediction(waits, predicted)
    assert (
        "for 1,000 global steps at most, or sooner by 'dedloc run cooldown'"
        in describe_prediction(waits, predicted)[-1]
    )
    assert "for 1,000 global steps, if so many" in describe_prediction(falls, predicted)[-1]


def test_the_weights_of_the_last_mixture_are_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decay = '[[data.cooldown]]\ndataset = "./none.txt"\nweight = 0.5\n[optimizer]\nschedule = "warmup-stable-decay"\n'
    (tmp_path / "run.toml").write_text(RUN.format(weight=1).replace("[optimizer]\n", decay))
    assert main(["check", str(tmp_path / "run.toml")]) == 2
    assert "the weights of data.cooldown do not sum to 1: 0.5" in capsys.readouterr().err


def test_a_mixture_that_does_not_sum_is_refused_before_anything_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(weight=0.5))
    assert main(["check", str(tmp_path / "run.toml")]) == 2
    assert "do not sum to 1: 0.5" in capsys.readouterr().err


def test_a_mix_of_unknown_volunteers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(weight=1))
    assert main(["check", str(tmp_path / "run.toml"), "--volunteers", "3xABACUS"]) == 2
    assert "ABACUS" in capsys.readouterr().err


def test_data_that_only_this_machine_has_is_pointed_out() -> None:
    rehearsed = Rehearsed(parameters=1_000_000, gradient_bytes=1, average_bytes=1, device="CPU", cost=None)
    local = tiny_run(data={"train": [{"dataset": "/data/corpus"}]})
    assert any("volunteers elsewhere cannot read it" in line for line in describe(local, rehearsed))
    assert not any("elsewhere" in line for line in describe(tiny_run(), rehearsed))
    mixed = "\n".join(describe(mixed_run(), rehearsed))
    assert "6 networks of 0.0 million parameters in all" in mixed
    assert "holds what they do not: up to 48.4 kB on its disk" in mixed
    drawing = local.task.model_copy(update={"pictures": {}})
    drawn = "\n".join(describe(local.model_copy(update={"task": drawing}), rehearsed))
    assert "dedloc prepare images RUN.toml --shards --push" in drawn
    assert json.loads(rehearsed.model_dump_json())["cost"] is None


def test_vocabularies_stand_side_by_side_on_the_held_out_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.txt").write_text("der Fluss\n", encoding="utf-8")
    for name, text in (("own", "der Fluss " * 50), ("other", "the river " * 50)):
        train_tokenizer(iter([text]), 300, tmp_path / name, "bpe", CAUSAL)
    source = {"dataset": str(tmp_path), "split": "test"}
    run = tiny_run(
        task={"name": "causal", "tokenizer": str(tmp_path / "own")}, data={"train": [source], "evaluation": source}
    )
    console = Console(width=200)
    console.print(compare_tokenizers(run, [str(tmp_path / "other")], console))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:3] == ["own", "(this", "run)"]
    assert rows[1][-2:] == ["1.00", "4.50"], "a token for each word"
    assert rows[2][0] == "other"
    assert float(rows[2][-2]) > 2


def test_what_a_start_gives_is_told_in_tokens_and_in_what_it_makes_of_the_held_out_text() -> None:
    start = GoingOn(
        copied=1200,
        averaged=300,
        drawn=2,
        held_out={"loss": 5.0, "bits per byte": 1.5},
        held_out_before={"loss": 4.0, "bits per byte": 1.25},
    )
    rehearsed = Rehearsed(
        parameters=1_000_000, gradient_bytes=1, average_bytes=1, device="CPU", cost=None, going_on=start
    )
    told = "\n".join(describe(tiny_run(), rehearsed))
    assert "1,502 tokens: 1,200 copied from the start's, 300 the mean of those that spell them, 2 drawn" in told
    assert "bits per byte 1.5 (with the start's own vocabulary 1.25)" in told
