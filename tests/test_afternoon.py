"""An organizer's afternoon, from the idea to the published model: the documented commands, with a Hub on loopback."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from transformers import LlamaConfig, LlamaForCausalLM

from dedloc_kit.access.admission import invite
from dedloc_kit.client import fetch_state
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.ledger import Ledger
from dedloc_kit.resources import small_text
from dedloc_kit.session.snapshot import Phase
from dedloc_kit.session.training_session import TrainingSession
from tests import commands
from tests.documents import DOCS, documented
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.session.sessions import wait_for
from tests.swarm.harness import wait_until
from tests.text_runs import write_text

ORGANIZE, OPERATE, JOIN = (DOCS / name for name in ("organize.md", "operate.md", "join.md"))
HERE = {
    "sahajbert": "albert-demo",  # which learns something on two cores
    "OWNER/": "us/",
    "PUBLIC-ADDRESS": "127.0.0.1",
    "RUN.toml": "our-model/run.toml",
}
"""What stands in the pages, and what this machine has in its place."""
ONLY_HERE = ("--swarm-host", "127.0.0.1", "--threads", "1")


def dedloc(*arguments: str | Path) -> str:
    """Run one command to its end; returns what it says."""
    done = commands.dedloc(*arguments, folder=Path.cwd())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def launched(run: Path, folder: Path) -> Iterator[None]:
    """`dedloc launch` until the invitation is there; a SIGTERM ends it at last."""
    commands.coordinator_file(run.parent, hub="us/model", push_every=1, evaluate_every=1)
    places = ("--folder", folder, "--swarm-host", "127.0.0.1", "--host", "127.0.0.1", "--port", "0")
    with commands.running("launch", run, *places, "--threads", "1", folder=Path.cwd()) as command:
        wait_until(
            lambda: (folder / "invitation.json").exists() or command.process.poll() is not None, "it is not up", 120.0
        )
        yield


@contextmanager
def volunteer(folder: Path, name: str, code: str = "") -> Iterator[TrainingSession]:
    """As `join("us/model")` makes it."""
    settings: dict[str, Any] = {
        "name": name,
        "swarm_host": "127.0.0.1",
        "devices": "cpu",
        "threads": 1,
        "microbatch": 8,
    }
    session = TrainingSession("us/model", folder=folder / name, settings=settings, code=code)
    try:
        yield session
    finally:
        session.leave()
        assert session.ended.wait(90.0)


def prepared(hub: LoopbackHub, recipe: list[str], changes: dict[str, str]) -> Path:
    """The run's configuration, made from a recipe, data and a tokenizer that are on the Hub.

    The data is the text that the kit brings.

    :param changes: lines of the recipe by how they begin, and what stands there instead
    """
    hub.commits["datasets/us/corpus"] = [files_of(small_text())]
    data = ["--dataset", "us/corpus=1", "--evaluation", "us/corpus"]
    dedloc("init", "our-model", "--recipe", *recipe, *data, "--language", "en", "--about", "Ours, for us.")
    run = Path("our-model") / "run.toml"
    change(run, changes)
    said = dedloc("prepare", "tokenizer", run, "--push", "us/tokenizer")
    pinned = re.search(r'tokenizer = "us/tokenizer@\w+"', said)
    assert pinned is not None, said
    change(run, {"tokenizer = ": pinned[0]})
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change(run: Path, changes: dict[str, str]) -> None:
    lines = run.read_text(encoding="utf-8").splitlines()
    for beginning, instead in changes.items():
        (at,) = [number for number, line in enumerate(lines) if line.startswith(beginning)]
        lines[at] = instead
    run.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(autouse=True)
def afternoon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("COLUMNS", "500")


def dataset(subset: str) -> dict[str, bytes]:
    """A dataset of the Hub with the text that the kit brings, as its subset of this name."""
    files = {f"{subset}/{name}": content for name, content in files_of(small_text()).items() if name.endswith(".txt")}
    splits = "".join(f"  - split: {name}\n    path: {subset}/{name}.txt\n" for name in ("train", "test"))
    card = f"---\nconfigs:\n- config_name: {subset}\n  data_files:\n{splits}---\n"
    return {**files, "README.md": card.encode()}


def put_in(run: Path, said: str) -> None:
    """Change the run's file as `dedloc prepare tokens` says that it is to be changed."""
    (tokenizer,) = re.findall(r"^tokenizer = .*$", said, re.MULTILINE)
    change(run, {"tokenizer = ": tokenizer})
    sources = said[said.index("[[data.train]]\n") :]
    before, *_, after = re.split(r"^\[\[data\.train\]\]\n", run.read_text(encoding="utf-8"), flags=re.MULTILINE)
    after = after[re.search(r"^(# .*\n)*\[", after, re.MULTILINE).start() :]  # type: ignore[union-attr]
    run.write_text(f"{before}{sources}\n{after}", encoding="utf-8")


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_pages_alone_lead_from_an_idea_to_a_volunteers_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub, ExitStack() as running:
        hub.commits["datasets/HuggingFaceFW/fineweb-2"] = [dataset("ben_Beng")]
        hub.commits["datasets/wikimedia/wikipedia"] = [dataset("20231101.bn")]
        dedloc(*documented(ORGANIZE, "init our-model --recipe", HERE))
        run = Path("our-model") / "run.toml"
        change(run, {"global_batch = ": "global_batch = 32"})  # one volunteer is to fill it
        put_in(run, dedloc(*documented(ORGANIZE, "prepare tokens", HERE)))
        assert "datasets/us/our-model-tokens" in hub.commits
        assert "to finish" in dedloc(*documented(ORGANIZE, "check our-model/run.toml --volunteers", HERE))

        launch = documented(ORGANIZE, "launch our-model/run.toml", HERE)
        places = (*ONLY_HERE, "--swarm-port", "0", "--host", "127.0.0.1", "--port", "0")
        led = running.enter_context(commands.running(*launch, *places, folder=Path.cwd()))
        led.wait_for("to join:")
        (invitation,) = re.findall(r"to join:\s+dedloc join (\S+)", led.said())
        url = invitation.partition("#")[0]
        assert "us/our-model" in hub.commits
        dedloc(*documented(ORGANIZE, "notebook", {"http://PUBLIC-ADDRESS:8000": url, **HERE}))
        assert url in (run.parent / "notebooks" / "join.ipynb").read_text(encoding="utf-8")

        for page in (JOIN, ORGANIZE):
            assert documented(page, "join", {}) == ["join", "INVITATION", "--name", "Your name"]
        join = documented(JOIN, "join", {"INVITATION": invitation})
        joined = running.enter_context(commands.running(*join, *ONLY_HERE, "--devices", "cpu", folder=Path.cwd()))
        wait_until(lambda: fetch_state(url).step >= 1 or joined.process.poll() is not None, "nobody trains", 300.0)
        assert "Your name" in dedloc(*documented(JOIN, "status", {"INVITATION": invitation}))
        (folder,) = Path("runs").iterdir()
        dedloc(*documented(OPERATE, "run finish", {"RUN": str(folder)}))
        joined.ended(120.0)


@pytest.mark.real
@pytest.mark.timeout(900)
def test_from_an_idea_to_a_model_that_others_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub, ExitStack() as volunteers:
        changes = {"global_batch = ": "global_batch = 64", "access = ": 'access = "invite"'}
        run, folder = prepared(hub, ["albert-demo"], changes), tmp_path / "run"
        assert "to finish" in dedloc("check", run, "--volunteers", "2xCPU,20xT4@50mbit", "--threads", "1")
        with launched(run, folder):
            wait_until(lambda: "invitation.json" in hub.files("us/model"), "the invitation is not on the Hub", 60.0)
            here = {
                name: volunteers.enter_context(volunteer(tmp_path, name, invite(folder, name, days=1)))
                for name in ("alice", "bob")
            }
            stranger = volunteers.enter_context(volunteer(tmp_path, "mallory"))
            refused = wait_for(stranger, lambda now: now.phase.over)
            assert "ask the organizer for your personal code" in refused.text
            for session in here.values():
                wait_for(session, lambda now: now.session_samples > 0)
            dedloc("run", "pause", folder)
            for session in here.values():
                wait_for(session, lambda now: "the organizer has paused the run" in now.text)
            dedloc("run", "resume", folder)
            dedloc("run", "announce", folder, "Well done so far!")
            wait_for(here["alice"], lambda now: now.phase is Phase.WORKING and now.announcement == "Well done so far!")
            dedloc("run", "kick", folder, "bob")
            gone = wait_for(here["bob"], lambda now: now.phase.over)
            assert "the organizer has sent this machine away" in gone.text
            given = here["alice"].state().session_samples
            wait_for(here["alice"], lambda now: now.session_samples > given)
            dedloc("run", "finish", folder)
            thanked = wait_for(here["alice"], lambda now: now.phase.over)
            assert thanked.phase is Phase.FINISHED
        published = hub.files("us/model")
        assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "training_state.safetensors"} <= set(
            published
        )
        assert any(name.startswith("ledger/") for name in published)
        assert "alice" in published["README.md"].decode()
        given_to_the_hub = {each["name"]: each["samples"] for each in json.loads(published["contributors.json"])}
        assert given_to_the_hub["alice"] == thanked.session_samples
        load = "from transformers import AutoModel; print(AutoModel.from_pretrained('us/model').config.hidden_size)"
        loaded = subprocess.run(
            [sys.executable, "-c", load], capture_output=True, text=True, check=False, env=os.environ
        )
        assert loaded.stdout.strip() == "128", loaded.stderr


def published_model(texts: list[str], folder: Path) -> None:
    """A small decoder with a vocabulary of its own, as others have published it."""
    train_tokenizer(iter(texts), 265, folder, "bpe", CAUSAL)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = LlamaConfig(**small, vocab_size=len(load_tokenizer(str(folder.absolute()))), max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_volunteers_go_on_from_a_model_that_exists_with_words_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_model(write_text(tmp_path), Path("base"))
    changes = {
        "global_batch = ": "global_batch = 32",
        'name = "encoder"': 'name = "causal"\nevaluation_samples = 16',
        "vocab_size = ": "vocab_size = 290",
        "sequence_length = ": "sequence_length = 32",
        "learning_rate = ": "learning_rate = 1e-6",
        "local_batch = ": "local_batch = 8",
    }
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub, ExitStack() as volunteers:
        hub.commits["us/base"] = [files_of(Path("base"))]
        start = f"us/base@{hub.revision('us/base')}"
        run, folder = prepared(hub, ["continue", "--init-from", start], changes), tmp_path / "run"
        with launched(run, folder):
            ledger = Ledger(folder / "ledger.sqlite", read_only=True)
            wait_until(lambda: ledger.start() is not None, "the start is not measured", 120.0)
            # From here on nobody gets its weights but from the swarm.
            del hub.files("us/base")["model.safetensors"]
            for path in (tmp_path / "cache" / "models--us--base").rglob("model.safetensors"):
                path.resolve().unlink()
                path.unlink()
            wait_until(lambda: "invitation.json" in hub.files("us/model"), "the invitation is not on the Hub", 60.0)
            here = [volunteers.enter_context(volunteer(tmp_path, name)) for name in ("alice", "bob")]
            for session in here:
                wait_for(session, lambda now: now.session_samples > 0)
            dedloc("run", "finish", folder)
            for session in here:
                assert wait_for(session, lambda now: now.phase.over).phase == "finished"
        measured, evaluated = ledger.start(), ledger.first_and_last_evaluation()
        ledger.close()
        assert measured is not None
        assert evaluated is not None
        assert measured.model == "us/base"
        assert measured.loss > evaluated[0].loss, "it has not learned either, and has more tokens to tell for a text"
        published = hub.files("us/model")
        assert "ledger/start.parquet" in published
        ours, theirs = (load(files["model.safetensors"]) for files in (published, files_of(Path("base"))))
        rows = [len(each["model.embed_tokens.weight"]) for each in (ours, theirs)]
        assert rows == [290, 265]
        for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
            assert not torch.equal(ours[name], theirs[name])
            assert float((ours[name] - theirs[name]).abs().max()) < 0.01 * float(theirs[name].abs().max())
