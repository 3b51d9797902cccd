"""What the stages of a pipeline take is tried one by one."""

import threading
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.parts import PipelineConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.stage_costs import expected_memory
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Rehearsed
from dedloc_kit.learning.models.parts import Cut
from dedloc_kit.learning.models.stage import DecoderStage
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.machine.memory_model import StageMemory
from dedloc_kit.roles.rehearsal import rehearse
from tests.text_runs import text_run, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def run_of(folder: Path, tokens: int, **model: Any) -> RunConfig:
    run = text_run(folder, "causal", model={"num_hidden_layers": 6, **model})
    return run.model_copy(update={"pipeline": PipelineConfig(stages=3, microbatch_tokens=tokens)})


def rehearsed(run: RunConfig, folder: Path) -> Rehearsed:
    found: list[AnyEvent] = []
    rehearse(run, JoinOptions(folder=folder, devices="cpu", threads=1), found.append, threading.Event())
    (last,) = (event for event in found if isinstance(event, Rehearsed))
    return last


def test_each_stage_is_tried_and_no_whole_model_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = sum(each.numel() for each in Causal(run_of(folder, 128)).model().parameters())
    monkeypatch.setattr(Causal, "model", lambda self: pytest.fail("a whole model was made"))
    found = rehearsed(run_of(folder, tokens=128), folder)
    assert len(found.stages) == 3
    assert found.parameters == parameters
    first, middle, last = found.stages
    assert (middle.width, middle.tokens) == (32, 128)
    assert first.parameters > middle.parameters
    assert last.flops > middle.flops == first.flops
    assert all(stage.seconds > 0 for stage in found.stages)
    assert found.cost is not None
    assert found.cost.microbatch == 4
    assert found.cost.samples_per_second == pytest.approx(4 / sum(stage.seconds for stage in found.stages))


def test_a_microbatch_of_more_tokens_takes_as_much_more(folder: Path) -> None:
    one, four = (rehearsed(run_of(folder, tokens), folder).stages[1] for tokens in (32, 128))
    assert four.flops == pytest.approx(4 * one.flops)
    assert four.kept_bytes == pytest.approx(4 * one.kept_bytes, rel=0.1)  # a mask is kept once
    # Four of its matrices are width x width, three width x 64, in two layers; attention is computed in full.
    products = 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32 * 32) * 2
    assert one.flops == pytest.approx(
        4 * 32 * products, rel=1e-3
    )  # of transformers 5.17 rotary angles are such products


def test_what_a_stage_takes_is_foreseen_without_holding_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = text_run(folder, "causal", model={"num_hidden_layers": 6}, shared_layers=2)
    run = run.model_copy(update={"pipeline": PipelineConfig(stages=3, microbatch_tokens=128)})
    tried = rehearsed(run, folder).stages
    monkeypatch.setattr(Cut, "_draw", lambda *_: pytest.fail("weights were made"))
    for number, stage in enumerate(tried):
        found = expected_memory(run, Causal(run), number)
        assert found == StageMemory.of(stage.parameters, found.activations)
        assert found.activations == pytest.approx(stage.kept_bytes, rel=0.15)


def test_where_shapes_do_not_tell_what_a_stage_keeps_its_weights_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(folder, 128)
    monkeypatch.setattr(DecoderStage, "forward", lambda self, model, hidden, batch: hidden[hidden > 0].sum().item())
    found = expected_memory(run, Causal(run), 1)
    assert found.held > 0
    assert found.activations == 0
    assert "the activations of stage 1 cannot be foreseen" in caplog.text


def test_a_task_that_cannot_be_cut_is_refused_with_its_reason(folder: Path) -> None:
    with pytest.raises(UserError, match=r"\[pipeline\] is not possible: .*tie_word_embeddings to false"):
        rehearsed(run_of(folder, 128, tie_word_embeddings=True), folder)
