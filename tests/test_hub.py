"""The Hub as a run uses it: what cannot work is told at once, what may work later is no reason to stop."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, Repository, closed, described, training_state
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE
from dedloc_kit.records.state import STATE_FILE
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.tiny import tiny_run

RUN = tiny_run()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


def push(name: str, folder: Path, **files: bytes) -> str:
    folder.mkdir(exist_ok=True)
    for file, content in files.items():
        (folder / file.replace("__", ".")).write_bytes(content)
    return Repository(name).push(folder, "a message")


def test_a_claimed_repository_holds_the_configuration_and_can_be_claimed_again(hub: LoopbackHub) -> None:
    Repository("us/model").claim(RUN)
    assert json.loads(hub.files("us/model")["run.json"])["run_id"] == RUN.run_id
    Repository("us/model").claim(RUN)
    assert len(hub.commits["us/model"]) == 2, "nothing has changed, so there is no second commit"
    assert hub.private == set()


def test_a_repository_is_private_if_that_is_wanted_and_a_public_one_is_refused(hub: LoopbackHub) -> None:
    Repository("us/secret", private=True).claim(RUN)
    assert hub.private == {"us/secret"}
    Repository("us/open").claim(RUN)
    with pytest.raises(UserError, match=r"us/open is public.*--private"):
        Repository("us/open", private=True).claim(RUN)


def test_a_run_may_go_to_where_its_tokenizer_is_already(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.commits["us/words"] = [{".gitattributes": b"", "tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}]
    Repository("us/words").claim(RUN)
    assert "run.json" in hub.commits["us/words"][-1]


def test_a_repository_of_another_run_or_of_something_else_is_left_alone(hub: LoopbackHub, tmp_path: Path) -> None:
    other = tiny_run("other")
    Repository("us/model").claim(other)
    with pytest.raises(UserError, match=rf"belongs to the run {other.run_id}; choose another"):
        Repository("us/model").claim(RUN)
    hub.commits["us/dear"] = [{".gitattributes": b"", "model.safetensors": b"years of work"}]
    with pytest.raises(UserError, match="holds files of something else"):
        Repository("us/dear").claim(RUN)
    assert len(hub.commits["us/dear"]) == 1
    hub.commits["us/odd"] = [{"run.json": b'{"run_id": "\\u001b[31m"}'}]
    with pytest.raises(UserError, match="the run of an unreadable name"):
        Repository("us/odd").claim(RUN)


def test_without_a_token_or_the_right_to_write_the_fix_is_named(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository("us/model").claim(RUN)
    hub.read_only = True
    for name in ("us/model", "us/new"):
        with pytest.raises(UserError, match=r"does not let you write to us/.*hf auth login.*settings/tokens") as caught:
            Repository(name).claim(RUN)
        assert "\n" not in str(caught.value)
        assert "of-a-test" not in str(caught.value), "the token is a secret"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match=r"nobody is logged in.*hf auth login.*HF_TOKEN"):
        Repository("us/model").claim(RUN)
    with pytest.raises(UserError, match="no name of a repository"):
        Repository("us/a--b").push(Path("."), "message")


def test_a_hub_that_fails_or_is_silent_may_be_asked_again(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.failing.set()
    with pytest.raises(HubUnavailable, match="503"):
        Repository("us/model").claim(RUN)
    hub.failing.clear()
    hub.silent.set()
    monkeypatch.setattr("dedloc_kit.fetching.SILENCE_SECONDS", 0.2)
    with pytest.raises(HubUnavailable, match=r"(?i)time"):
        Repository("us/model").claim(RUN)
    hub.silent.clear()
    Repository("us/model").claim(RUN)


def test_a_push_is_one_commit_and_keeps_what_the_organizer_wrote_at_the_head_of_the_card(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    Repository("us/model").claim(RUN)
    assert Repository("us/model").metadata() == {}
    url = push("us/model", tmp_path / "push", README__md=b"---\nlicense: mit\n---\n# card\n", model=b"abc")
    assert len(hub.commits["us/model"]) == 3
    assert url.endswith(hub.revision("us/model"))
    assert hub.files("us/model").keys() == {".gitattributes", "run.json", "README.md", "model"}
    assert Repository("us/model").metadata() == {"license": "mit"}
    push("us/model", tmp_path / "push", README__md=b"---\n{: no yaml\n---\n")
    assert Repository("us/model").metadata() == {}


def test_a_training_state_comes_from_this_machine_or_from_any_revision(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    assert training_state(str(tmp_path / "run")) == tmp_path / "run"
    both = {STATE_FILE: b"new", CONTRIBUTORS_FILE: b"[]"}
    tables = {
        "ledger/steps.parquet": b"1",
        "ledger/parts.parquet": b"2",
        "ledger/../evil.parquet": b"",
        "ledger/x": b"",
    }
    hub.commits["us/model"] = [{STATE_FILE: b"old"}, {**both, **tables}, {"README.md": b""}]
    assert training_state(f"us/model@{hub.revision('us/model', 0)}").read_bytes() == b"old"
    new = training_state(f"us/model@{hub.revision('us/model', 1)}")
    assert {path.name: path.read_bytes() for path in new.parent.iterdir() if path.is_file()} == both
    assert {path.name for path in (new.parent / "ledger").iterdir()} == {"steps.parquet", "parts.parquet"}
    with pytest.raises(UserError, match="holds no training_state"):
        training_state("us/model")
    with pytest.raises(UserError, match="no revision abc"):
        training_state("us/model@abc")
    with pytest.raises(UserError, match="there is no us/none on the Hub that you may read"):
        training_state("us/none")
    with monkeypatch.context() as patch:
        patch.setattr("dedloc_kit.hub.MAX_LEDGER_BYTES", 0)
        with pytest.raises(UserError, match="is too large for a table of a ledger"):
            training_state(f"us/model@{hub.revision('us/model', 1)}")
    with pytest.raises(UserError, match=r"/no/where does not exist.*OWNER/NAME\[@REVISION\]"):
        training_state("/no/where")


def test_of_what_lies_on_the_organizers_machine_only_the_name_is_told() -> None:
    source = {"dataset": "/home/asha/private/corpus"}
    task = {
        "name": "tiny",
        "tokenizer": "/home/asha/tokenizer",
        "pictures": {"model": "/home/asha/pictures", "side": 8},
    }
    run = tiny_run(data={"train": [source, {"dataset": "owner/name"}], "evaluation": source}, task=task)
    told = described(run)
    assert "asha" not in told
    values = json.loads(told)
    assert values["run_id"] == run.run_id
    assert [part["dataset"] for part in values["run"]["data"]["train"]] == ["corpus", "owner/name"]
    assert values["run"]["data"]["evaluation"]["dataset"] == "corpus"
    assert values["run"]["task"]["tokenizer"] == "tokenizer"
    assert values["run"]["task"]["pictures"] == {"model": "pictures", "side": 8}


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_what_a_token_alone_opens_is_known(hub: LoopbackHub, kind: Literal["model", "dataset"]) -> None:
    for name in ("open", "private", "gated", "empty"):
        where = f"us/{name}" if kind == "model" else f"datasets/us/{name}"
        hub.commits[where] = [{"README.md": b"", **({} if name == "empty" else {"data.txt": b"A text."})}]
        if name in ("private", "gated"):
            getattr(hub, name).add(where)
    assert [closed(f"us/{name}", None, kind) for name in ("open", "private", "gated", "empty")] == [
        "",
        "private",
        "gated",
        "",
    ]
    hub.failing.set()
    with pytest.raises(HubUnavailable):
        closed("us/open", None, kind)
