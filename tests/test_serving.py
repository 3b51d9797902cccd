"""A model served by two processes answers as the whole one does, whatever happens to a server meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dedloc_kit import worker
from dedloc_kit.machine.isolation import isolated
from tests import fork_server
from tests.blocks import tiny
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
