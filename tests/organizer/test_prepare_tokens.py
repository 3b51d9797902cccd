import gzip
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from dedloc_kit.cli.main import main
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source, TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.token_shards import read_token_shard
from dedloc_kit.learning.data.text.tokens import MAX_TOKENS, Document
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.text.common import TextTask
from dedloc_kit.organizer.prepare_source import Progress, Sizes, Tokenizer, prepare_source, workplace
from dedloc_kit.organizer.prepare_tokens import prepare_tokens, push_tokens, sources_toml
from tests.batches import batches_from

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]
MODEL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def fail(text: str) -> None:
    raise AssertionError(text)


def configure(folder: Path, train: list[dict[str, Any]]) -> RunConfig:
    task = {"name": "albert", "tokenizer": str(folder / "tokenizer"), "sequence_length": 32, "model": MODEL}
    return parse_run({"name": "tiny", "global_batch": 8, "task": task, "data": {"train": train}})


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


def read(folder: Path, run: RunConfig) -> list[Document]:
    task = create_task(run)
    assert isinstance(task, TextTask)
    shards = find_shards(Source(dataset=str(folder)), fail)
    return [
        document
        for shard in shards
        for document in read_token_shard(shard, task.vocabulary_hash, len(task.tokenizer), fail)
    ]


def written(texts: list[str], path: Path) -> Source:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Source(dataset=str(path))


def known(documents: list[Document]) -> list[list[int]]:
    return [document.ids.tolist() for document in documents]


def test_the_shards_hold_the_documents_of_the_text_in_another_order(run: RunConfig, tmp_path: Path) -> None:
    made = prepare_tokens(run, tmp_path / "tokens")
    task = create_task(run)
    assert isinstance(task, TextTask)
    for source, name in zip(run.data.train, made, strict=True):
        of_text = known(list(task.texts.documents(in_order(source, texts, warn=fail))))
        of_shards = known(read(tmp_path / "tokens" / name, run))
        assert sorted(of_shards) == sorted(of_text)
        assert of_shards != of_text
        assert (made[name].documents, made[name].tokens) == (len(of_text), sum(map(len, of_text)))
    train = tomllib.loads(sources_toml(run, str(tmp_path / "tokens"), None))["data"]["train"]
    batch = next(batches_from(create_task(configure(tmp_path, train)), 4, 7, fail))
    assert all(isinstance(values, torch.Tensor) for values in batch.values())


def test_the_data_of_the_decay_is_prepared_too_and_each_source_once(run: RunConfig, tmp_path: Path) -> None:
    one, two = run.data.train
    data = run.data.model_copy(update={"train": (one,), "cooldown": (two, one.model_copy(update={"weight": 3.0}))})
    both = run.model_copy(update={"data": data})
    assert list(prepare_tokens(both, tmp_path / "tokens")) == ["one.parquet", "two.parquet"]
    sections = tomllib.loads(sources_toml(both, "tokens", None))["data"]
    assert [each["subset"] for each in sections["train"]] == ["one.parquet"]
    assert [(each["subset"], each["weight"]) for each in sections["cooldown"]] == [
        ("two.parquet", 0.5),
        ("one.parquet", 3.0),
    ]


def test_the_sources_are_known_again_by_their_names(run: RunConfig, tmp_path: Path) -> None:
    named = [("a/web", "bn"), ("b/web", "bn"), ("b/wiki", "2023 ০"), ("b/wiki", None)]
    sources = configure(tmp_path, [{"dataset": dataset, "subset": subset} for dataset, subset in named])
    train = tomllib.loads(sources_toml(sources, "me/words", None))["data"]["train"]
    assert [source["subset"] for source in train] == ["web-bn-0", "web-bn-1", "wiki-2023-", "wiki"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".txt", ".jsonl.gz"])
def test_a_bad_row_costs_itself_and_a_lost_file_is_counted_and_shown(
    run: RunConfig, tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = [f"{word} and {other}." for word in WORDS[:5] for other in WORDS[5:]]
    bad = {".txt": b"\xff\n\n", ".json": b'{"text": 5},'}.get(
        suffix, b'{"text": 5}\n' if "json" in suffix else b"\xff\n"
    )
    match suffix:
        case ".json":
            content = b"[" + bad + ",".join(json.dumps({"text": text}) for text in good).encode() + b"]"
        case ".txt":
            content = bad + "\n\n".join(good).encode()
        case ".csv" | ".tsv":
            content = b"text\n" + bad + "\n".join(good).encode()
        case _:
            content = bad + "".join(json.dumps({"text": text}) + "\n" for text in good).encode()
    (folder / f"good{suffix}").write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    (folder / "lost.parquet").write_bytes(b"broken")
    (made,) = prepare_tokens(configure(tmp_path, [{"dataset": str(folder)}]), tmp_path / "tokens").values()
    assert (made.documents, made.bad_rows, list(made.lost)) == (len(good), 1, [str(folder / "lost.parquet")])
    said = capfd.readouterr().err
    assert f"mixed: {len(good)} documents, {made.tokens:,} tokens; 1 bad row left out" in said
    assert "mixed: 1 file could not be read, or not to the end:" in said
    assert sorted(known(read(tmp_path / "tokens" / "mixed", run))) == sorted(
        known(list(cast(TextTask, create_task(run)).texts.documents(good)))
    )


def test_a_source_of_which_nothing_can_be_read_leaves_no_token_ids(run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "two.parquet").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"no file of the dataset .*two\.parquet can be read"):
        prepare_tokens(run, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()
    written([" ", ""], tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match=r"of .*empty.* is empty; set the source's column"):
        prepare_tokens(configure(tmp_path, [{"dataset": str(tmp_path / "empty.jsonl")}]), tmp_path / "tokens")


def test_a_long_line_becomes_documents_of_a_bounded_length(run: RunConfig, tmp_path: Path) -> None:
    line = "the river and the sea " * 100_000
    (tmp_path / "long.txt").write_text(line)
    (made,) = prepare_tokens(configure(tmp_path, [{"dataset": str(tmp_path / "long.txt")}]), tmp_path / "t").values()
    documents = read(tmp_path / "t" / "long.txt", run)
    assert made.documents == len(documents) > 40
    assert max(len(document.ids) for document in documents) <= MAX_TOKENS
    once = len(known(list(cast(TextTask, create_task(run)).texts.documents(["the river and the sea"])))[0])
    assert 0 <= made.tokens - once * 100_000 <= 4, "a word is cut where the reader cuts the line, twice"


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("documents", [30, 75, 160, 290])
def test_what_is_interrupted_goes_on_and_ends_with_the_same_shards(
    run: RunConfig, tmp_path: Path, documents: int
) -> None:
    sizes = Sizes(file=200, characters=500, texts=20)
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(3):
        path = folder / f"{number}.jsonl"
        written([f"{a} {b} {number}" for a in WORDS[:9] for b in WORDS[:11]], path)
        path.write_text(path.read_text().replace("boat bank", "\udcff", 1), errors="surrogateescape")
    source, task = Source(dataset=str(folder)), cast(TextTask, create_task(run))
    told, left = list[str](), iter(range(documents))

    def breaking(items: Iterable[str]) -> Iterator[Document]:
        for document in task.texts.documents(items):
            if next(left, None) is None:
                raise KeyboardInterrupt
            yield document

    def prepare(name: str, documents: Callable[[Iterable[str]], Iterator[Document]]) -> Progress:
        tokenizer = Tokenizer(documents, task.vocabulary_hash, len(task.tokenizer))
        with workplace(tmp_path / name, Progress) as work:
            return prepare_source(source, tokenizer, work, "text", told.append, sizes)

    whole = prepare("whole", task.texts.documents)
    assert whole.bad_rows == 3
    assert whole.documents == 3 * 98
    assert len(files_in(tmp_path / "whole" / "text")) == whole.shards > 5
    with pytest.raises(KeyboardInterrupt):
        prepare("broken", breaking)
    assert not (tmp_path / "broken").exists()
    before = files_in(tmp_path / "broken.partial" / "text")
    assert all(name.endswith(".parquet") for name in before), "nothing looks like a shard and is none"
    told.clear()
    assert prepare("broken", task.texts.documents) == whole
    assert any("going on after" in line for line in told) == bool(before)
    assert files_in(tmp_path / "broken" / "text") == files_in(tmp_path / "whole" / "text")
    assert {path.name for path in tmp_path.glob("broken*")} == {"broken"}


def test_text_that_changed_after_an_interruption_is_read_again(run: RunConfig, tmp_path: Path) -> None:
    source, task = written(WORDS, tmp_path / "text.jsonl"), cast(TextTask, create_task(run))
    tokenizer = Tokenizer(task.texts.documents, task.vocabulary_hash, len(task.tokenizer))
    with suppress(KeyboardInterrupt), workplace(tmp_path / "tokens", Progress) as work:
        assert prepare_source(source, tokenizer, work, "text", fail).documents == len(WORDS)
        raise KeyboardInterrupt
    written([*WORDS, "and more"], tmp_path / "text.jsonl")
    with workplace(tmp_path / "tokens", Progress) as work:
        assert prepare_source(source, tokenizer, work, "text", fail).documents == len(WORDS) + 1


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with workplace(tmp_path / "tokens", Progress), pytest.raises(UserError, match="another process writes to"):
        workplace(tmp_path / "tokens", Progress).__enter__()
    (tmp_path / "tokens" / "old").touch()
    with pytest.raises(UserError, match="exists already"):
        workplace(tmp_path / "tokens", Progress).__enter__()


def test_a_full_disk_is_one_line_and_what_is_written_stays(run: RunConfig, tmp_path: Path) -> None:
    full = tmp_path / "tokens.partial" / "progress.json.partial"
    full.parent.mkdir()
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"^the disk of .*tokens\.partial is full; make room there"):
        prepare_tokens(run, tmp_path / "tokens")
    full.unlink()
    assert prepare_tokens(run, tmp_path / "tokens")["one.parquet"].documents == 40


def test_the_command_writes_token_ids_and_says_how_a_run_reads_them(
    run: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(
        """name = "tiny"
global_batch = 8
[task]
name = "albert"
tokenizer = "words"
vocab_size = 100
sequence_length = 32
[task.model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
[[data.train]]
dataset = "./one.parquet"
"""
    )
    assert main(["prepare", "tokens", str(tmp_path / "run.toml")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^40 documents with [\d,]+ tokens$", said, re.MULTILINE)
    assert said.endswith(
        f"put into {tmp_path / 'run.toml'}, in place of every section [[data.train]]:\n\n"
        '[[data.train]]\ndataset = "tokens"\nsubset = "one.parquet"\ntokenized = true\n'
    )
    assert {path.name for path in (tmp_path / "tokens").iterdir()} == {"README.md", "one.parquet"}
    assert (tmp_path / "words" / "tokenizer.json").exists()
    assert main(["prepare", "tokens", str(tmp_path / "run.toml")]) == 2
    assert "tokens exists already; remove it" in capsys.readouterr().err


def test_a_task_without_tokens_is_refused(run: RunConfig, tmp_path: Path) -> None:
    drawn = run.model_copy(
        update={"task": TaskConfig.model_validate({"name": "text-to-image", "tokenizer": "a/b", "pictures": {}})}
    )
    with pytest.raises(UserError, match="learns from codes; use: dedloc prepare images"):
        prepare_tokens(drawn, tmp_path / "tokens")
    with pytest.raises(UserError, match="'swav' has no tokenizer"):
        prepare_tokens(run.model_copy(update={"task": TaskConfig(name="swav")}), tmp_path / "tokens")


def test_token_ids_are_no_text(run: RunConfig, tmp_path: Path) -> None:
    prepare_tokens(run, tmp_path / "tokens")
    tokenized = configure(tmp_path, tomllib.loads(sources_toml(run, str(tmp_path / "tokens"), None))["data"]["train"])
    with pytest.raises(UserError, match="holds token ids"):
        prepare_tokens(tokenized, tmp_path / "again")


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
    prepare_tokens(run, tmp_path / "tokens")
    revision = push_tokens(tmp_path / "tokens", "me/words")
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
        push_tokens(tmp_path / "tokens", "me/words")
    assert (tmp_path / "tokens").exists()
