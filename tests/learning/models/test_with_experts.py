"""A decoder with experts: what it is, what it is not, and that it learns."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.lib.mixture import PlainLoop
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import describe_folder
from dedloc_kit.blocks.weights.weights import load, read
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Rehearsed
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.mixture import Mixture, mixtures_of
from dedloc_kit.learning.evaluate.pretrained import Pretrained, as_folder, with_tensors
from dedloc_kit.learning.models.families import DECODERS
from dedloc_kit.learning.models.with_experts import give_experts
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.computing.microbatch import pieces
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.records.state import StateInfo
from dedloc_kit.roles.rehearsal import rehearse
from tests.batches import batches_from
from tests.text_runs import MODEL, mixed, text_run, write_text


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def test_the_layers_that_are_named_have_mixtures_and_the_trunk_has_no_expert(folder: Path) -> None:
    run = mixed(text_run(folder, "causal"))
    one, other = (create_task(run).model() for _ in range(2))
    assert [(type(layer.mlp) is Mixture) for layer in one.model.layers] == [False, True]  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    names = {name for name, _ in one.named_parameters() if "layers.1.mlp" in name}
    assert names == {"model.layers.1.mlp.gate.rows", "model.layers.1.mlp.gate.columns"}
    with pytest.raises(RuntimeError, match="no experts are connected"):
        create_task(run).evaluate(one)


def test_what_it_takes_is_tried_without_any_host_and_no_checkpoint_of_the_trunk_alone_is_used(folder: Path) -> None:
    run, heard = mixed(text_run(folder, "causal")), list[AnyEvent]()
    rehearse(run, JoinOptions(folder=folder, devices="cpu", threads=1, microbatch=2), heard.append, threading.Event())
    assert isinstance(heard[-1], Rehearsed)
    assert heard[-1].cost is not None
    task = create_task(run)
    trunk = {f"model.{name}": each for name, each in task.model().named_parameters()}
    with pytest.raises(UserError, match=r"does not hold the expert 1\.0\.0; name a checkpoint of the organizer's"):
        with_tensors(task, run, trunk, folder)


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox", "gpt2"])
def test_a_few_steps_of_one_process_lower_the_held_out_loss(folder: Path, architecture: str) -> None:
    model = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256} if architecture == "gpt2" else MODEL
    run = text_run(folder, "causal", architecture=architecture)
    run = mixed(
        run.model_copy(
            update={
                "task": run.task.model_copy(update={"model": model}),
                "optimizer": run.optimizer.model_copy(update={"name": "adamw", "learning_rate": 0.01}),
            }
        )
    )
    task = create_task(run)
    loop = PlainLoop(run, task)
    assert loop.bank is not None
    before, experts = task.evaluate(loop.model).loss, loop.bank.state(ExpertName(1, 0, 1))[0]
    batches = batches_from(task, 8, 0, fail)
    for _ in range(8):
        loop.take([next(batches), next(batches)])
    assert task.evaluate(loop.model).loss < before - 0.3
    after, step = loop.bank.state(ExpertName(1, 0, 1))
    assert step == 8
    assert not torch.equal(after["model.down"], experts["model.down"])


def test_a_step_does_not_depend_on_how_its_samples_are_divided(folder: Path) -> None:
    """Without the term for balance, which sees a microbatch at a time."""
    run = mixed(text_run(folder, "causal"), aux_loss_weight=0.0)
    task = create_task(run)
    batch = next(batches_from(task, 16, 0, fail))
    loops = [PlainLoop(run, task) for _ in range(2)]
    loops[0].take([batch])
    loops[1].take(list(pieces(batch, 12)))
    banks = [loop.bank for loop in loops if loop.bank is not None]
    for name in banks[0].names:
        for one, other in zip(*(bank.state(name)[0].values() for bank in banks), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(*(loop.model.parameters() for loop in loops), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_term_for_balance_is_part_of_the_training_loss_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = mixed(text_run(folder, "causal"), aux_loss_weight=10.0)
    task = create_task(run)
    loop = PlainLoop(run, task)
    gate, batch = next(mixtures_of(loop.model)).gate, next(batches_from(task, 8, 0, fail))
    with torch.no_grad():
        gate.rows.mul_(20)
        bare = task.loss(loop.model, task.prepare(batch), 0).mean
    loss = task.loss(loop.model, task.prepare(batch), 0).mean
    loss.backward()
    assert gate.rows.grad is not None
    assert gate.rows.grad.norm() > 0.0
    monkeypatch.setattr("dedloc_kit.learning.tasks.causal.imbalance_of", lambda _: torch.tensor(0.25))
    torch.testing.assert_close(task.loss(loop.model, task.prepare(batch), 0).mean, bare + 2.5)
    monkeypatch.setattr("dedloc_kit.learning.tasks.causal.imbalance_of", lambda _: torch.tensor(0.0))
    torch.testing.assert_close(task.loss(loop.model, task.prepare(batch), 0).mean, bare)


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        ({"width": 16}, "experts.width is 16, and the trunk has 32 channels"),
        ({"layers": [0, 2]}, "experts.layers names the layer 2, and the model has 2"),
    ],
)
def test_experts_that_do_not_fit_the_trunk_are_refused(folder: Path, experts: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        create_task(mixed(text_run(folder, "causal"), **experts))
    assert "\n" not in str(error.value)


def test_layers_that_share_weights_have_no_experts(folder: Path) -> None:
    with pytest.raises(UserError, match=r"\[experts\] are not possible: .*remove task.shared_layers"):
        create_task(mixed(text_run(folder, "causal", shared_layers=2)))


def test_a_model_that_goes_on_from_another_has_no_experts(folder: Path) -> None:
    task: Any = create_task(mixed(text_run(folder, "causal")))
    assert task.unsupported("experts") == ""
    task.options = task.options.model_copy(update={"init_from": "a/b"})
    assert task.unsupported("experts").endswith("remove one of them")


def test_an_architecture_whose_layers_have_no_feed_forward_network_of_their_own_is_refused(folder: Path) -> None:
    run = mixed(text_run(folder, "causal"))
    model: Any = create_task(text_run(folder, "causal")).model()
    for layer in model.model.layers:
        del layer.mlp
    assert run.experts is not None
    with pytest.raises(UserError, match="no feed-forward network that experts could take the place of"):
        give_experts(model, DECODERS, run.experts, run.run_id)


def test_a_task_without_layers_for_them_refuses_experts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Encoder has no layers for them"):
        create_task(mixed(text_run(folder, "encoder")))


def trained(run: RunConfig) -> PlainLoop:
    """By a few steps, after which its gates and experts differ from the first ones."""
    loop = PlainLoop(run, task := create_task(run))
    batches = batches_from(task, 8, 0, fail)
    for _ in range(3):
        loop.take([next(batches)])
    for mixture in mixtures_of(loop.model):
        mixture.gate.rows.data.mul_(40)
        mixture.gate.columns.data.mul_(40)
    return loop


def checkpoint(loop: PlainLoop) -> dict[str, torch.Tensor]:
    assert loop.bank is not None
    tensors = {f"model.{name}": each.detach() for name, each in loop.model.named_parameters()}
    for name in loop.bank.names:
        tensors |= {f"experts.{name}.{key}": each for key, each in loop.bank.state(name)[0].items()}
    return tensors


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_checkpoint_is_written_as_a_model_of_transformers_that_tells_the_same_and_is_served_in_spans(
    folder: Path, tmp_path: Path, architecture: str
) -> None:
    run = mixed(
        text_run(folder, "causal", architecture=architecture, model={"num_hidden_layers": 3, "hidden_size": 32}),
        layers=[0, 2],
        grid=[2, 3],
    )
    loop = trained(run)
    save(tmp_path / "step.safetensors", checkpoint(loop), StateInfo(run_id=run.run_id, step=3, rounds=()))
    with as_folder(str(tmp_path / "step.safetensors"), run) as written_to:
        model: Any = Pretrained(written_to, 32).language_model()
        tokenizer = AutoTokenizer.from_pretrained(written_to)
        manifest, hidden = describe_folder(Path(written_to)), torch.randn(2, 5, 32)
        served = hidden
        for span in (Span(model.config, 0, 1), Span(model.config, 1, 3)):
            names = span.wanted(manifest.tensors)
            load(span, span.merged(names, read(Path(written_to), manifest, names)), "float32")
            served = span(served, None, torch.arange(5)[None])
        torch.testing.assert_close(served, Span.of(model, 0, 3)(hidden, None, torch.arange(5)[None]))
    given = tokenizer("the river bank", return_tensors="pt")
    ours: Any = loop.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**given).logits, ours(**given).logits, rtol=1e-4, atol=1e-5)
    written = model.generate(**given, max_new_tokens=5, min_new_tokens=5)
    assert written[0].tolist()[:-5] == given.input_ids[0].tolist()


def test_what_transformers_has_no_architecture_for_is_not_written(folder: Path, tmp_path: Path) -> None:
    run = mixed(text_run(folder, "causal", architecture="gpt_neox"))
    loop, task = trained(run), create_task(run)
    with pytest.raises(UserError, match=r"transformers has no gpt_neox with experts, .* llama, qwen2, qwen3"):
        task.export(with_tensors(task, run, checkpoint(loop), folder), tmp_path, "a/b")
    run = mixed(text_run(folder, "causal", model={"hidden_act": "gelu"}))
    loop, task = trained(run), create_task(run)
    with pytest.raises(UserError, match="in a way of their own"):
        task.export(with_tensors(task, run, checkpoint(loop), folder), tmp_path, "a/b")
