"""The examples of the functions at the top of the package run as they stand, against real peers on this machine."""

import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import dedloc_kit
from dedloc_kit.client import fetch_state
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import local_copies
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.machine.home import remember_copies
from dedloc_kit.notebook.status import RunStatus
from dedloc_kit.organizer.launch import Coordinator
from tests.blocks import tiny
from tests.inference.chats import tokenizer
from tests.served import ServedModel
from tests.swarm.harness import wait_until
from tests.text_runs import text_run, write_text
from tests.tiny import tiny_run

CHECKOUT = Path(__file__).parents[1]
DEADLINE = 240.0
PAGE = "http://HOST:8000"


def example(name: str, **places: str) -> str:
    """What a function's documentation says how to call it, with other places in it."""
    told = inspect.getdoc(getattr(dedloc_kit, name)) or ""
    (block,) = re.findall(r"\n\n((?: {4}.+\n|\n)+)", told)[:1]
    code = textwrap.dedent(block).strip() + "\n"
    for place, here in places.items():
        assert place in code
        code = code.replace(place, here)
    return code


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    """A script of a person who has its answer to a question ready."""
    environment = {"PYTHONPATH": str(CHECKOUT), "DEDLOC_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process


def said(code: str, folder: Path, typed: str = "") -> str:
    process = started(code, folder)
    try:
        told, _ = process.communicate(typed, DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 0, told
    return told


@pytest.mark.parametrize("name", [name for name in dedloc_kit.__all__ if name != "__version__"])
def test_every_function_has_an_example(name: str) -> None:
    compile(example(name), name, "exec")
    assert example(name).startswith(f"from dedloc_kit import {name}\n")


def test_the_status_of_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    page.start()
    try:
        names = dict[str, object]()
        exec(example("status", **{PAGE: page.url}), names)
        now = names["now"]
    finally:
        page.stop()
    assert capsys.readouterr().out == "starting 0 None\n"
    assert isinstance(now, RunStatus)
    assert f"{tiny_run().run_id}: starting, step 0 of" in repr(now)
    assert "volunteer" in repr(now)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    tiny.model("Llama", vocab_size=257, eos_token_id=0, pad_token_id=0).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def swarm(tmp_path: Path, model: Path) -> Iterator[ServedModel]:
    (tmp_path / "served").mkdir()
    with ServedModel(tmp_path / "served", model, span=f"0:{tiny.LAYERS}") as served:
        yield served


@pytest.mark.soak
def test_a_model_is_talked_with(tmp_path: Path, model: Path) -> None:
    assert len(said(example("chat", **{"runs/RUN-ID": str(model)}), tmp_path, "hello\n").split()) > 1


@pytest.mark.soak
def test_a_served_model_writes(tmp_path: Path, swarm: ServedModel) -> None:
    assert "The river" in said(example("from_pretrained", **{PAGE: swarm.where}), tmp_path)


@pytest.mark.soak
def test_a_machine_serves(tmp_path: Path, swarm: ServedModel) -> None:
    process = started(example("serve", **{PAGE: swarm.where}), tmp_path)
    try:
        wait_until(
            lambda: any(each.name == "Asha" and each.state == "online" for each in swarm.servers[0].now.servers),
            "it does not serve",
            DEADLINE,
        )
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 0, told


@pytest.mark.soak
def test_a_volunteer_joins_and_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "home"))
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    run = run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"warmup_steps": 0, "total_steps": 1})})
    here = CoordinatorConfig(folder=tmp_path / "coordinator", swarm_host="127.0.0.1", devices="cpu", threads=1)
    with Coordinator(run, here, host="127.0.0.1", port=0, on_event=lambda _: None) as coordinator:
        remember_copies(run.run_id, coordinator.invitation().organizer, local_copies(run))
        told = said(example("join", **{PAGE: coordinator.dashboard.url}), tmp_path)
        assert fetch_state(coordinator.dashboard.url).step == 1, told
