"""A model served by two processes answers as the whole one does, whatever happens to a server meanwhile."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dedloc_kit import worker
from dedloc_kit.blocks.lora import LoraConfig
from dedloc_kit.errors import UserError
from dedloc_kit.inference import tuning
from dedloc_kit.machine.isolation import isolated
from tests import fork_server
from tests.blocks import tiny
from tests.blocks.tuned import adapter_for, local, trained
from tests.served import ServedModel

TEXT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [11, 4, 8, 3, 11, 4, 8, 3]])
PADDED = torch.tensor([[0, 0, 0, 7, 5, 9, 7, 5], [11, 4, 8, 3, 11, 4, 8, 3]])
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 1.5, "top_k": 0},
    "beams": {"num_beams": 3},
    "prompt lookup": {"text": TEXT[:1], "prompt_lookup_num_tokens": 3},
    "padded": {"text": PADDED},
}


class Pair(NamedTuple):
    whole: Any
    swarm: ServedModel
    model: Any


def written(model: Any, text: torch.Tensor = TEXT, **how: Any) -> torch.Tensor:
    torch.manual_seed(3)
    how = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 96, **how}
    out: torch.Tensor = model.generate(text, attention_mask=(text != 0).long(), **how)
    return out


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("served")
    whole = tiny.model("Llama")
    whole.save_pretrained(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_start", fork_server.worker_process)  # as conftest does it for one test
        patch.setenv("DEDLOC_HOME", str(folder / "home"))
        with ServedModel(folder, folder / "model", span="0:2") as swarm:
            swarm.join(span="2:4")
            swarm.wait_until_served(tiny.LAYERS)
            yield Pair(whole, swarm, swarm.model())


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_generate_writes_the_same(pair: Pair, way: str) -> None:
    local = written(pair.whole, **WAYS[way])
    assert torch.equal(written(pair.model, **WAYS[way]), local)
    assert local[:, 8:].unique().numel() > 3


def test_gradients_go_through_the_servers(pair: Pair) -> None:
    gradients = []
    for each in (pair.whole, pair.model):
        given = each.get_input_embeddings()(PADDED).detach().requires_grad_()
        each(inputs_embeds=given, attention_mask=(PADDED != 0).long(), labels=TEXT, use_cache=False).loss.backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    assert gradients[0].abs().sum() > 0


def test_a_server_that_is_killed_in_mid_answer_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    spare = pair.swarm.join(span="2:4")
    pair.swarm.wait_until_served(tiny.LAYERS)
    local, asked = written(pair.whole, max_new_tokens=20), 0

    def kill(*_: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            spare.kill()

    hook = pair.model.get_input_embeddings().register_forward_pre_hook(kill)
    try:
        assert torch.equal(written(pair.model, max_new_tokens=20), local)
    finally:
        hook.remove()


def test_gradients_of_soft_prompts_and_lora_are_those_of_the_whole_model(pair: Pair) -> None:
    adapter = adapter_for(pair.whole)
    soft = torch.nn.Parameter(torch.randn(1, 2, 32))
    found = []
    here = local(pair.whole, adapter)
    with pair.model.adapted(adapter):
        for model in (here, pair.model):
            loss = trained(model, adapter, soft)
            found.append([loss, *(parameter.grad for parameter in (soft, *adapter.parameters()))])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-6 * one.norm()
        assert one.norm() > 0


def test_what_is_written_with_an_adapter_is_what_the_whole_model_writes_with_it(pair: Pair) -> None:
    adapter = adapter_for(pair.whole)
    adapted, plain = (written(model) for model in (local(pair.whole, adapter), pair.whole))
    with pair.model.adapted(adapter):
        assert torch.equal(written(pair.model), adapted)
    assert torch.equal(written(pair.model), plain)
    assert not torch.equal(adapted, plain)


def test_an_adapter_is_made_saved_and_loaded_for_a_served_model(pair: Pair, tmp_path: Path) -> None:
    adapter = tuning.new_adapter(pair.model, LoraConfig(rank=2, target_modules=("v_proj",)), seed=3)
    tuning.save_adapter(pair.model, adapter, tmp_path)
    loaded = tuning.load_adapter(pair.model, tmp_path)
    assert loaded.adapter().digest == adapter.adapter().digest
    assert loaded.scaling == 8.0


def test_an_adapter_that_is_not_finite_is_refused_before_it_travels(pair: Pair) -> None:
    adapter = adapter_for(pair.whole)
    next(adapter.parameters()).data[0, 0] = float("nan")
    with pair.model.adapted(adapter), pytest.raises(UserError, match="not finite"):
        pair.model(TEXT)


@pytest.mark.slow
def test_with_half_the_bits_or_fewer_the_loss_after_50_steps_is_nearly_that_of_the_whole_model(pair: Pair) -> None:
    models = {form: pair.swarm.model(activations=form) for form in ("float16", "8bit")}
    assert torch.equal(*(written(model) for model in models.values())), "8 bits are for training alone"

    def loss_after(form: str) -> float:
        adapter = adapter_for(pair.whole)
        torch.manual_seed(1)
        soft = torch.nn.Parameter(torch.randn(1, 2, 32))
        optimizer = torch.optim.Adam([soft, *adapter.parameters()], lr=1e-2)
        model = models[form] if form in models else local(pair.whole, adapter)
        with model.adapted(adapter) if form in models else nullcontext():
            first = trained(model, adapter, soft)
            for _ in range(50):
                loss = trained(model, adapter, soft)
                optimizer.step()
        assert loss < first / 2
        return float(loss)

    right = loss_after("")
    assert loss_after("float16") == pytest.approx(right, rel=0.01)
    assert loss_after("8bit") == pytest.approx(right, rel=0.05)


def test_a_server_that_answers_wrongly_is_found_and_told_of(pair: Pair) -> None:
    swarm = pair.swarm
    swarm.join(span="2:4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            *(worker, "_start"),
            lambda role, environment, log, handles: fork_server.Forked(
                ["tests.lying_worker", role], isolated(environment), log, handles
            ),
        )
        liar = swarm.join(span="2:4")
    swarm.wait_until_served(tiny.LAYERS)
    told: list[str] = []
    model = swarm.model(told=told.append)
    deadline = time.monotonic() + 60
    while not any("answered wrongly for the layers 2:4" in text for text in told):
        assert time.monotonic() < deadline, told
        written(model, max_new_tokens=2)
    assert torch.equal(written(model), written(pair.whole))
    liar.kill()
