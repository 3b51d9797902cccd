"""A model served by a few processes answers as the whole one does, whatever happens to a server meanwhile."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import pytest
import torch

from dedloc_kit import worker
from dedloc_kit.blocks.adapters.lora import LoraConfig
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.weights import load
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.events import Served as Seen
from dedloc_kit.inference import tuning
from dedloc_kit.machine.isolation import isolated
from dedloc_kit.swarm.serving.client import checking
from tests import fork_server
from tests.blocks import tiny
from tests.blocks.tuned import adapter_for, trained
from tests.blocks.tuned import local as whole_with
from tests.served import ServedModel, Server

TEXT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [11, 4, 8, 3, 11, 4, 8, 3]])
PADDED = torch.tensor([[0, 0, 0, 7, 5, 9, 7, 5], [11, 4, 8, 3, 11, 4, 8, 3]])
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 1.5, "top_k": 0},
    "beams": {"num_beams": 3},
    "prompt lookup": {"text": TEXT[:1], "prompt_lookup_num_tokens": 3},
    "padded": {"text": PADDED},
}
Hop = tuple[str, str, int, int]
"""Peer, name and layers."""


@dataclass
class Served:
    """
    :ivar recoveries: in the last answer
    """

    whole: Any
    swarm: ServedModel
    model: Any
    recoveries: int = 0

    def written(
        self, event: Callable[[list[Hop]], None] | None = None, text: torch.Tensor = TEXT, **how: Any
    ) -> torch.Tensor:
        """By the servers; the event happens before the fourth step, and is told who answers then."""
        with self.model.session(128) as past, ExitStack() as stack:
            calls = 0

            def before(*_: Any) -> None:
                nonlocal calls
                calls += 1
                if event is not None and calls == 4:
                    event(past.through.route())

            hook = self.model.get_input_embeddings().register_forward_pre_hook(before)
            stack.callback(hook.remove)
            out = written(self.model, text, **how)
            assert calls >= 4
            self.recoveries = past.through.recoveries
        return out

    def spare(self) -> None:
        """Let the last layer have two servers, and the others be served without either of them."""
        if len([server for server in self.swarm.servers if server.worker.running]) < 4:
            self.swarm.join(span="2:4")
        self.swarm.wait_until_known()


def written(model: Any, text: torch.Tensor = TEXT, **how: Any) -> torch.Tensor:
    torch.manual_seed(3)
    how = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 96, **how}
    out: torch.Tensor = model.generate(text, attention_mask=(text != 0).long(), **how)
    return out


@contextmanager
def serving(folder: Path, *others: dict[str, Any], **settings: Any) -> Iterator[Served]:
    """A tiny Llama; the first server has half of its layers.

    :param others: of each further server what it does not have in common with the first
    """
    whole = tiny.model("Llama")
    whole.save_pretrained(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_start", fork_server.worker_process)  # as conftest does it for one test
        patch.setenv("DEDLOC_HOME", str(folder / "home"))
        with ServedModel(folder, folder / "model", span="0:2", **settings) as swarm:
            for each in others:
                swarm.join(wait=False, **{**settings, **each})
            model = swarm.model()
            swarm.wait_until_known()
            yield Served(whole, swarm, model)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), *({"span": span} for span in ("2:4", "1:3", "3:4"))) as made:
        yield made


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_generate_writes_the_same(served: Served, way: str) -> None:
    local = written(served.whole, **WAYS[way])
    assert torch.equal(served.written(**WAYS[way]), local)
    assert local[:, 8:].unique().numel() > 3


@pytest.mark.soak
def test_gradients_go_through_the_servers(served: Served) -> None:
    gradients = []
    for each in (served.whole, served.model):
        given = each.get_input_embeddings()(PADDED).detach().requires_grad_()
        each(inputs_embeds=given, attention_mask=(PADDED != 0).long(), labels=TEXT, use_cache=False).loss.backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    assert gradients[0].abs().sum() > 0


@pytest.mark.soak
def test_gradients_of_soft_prompts_and_lora_are_those_of_the_whole_model(served: Served) -> None:
    adapter = adapter_for(served.whole)
    soft = torch.nn.Parameter(torch.randn(1, 2, 32))
    found = []
    here = whole_with(served.whole, adapter)
    with served.model.adapted(adapter):
        for model in (here, served.model):
            loss = trained(model, adapter, soft)
            found.append([loss, *(parameter.grad for parameter in (soft, *adapter.parameters()))])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-6 * one.norm()
        assert one.norm() > 0


@pytest.mark.soak
def test_what_is_written_with_an_adapter_is_what_the_whole_model_writes_with_it(served: Served) -> None:
    adapter = adapter_for(served.whole)
    adapted, plain = (written(model) for model in (whole_with(served.whole, adapter), served.whole))
    with served.model.adapted(adapter):
        assert torch.equal(written(served.model), adapted)
    assert torch.equal(written(served.model), plain)
    assert not torch.equal(adapted, plain)


@pytest.mark.soak
def test_an_adapter_is_made_saved_and_loaded_for_a_served_model(served: Served, tmp_path: Path) -> None:
    adapter = tuning.new_adapter(served.model, LoraConfig(rank=2, target_modules=("v_proj",)), seed=3)
    tuning.save_adapter(served.model, adapter, tmp_path)
    loaded = tuning.load_adapter(served.model, tmp_path)
    assert loaded.adapter().digest == adapter.adapter().digest
    assert loaded.scaling == 8.0


@pytest.mark.soak
def test_an_adapter_that_is_not_finite_is_refused_before_it_travels(served: Served) -> None:
    adapter = adapter_for(served.whole)
    next(adapter.parameters()).data[0, 0] = float("nan")
    with served.model.adapted(adapter), pytest.raises(UserError, match="not finite"):
        served.model(TEXT)


@pytest.mark.soak
def test_with_half_the_bits_or_fewer_the_loss_after_50_steps_is_nearly_that_of_the_whole_model(served: Served) -> None:
    models = {form: served.swarm.model(activations=form) for form in ("float16", "8bit")}
    assert torch.equal(*(written(model) for model in models.values())), "8 bits are for training alone"

    def loss_after(form: str) -> float:
        adapter = adapter_for(served.whole)
        torch.manual_seed(1)
        soft = torch.nn.Parameter(torch.randn(1, 2, 32))
        optimizer = torch.optim.Adam([soft, *adapter.parameters()], lr=1e-2)
        model = models[form] if form in models else whole_with(served.whole, adapter)
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


@pytest.mark.soak
@pytest.mark.parametrize(("means", "way"), [(Server.frozen, "sampling"), (Server.cut, "beams")])
def test_a_server_that_falls_silent_in_mid_answer_changes_nothing(
    served: Served, means: Callable[[Server], AbstractContextManager[None]], way: str
) -> None:
    served.spare()
    with ExitStack() as stack:

        def silence(route: list[Hop]) -> None:
            stack.enter_context(means(served.swarm.by_peer(route[-1][0])))

        assert torch.equal(served.written(silence, **WAYS[way]), written(served.whole, **WAYS[way]))
    assert served.recoveries


@pytest.mark.soak
def test_a_server_that_is_killed_in_mid_answer_changes_nothing(served: Served) -> None:
    served.spare()

    def kill(route: list[Hop]) -> None:
        served.swarm.by_peer(route[-1][0]).kill()

    local = written(served.whole, max_new_tokens=20)
    assert torch.equal(served.written(kill, max_new_tokens=20), local)
    assert served.recoveries


@pytest.mark.real
def test_int8_servers_behind_firewalls_equal_a_local_int8_model(tmp_path: Path) -> None:
    """Also the user makes outgoing connections only: the first server connects it with the second."""
    behind = {"span": "2:4", "client_mode": True}
    with serving(tmp_path, behind, weights="int8") as served:
        local = served.whole
        tensors = {name: values for name, values in local.state_dict().items() if ".layers." in name}
        whole = Span(local.config, 0, tiny.LAYERS)
        wanted = whole.wanted(tensors)
        load(whole, whole.merged(wanted, ((name, tensors[name]) for name in wanted)), "int8")
        local.model.layers = whole.base.layers
        routes = list[list[Hop]]()
        assert torch.equal(served.written(routes.append), written(local))
        assert [hop[2:] for hop in routes[0]] == [(0, 2), (2, 4)]
        assert sorted(each.client_mode for each in served.swarm.servers[-1].now.servers) == [False, True]


@pytest.mark.soak
def test_a_server_that_answers_wrongly_is_found_and_told_of(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "FIRST", 1_000)  # its first ones may come before others are known who can check them
    swarm = served.swarm
    served.spare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            *(worker, "_start"),
            lambda role, environment, log, handles: fork_server.Forked(
                ["tests.lying_worker", role], isolated(environment), log, handles
            ),
        )
        liar = swarm.join(span="2:4")
    swarm.wait_until_served(tiny.LAYERS, by=1)
    told: list[str] = []
    model = swarm.model(told=told.append)
    deadline = time.monotonic() + 120
    while not any("answered wrongly for the layers 2:4" in text for text in told):
        assert time.monotonic() < deadline, told
        written(model, max_new_tokens=2)
    assert torch.equal(written(model), written(served.whole))
    liar.kill()


@pytest.mark.soak
def test_of_a_hundred_answers_under_kills_a_hundred_are_those_of_the_whole_model(tmp_path: Path) -> None:
    """Of three users at once; a server that writes for one of them is killed, as soon as the last one is replaced."""
    answers, every, short = 100, 25, {"max_new_tokens": 8}
    with serving(tmp_path, *({"span": span} for span in ("2:4", "0:2", "2:4"))) as served:
        swarm, replacing = served.swarm, Lock()
        users = SimpleQueue[Served]()
        for model in (served.model, swarm.model(), swarm.model()):
            users.put(Served(served.whole, swarm, model))

        def answered(number: int, event: Callable[[list[Hop]], None] | None = None) -> tuple[bool, int]:
            random = torch.Generator().manual_seed(seed_of("answers under kills", number))
            text = torch.randint(1, 96, (1, 8), generator=random)
            user = users.get()
            try:
                equal = torch.equal(user.written(event, text, **short), written(served.whole, text, **short))
            finally:
                users.put(user)
            return equal, user.recoveries

        def answered_under_a_kill(number: int) -> tuple[bool, int]:
            killed = list[Hop]()

            def kill(route: list[Hop]) -> None:
                killed.append(route[seed_of("server", number) % len(route)])
                swarm.by_peer(killed[0][0]).kill()

            with replacing:
                swarm.wait_until_known()
                found = answered(number, kill)
                swarm.join(wait=False, span=f"{killed[0][2]}:{killed[0][3]}")
            return found

        with ThreadPoolExecutor(4) as pool:  # so that three answers go on while a server is replaced
            asked = [
                pool.submit(answered_under_a_kill if number % every == every - 1 else answered, number)
                for number in range(answers)
            ]
            found = [each.result() for each in asked]
        assert [equal for equal, _ in found] == [True] * answers
        kills = found[every - 1 :: every]
        assert len(kills) == 4
        assert all(recoveries for _, recoveries in kills)


@pytest.mark.soak
def test_a_server_moves_to_the_layers_that_nobody_serves_any_more(tmp_path: Path) -> None:
    """Be it that whoever began the swarm is gone."""
    with serving(tmp_path, {"span": "2:4"}) as served:
        mover = served.swarm.join(span=None, blocks=2, source=str(tmp_path / "model"))
        served.swarm.join(span="0:2" if layers_of(mover.now) == (0, 2) else "2:4")
        served.swarm.wait_until_known()
        before = layers_of(mover.now)
        for server in served.swarm.servers:
            if layers_of(server.now) != before:
                server.kill()
        mover.wait_for(Seen, lambda now: layers_of(now) not in (None, before), 240.0)
        deadline, answer = time.monotonic() + 120, None
        while answer is None:
            try:
                answer = written(served.model)
            except NoRoute:  # until the user hears of it
                assert time.monotonic() < deadline
        assert torch.equal(answer, written(served.whole))


def layers_of(now: Seen) -> tuple[int, int] | None:
    """Those that a server serves."""
    mine = now.mine
    return (mine.begin, mine.end) if mine is not None and mine.state == "online" else None
