"""A run's own invitation serves its newest version, and servers and users go over from one version to the next."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Served
from dedloc_kit.inference.model import AutoDistributedModelForCausalLM
from dedloc_kit.learning.evaluate.pretrained import with_weights
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.worker import server_job
from tests.served import Server
from tests.swarm.harness import Swarm
from tests.text_runs import text_run, write_text

TEXT = torch.tensor([[5, 9, 7, 50, 90, 7, 50, 9]])


def whole(run: RunConfig, folder: Path, step: int) -> Any:
    """The model of a checkpoint, as everybody has it who downloads it."""
    task = create_task(run)
    place = folder / f"whole{step}"
    place.mkdir()
    path = Checkpoints(folder / "coordinator" / "checkpoints", 3).path(step)
    task.export(with_weights(task, run, path), place, "whole")
    return AutoModelForCausalLM.from_pretrained(place)


def written(model: Any, text: torch.Tensor, new: int) -> torch.Tensor:
    out: torch.Tensor = model.generate(text, max_new_tokens=new, do_sample=False, eos_token_id=None)
    return out


@pytest.mark.soak
def test_servers_change_to_a_runs_next_version_while_an_old_session_goes_on_and_a_new_one_has_the_new(
    tmp_path: Path,
) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    with Swarm(run, tmp_path) as swarm, ExitStack() as stack:
        coordinator = swarm.coordinator(serve_every=1)
        invitation = tmp_path / "invitation.json"
        invitation.write_text(swarm.invitation.model_dump_json())
        swarm.volunteer("first", until_step=1)
        coordinator.wait_for_step(1)
        servers = []
        for span in ("0:1", "1:2"):
            server = Server(
                tmp_path / f"server{span[0]}", lambda config: server_job(swarm.invitation, config), span=span
            )
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            server.wait_for(Served, lambda seen: bool(seen.version) and len(seen.servers) == 2)
        model = AutoDistributedModelForCausalLM.from_pretrained(
            str(invitation), folder=tmp_path / "user", activations="float32"
        )
        stack.callback(model.network.close)
        old, version = whole(run, tmp_path, 1), model.loaded.version
        assert version.model == "tiny, global step 1"
        with model.session(64):
            text = written(model, TEXT, 4)
            swarm.volunteer("second", until_step=2)
            coordinator.wait_for_step(2)
            for server in servers:
                server.wait_for(Served, lambda seen: seen.version not in ("", version.manifest))
            assert all(each.older == version.manifest for each in servers[0].now.servers)
            text = written(model, text, 4)
            assert torch.equal(text, written(old, TEXT, 8))
        new = whole(run, tmp_path, 2)
        assert torch.equal(written(model, TEXT, 8), written(new, TEXT, 8))
        with torch.no_grad():
            assert torch.allclose(model(TEXT).logits, new(TEXT).logits, atol=1e-5)
            assert not torch.allclose(model(TEXT).logits, old(TEXT).logits, atol=1e-4)
        assert model.loaded.version.model == "tiny, global step 2"
        for server in servers:
            server.wait_for(Served, lambda seen: all(not each.older for each in seen.servers))
