"""What leaves a run with experts."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.coordinator.exporting import check_published, export
from dedloc_kit.coordinator.publishing.publisher import Publisher
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Pushed
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.state import MixedState
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.state import STATE_FILE
from dedloc_kit.records.steps import Receipt
from tests.loopback_hub import loopback_hub
from tests.text_runs import mixed, text_run, write_text

NAME = "us/model"
EXPERT = ExpertName(1, 0, 1)


def state_of(folder: Path, architecture: str) -> tuple[Any, MixedState]:
    """After a step, with a host that keeps an expert."""
    write_text(folder)
    run = mixed(text_run(folder, "causal", architecture=architecture))
    task: Any = create_task(run)

    def fresh() -> MixedState:
        groups = task.groups
        made = MixedState(task.model(), lambda model: build_optimizer(run.optimizer, groups(model)), run)
        made.bank.hold_all()
        return made

    state, host = fresh(), fresh()
    state.have_hosts(
        lambda names, step, take: take(EXPERT, host.bank.state(EXPERT)), lambda: None, Stored(folder / "e", run.run_id)
    )
    assert state.keeping.followed_by(EXPERT, print) is not None
    state.keeping.give(EXPERT, print)
    state.keeping.drop(EXPERT)
    for each in (state, host):
        receipt = Receipt(step=1, round=f"{1:040x}", time=1.0, seconds=1.0, record=b"")
        each.apply(torch.ones(each.layout.size), receipt)
        each.take(1, 64)
    return task, state


def test_a_push_holds_the_whole_state_and_a_model_of_transformers_with_what_hosts_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, state = state_of(tmp_path, "qwen3")
    peer, heard = CoordinatorConfig(folder=tmp_path, hub=NAME), list[AnyEvent]()
    check_published(peer, state, task)
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        ledger = Ledger(tmp_path / "ledger.sqlite")
        Publisher(state.run, peer, state, task, ledger, heard.append).close()
        ledger.close()
        assert [event.step for event in heard if isinstance(event, Pushed)] == [1], heard
        pushed = tmp_path / "pushed"
        for name, content in hub.files(NAME).items():
            (pushed / name).parent.mkdir(parents=True, exist_ok=True)
            (pushed / name).write_bytes(content)
    state.check_named(*checkpoint.load(pushed / STATE_FILE))
    model: Any = AutoModelForCausalLM.from_pretrained(pushed)
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    ours: Any = state.snapshot()[0]
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, ours(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    export(tmp_path / "parameters.safetensors", state, task)
    parameters = load_file(tmp_path / "parameters.safetensors")
    assert parameters.keys() == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(parameters[name], each) for name, each in model.named_parameters())


def test_of_a_trunk_that_no_library_has_with_experts_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, state = state_of(tmp_path, "gpt_neox")
    check_published(CoordinatorConfig(folder=tmp_path), state, task)
    with pytest.raises(UserError, match=r"^transformers has no gpt_neox with experts, .*; or leave --hub out$"):
        check_published(CoordinatorConfig(folder=tmp_path, hub=NAME), state, task)
    with caplog.at_level(logging.WARNING):
        export(tmp_path / "parameters.safetensors", state, task)
    assert "has the trunk alone: transformers has no gpt_neox with experts" in caplog.text
    assert load_file(tmp_path / "parameters.safetensors").keys() == dict(state.model.named_parameters()).keys()
