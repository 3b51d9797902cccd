"""A decoder in parts is the decoder: its weights, its loss, its gradients; and no part holds more than its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, AutoTokenizer

from dedloc_kit.config.parts import PipelineConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.models.parts import Part
from dedloc_kit.learning.task import Batch, StageTask, create_task
from dedloc_kit.learning.tasks.causal import Causal
from tests.batches import batches_from
from tests.text_runs import text_run, write_text

GPT2 = {"n_embd": 32, "n_layer": 6, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 = {**GPT2, "summary_first_dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def run_of(
    folder: Path, stages: int | tuple[int, ...] | None = 3, model: dict[str, Any] | None = None, **task: Any
) -> RunConfig:
    """One in stages, of six layers unless it is said otherwise."""
    run = text_run(folder, "causal", model={"num_hidden_layers": 6, **(model or {})}, **task)
    if task.get("architecture") == "gpt2":
        run = run.model_copy(update={"task": run.task.model_copy(update={"model": {**GPT2, **(model or {})}})})
    pipeline = None if stages is None else PipelineConfig(stages=stages)
    return run.model_copy(update={"pipeline": pipeline})


def task_of(folder: Path, *args: Any, **kwargs: Any) -> Causal:
    task = create_task(run_of(folder, *args, **kwargs))
    assert isinstance(task, Causal)
    return task


def batch_of(task: Causal, samples: int = 4) -> Batch:
    batch = next(batches_from(task, samples, 0, print))
    assert (batch["position_ids"][:, 1:] == 0).any(), "several documents in a sample"
    return batch


def through(stages: Sequence[StageTask], parts: Sequence[nn.Module], batch: Batch) -> Tensor:
    """The loss as peers compute it: forward without gradients, then stage by stage again and backward."""
    inputs: list[Tensor | None] = [None]
    given = [{name: batch[name] for name in stage.takes} for stage in stages]
    for stage, each in zip(stages, given, strict=True):
        stage.check(each)
    with torch.no_grad():
        for stage, part, each in zip(stages[:-1], parts, given, strict=False):
            inputs.append(stage.forward(part, inputs[-1], each))
            assert inputs[-1] is not None
            assert inputs[-1].shape == (*batch["input_ids"].shape, stage.width)
    gradient, loss = None, torch.zeros(())
    for stage, part, each, hidden in reversed(list(zip(stages, parts, given, inputs, strict=True))):
        if hidden is not None:
            hidden.requires_grad_()
        after = stage.forward(part, hidden, each)
        loss = after.detach() if stage.number == len(stages) - 1 else loss
        after.backward(gradient)
        gradient = None if hidden is None else hidden.grad
    return loss


@pytest.mark.parametrize(
    ("stages", "task"),
    [
        (3, {}),
        (2, {"shared_layers": 3}),
        ((4, 2), {"shared_layers": 2}),
        ((1, 5), {"architecture": "gemma3", "model": {"sliding_window": 8, "layer_types": None}}),
        (3, {"architecture": "gpt2"}),
    ],
)
def test_stages_one_after_the_other_are_the_whole_model(
    folder: Path, stages: int | tuple[int, ...], task: dict[str, Any]
) -> None:
    made = task_of(folder, stages, **task)
    batch, model = batch_of(made), made.model()
    loss = made.loss(model, made.prepare(batch), 0).mean
    loss.backward()

    count = made.run.pipeline.count if made.run.pipeline else 0
    cut = [made.stage(number) for number in range(count)]
    parts = [stage.model() for stage in cut]
    assert all(part.training for part in parts)
    torch.testing.assert_close(through(cut, parts, batch), loss.detach(), rtol=0, atol=1e-6)
    assert sum(stage.share for stage in cut) == pytest.approx(1)
    together = made.whole(parts)
    for one, other in zip(model.named_parameters(), together.named_parameters(), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert one[1].grad is not None
        torch.testing.assert_close(other[1].grad, one[1].grad, rtol=1e-5, atol=1e-7)
    counted = [sum(each.numel() for each in part.parameters()) for part in parts]
    assert sum(counted) == sum(each.numel() for each in model.parameters()), "nothing is in two stages"
    again = made.groups(parts[0])
    assert sum(len(group["params"]) for group in again) == len(list(parts[0].parameters()))


def test_the_first_weights_depend_neither_on_the_cuts_nor_on_the_part_of_the_run_that_a_peer_has(folder: Path) -> None:
    one = task_of(folder, 3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    model = one.model()
    assert torch.equal(torch.get_rng_state(), state)
    stages = [Causal(one.run.of_stage(number)).stage(number) for number in (0, 2)]
    first: Any = stages[0].model()
    last: Any = stages[1].model()
    whole = model.state_dict()
    assert torch.equal(first.span.base.embed_tokens.weight, whole["model.embed_tokens.weight"])
    assert torch.equal(last.layers[1].mlp.up_proj.weight, whole["model.layers.5.mlp.up_proj.weight"])
    weights = [value for name, value in whole.items() if name.endswith("up_proj.weight")]
    assert not any(torch.equal(weights[0], each) for each in weights[1:]), "every layer begins with its own"


class Allocated(TorchDispatchMode):
    """Counts the bytes of whatever is made outside the `meta` device, and keeps it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and not each.is_meta:
                self.kept.setdefault(each.untyped_storage().data_ptr(), each)
        return result

    @property
    def bytes(self) -> int:
        return sum(each.untyped_storage().nbytes() for each in self.kept.values())


def test_a_stage_is_made_without_the_weights_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(folder, 3, model={"hidden_size": 256, "intermediate_size": 512})
    for number in range(3):
        stage = task.stage(number)
        with monkeypatch.context() as patch, Allocated() as allocated:
            patch.setattr(Part, "check", lambda part: None)  # it makes what eight tokens need
            part = stage.model()
        own = sum(each.numel() * 4 for each in part.parameters())
        assert own > 5_000_000
        assert allocated.bytes < 1.05 * own


def test_a_shared_layer_is_stored_once_and_applied_as_often_as_it_is_said(folder: Path) -> None:
    task, plain = task_of(folder, None, shared_layers=3), task_of(folder, None)
    model: Any = task.model()
    ordinary: Any = plain.model()
    assert len(model.model.layers) == 6
    assert model.model.layers[1].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight
    assert model.model.layers[3].mlp.up_proj.weight is not model.model.layers[0].mlp.up_proj.weight
    stored = [sum(each.numel() for each in made.model.layers.parameters()) for made in (model, ordinary)]
    assert stored[1] == 3 * stored[0]
    assert model.lm_head.weight is model.model.embed_tokens.weight, "an ordinary run's ends stay one matrix"

    optimizer = torch.optim.AdamW(task.groups(model), lr=0.01)
    before = task.evaluate(model)
    batches = batches_from(task, 16, 0, print)
    for step in range(15):
        task.loss(model, task.prepare(next(batches)), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.evaluate(model)
    assert after.loss < 0.8 * before.loss
    assert after.samples, "it writes, with a past of its own for each layer"


@pytest.mark.parametrize("stages", [None, 2])
def test_what_is_published_of_shared_layers_is_an_ordinary_model(
    folder: Path, stages: int | None, tmp_path: Path
) -> None:
    task = task_of(folder, stages, shared_layers=3)
    model: Any = task.model().eval()
    task.export(model, tmp_path, "somebody/model")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = AutoTokenizer.from_pretrained(tmp_path)("the river runs", return_tensors="pt").input_ids
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    assert loaded.config.num_hidden_layers == 6
    assert loaded.model.layers[1].mlp.up_proj.weight is not loaded.model.layers[0].mlp.up_proj.weight
    assert loaded.generate(ids, max_new_tokens=4, do_sample=False).tolist() == (
        model.generate(ids, max_new_tokens=4, do_sample=False).tolist()
    )
    assert model.model.layers[1].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight


@pytest.mark.parametrize(
    ("stages", "task", "message"),
    [
        (3, {"model": {"tie_word_embeddings": True}}, "set task.model.tie_word_embeddings to false"),
        (3, {"model": {"attention_dropout": 0.1}}, "task.model.attention_dropout is 0.1"),
        (7, {}, "6 layers with weights of their own; set pipeline.stages to at most that"),
        (3, {"shared_layers": 3}, "2 layers with weights of their own"),
        ((2, 3), {}, "pipeline.stages has 5 layers, task.model.num_hidden_layers is 6"),
        ((3, 3), {"shared_layers": 2}, "2 layers share weights: every number in pipeline.stages must be a multiple"),
        (3, {"shared_layers": 4}, "task.shared_layers must divide task.model.num_hidden_layers \\(6\\)"),
        (3, {"architecture": "granite", "model": {"embedding_multiplier": 12.0}}, "outside its layers.*architecture"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_fix(
    folder: Path, stages: int | tuple[int, ...], task: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        task_of(folder, stages, **task)


def test_a_task_that_does_not_say_how_it_is_cut_is_refused(folder: Path) -> None:
    run = text_run(folder, "encoder").model_copy(update={"pipeline": PipelineConfig(stages=2)})
    with pytest.raises(UserError, match=r"\[pipeline\] is not possible: the task Encoder does not say how"):
        create_task(run)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stage_whose_documents_see_each_other_is_refused(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every peer finds out for itself, which never holds the whole."""
    stage = task_of(folder).stage(number)
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda *_: None)
    with pytest.raises(UserError, match="documents in one sequence see each other"):
        stage.model()


def test_an_output_that_is_not_the_models_own_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="its scores are made in a way of their own"):
        task_of(folder, architecture="cohere").stage(2).model()
