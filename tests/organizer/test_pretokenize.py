import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.task import create_task
from dedloc_kit.organizer.pretokenize import prepare_shards, push_shards, sources_toml
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.loading import parse_run

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]
MODEL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def fail(text: str) -> None:
    raise AssertionError(text)


def configure(folder: Path, train: list[dict[str, Any]]) -> RunConfig:
    task = {"name": "albert", "tokenizer": str(folder / "tokenizer"), "sequence_length": 32, "model": MODEL}
    return parse_run({"name": "tiny", "global_batch": 8, "task": task, "data": {"train": train, "shuffle_buffer": 8}})


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    generator = np.random.default_rng(0)
    texts = [". ".join(" ".join(generator.choice(WORDS, size=6)) for _ in range(8)) + "." for _ in range(60)]
    for name, part in (("one", texts[:40]), ("two", texts[40:])):
        parquet.write_table(pyarrow.table({"text": part}), tmp_path / f"{name}.parquet")
    train_tokenizer(iter(texts), 100, tmp_path / "tokenizer")
    sources: list[dict[str, Any]] = [
        {"dataset": str(tmp_path / "one.parquet")},
        {"dataset": str(tmp_path / "two.parquet"), "weight": 0.5},
    ]
    return configure(tmp_path, sources)


def test_a_run_on_its_token_ids_has_the_batches_that_it_has_on_its_text(run: RunConfig, tmp_path: Path) -> None:
    assert prepare_shards(run, tmp_path / "tokens") > 60 * 40
    train = tomllib.loads(sources_toml(run, str(tmp_path / "tokens"), None))["data"]["train"]
    on_text = create_task(run).batches(4, 7, fail)
    on_tokens = create_task(configure(tmp_path, train)).batches(4, 7, fail)
    for _ in range(20):
        one, other = next(on_text), next(on_tokens)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_sources_are_known_again_by_their_names(run: RunConfig, tmp_path: Path) -> None:
    named = [("a/web", "bn"), ("b/web", "bn"), ("b/wiki", "2023 ০"), ("b/wiki", None)]
    sources = configure(tmp_path, [{"dataset": dataset, "subset": subset} for dataset, subset in named])
    train = tomllib.loads(sources_toml(sources, "me/words", None))["data"]["train"]
    assert [source["subset"] for source in train] == ["web-bn-0", "web-bn-1", "wiki-2023-", "wiki"]


def test_a_shard_that_cannot_be_read_leaves_no_token_ids(run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "two.parquet").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"two\.parquet cannot be read"):
        prepare_shards(run, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_token_ids_are_no_text(run: RunConfig, tmp_path: Path) -> None:
    prepare_shards(run, tmp_path / "tokens")
    tokenized = configure(tmp_path, tomllib.loads(sources_toml(run, str(tmp_path / "tokens"), None))["data"]["train"])
    with pytest.raises(UserError, match="holds token ids"):
        prepare_shards(tokenized, tmp_path / "again")


class FakeHub:
    """The calls of HfApi that pushing makes."""

    fails = False
    uploaded: tuple[str, ...] = ()

    def create_repo(self, repository: str, **options: Any) -> None:
        assert options == {"repo_type": "dataset", "private": None, "exist_ok": True}

    def upload_folder(self, repo_id: str, folder_path: Path, **_: Any) -> Any:
        if self.fails:
            raise ConnectionError("the line is cut")
        FakeHub.uploaded = tuple(sorted(str(p.relative_to(folder_path)) for p in folder_path.rglob("*") if p.is_file()))
        return type("Commit", (), {"oid": "abc123"})


def test_token_ids_become_a_dataset_that_the_run_names_by_its_commit(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret")
    prepare_shards(run, tmp_path / "tokens")
    revision = push_shards(tmp_path / "tokens", "me/words")
    assert FakeHub.uploaded == ("README.md", "one.parquet/train-00000.parquet", "two.parquet/train-00000.parquet")
    train = tomllib.loads(sources_toml(run, "me/words", revision))["data"]["train"]
    assert train[1] == {
        "dataset": "me/words",
        "subset": "two.parquet",
        "tokenized": True,
        "revision": "abc123",
        "weight": 0.5,
    }
    FakeHub.fails = True
    with pytest.raises(UserError, match=r"not on the Hub.*line is cut.*only uploads"):
        push_shards(tmp_path / "tokens", "me/words")
    assert (tmp_path / "tokens").exists()
