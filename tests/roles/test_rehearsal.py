"""What a run takes, tried with real data and a real model; and the runs that cannot work, each refused with its fix."""

import json
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Rehearsed, State, Warned
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.tasks.batches import run_on
from dedloc_kit.organizer.prepare_tokens import prepare_tokens
from dedloc_kit.roles.data_check import ROWS
from dedloc_kit.roles.rehearsal import rehearse
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from tests.learning.data.texts import FAULTS, ODD, all_that_goes_wrong
from tests.learning.tasks.swav_run import run_of as swav_run
from tests.learning.tasks.text_to_image_run import TINY, run_of, write_codes
from tests.loopback_hub import loopback_hub
from tests.pictures import striped
from tests.text_runs import text_run, write_text

SENTENCES = "The quick brown fox jumps over the lazy dog. It does so again. And then it sleeps.\n"
HIDDEN, LENGTH = 16, 32
TOKENS = 39
"""So many the text gives, whatever is asked for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert train_tokenizer(iter([SENTENCES] * 20), 60, folder / "tokenizer") == TOKENS
    (folder / "corpus.txt").write_text((SENTENCES + "\n") * 200)
    (folder / "rows.jsonl").write_text('{"content": "A text."}\n')
    return folder


def values(folder: Path, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    model = {
        "embedding_size": HIDDEN,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 4 * HIDDEN,
        "max_position_embeddings": LENGTH,
    }
    usual = {"name": "albert", "tokenizer": str(folder / "tokenizer"), "vocab_size": TOKENS, "sequence_length": LENGTH}
    return {
        "name": "rehearsal-test",
        "global_batch": 512,
        "task": {**usual, "model": model, **task},
        "data": {"train": [{"dataset": str(folder / "corpus.txt")}]},
        **changes,
    }


def tried(folder: Path, task: dict[str, Any] | None = None, microbatch: int = 4, **changes: Any) -> list[AnyEvent]:
    heard: list[AnyEvent] = []
    peer = JoinOptions(folder=folder, devices="cpu", threads=1, microbatch=microbatch)
    rehearse(parse_run(values(folder, task or {}, **changes)), peer, heard.append, threading.Event())
    return heard


def test_it_counts_parameters_bytes_and_operations(folder: Path) -> None:
    rehearsed = tried(folder)[-1]
    assert isinstance(rehearsed, Rehearsed)
    assert rehearsed.cost is not None
    assert rehearsed.parameters > TOKENS * HIDDEN
    # All of its tensors are small, and those travel as float16.
    assert rehearsed.gradient_bytes == rehearsed.average_bytes == 2 * rehearsed.parameters
    assert codec_of("4bit").small.byte_count(10) == 20
    # Two layers, each 12 hidden^2 weights and attention over all pairs of tokens; two operations each, three passes.
    layers = 2 * (12 * HIDDEN**2 * LENGTH + 2 * LENGTH**2 * HIDDEN) * 2 * 3
    assert layers < rehearsed.cost.flops < 1.5 * layers
    assert rehearsed.cost.kept_bytes > 2 * LENGTH * HIDDEN * 4
    assert rehearsed.cost.microbatch == 4
    assert rehearsed.cost.samples_per_second > 0


def test_operations_are_counted_of_a_model_that_gives_its_modules_parts_of_parameters(tmp_path: Path) -> None:
    write_codes(tmp_path, samples=40)
    heard: list[AnyEvent] = []
    peer = JoinOptions(folder=tmp_path, devices="cpu", threads=1, microbatch=4)
    rehearse(run_of(tmp_path), peer, heard.append, threading.Event())
    rehearsed = heard[-1]
    assert isinstance(rehearsed, Rehearsed)
    assert rehearsed.cost is not None
    # Two layers over 4 tokens and 8 of 9 codes, each 16 hidden_size^2 weights; two operations each, three passes.
    layers = 2 * 16 * TINY["model"]["hidden_size"] ** 2 * (4 + 8) * 2 * 3
    assert layers < rehearsed.cost.flops < 1.5 * layers


def test_the_microbatch_that_suits_this_machine_is_at_most_an_eighth_of_the_batch(folder: Path) -> None:
    rehearsed = tried(folder, microbatch=0, global_batch=64)[-1]
    assert isinstance(rehearsed, Rehearsed)
    assert rehearsed.cost is not None
    assert rehearsed.cost.microbatch <= 8


def source(path: Path, **keys: Any) -> dict[str, Any]:
    return {"train": [{"dataset": str(path), **keys}]}


def test_a_run_that_cannot_work_is_refused_with_the_fix(folder: Path) -> None:
    def refusal(task: dict[str, Any] | None = None, **changes: Any) -> str:
        with pytest.raises(UserError) as refused:
            tried(folder, task, **changes)
        return str(refused.value)

    assert "global_batch is 4, smaller than one microbatch (8 samples); set it to 64" in refusal(
        microbatch=8, global_batch=4
    )
    said = refusal({"vocab_size": 70})
    assert "task.vocab_size is 70" in said
    assert "has 39 tokens; set vocab_size = 39" in said
    assert "sequence_length must be at most" in refusal({"sequence_length": 2 * LENGTH})
    assert "dedloc prepare tokenizer RUN.toml" in refusal({"tokenizer": str(folder / "none")})
    rows = folder / "rows.jsonl"
    assert (
        f"{rows} has no usable row among 1: row 1 has no column 'text'; set the column to one of: content"
        in refusal(data=source(rows))
    )
    both = {**source(folder / "corpus.txt"), "evaluation": {"dataset": str(rows)}}
    assert f"{rows} has no usable row among 1" in refusal(data=both)
    second = {"train": [{"dataset": str(folder / "corpus.txt")}, {"dataset": str(folder / "nowhere")}]}
    assert "nowhere does not exist" in refusal(data=second)


def test_offline_what_is_on_the_hub_is_left_alone_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    there = {"dataset": "owner/name"}
    *_, rehearsed = tried(folder, data={"train": [there, {"dataset": str(folder / "corpus.txt")}]})
    assert isinstance(rehearsed, Rehearsed)
    assert rehearsed.cost is not None
    events = tried(folder, data={"train": [there]})
    assert any(isinstance(event, Warned) and "owner/name" in event.text for event in events)
    assert isinstance(events[-1], Rehearsed)
    assert events[-1].cost is None


def test_all_faults_of_the_data_are_told_at_once_with_what_a_sample_holds(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text(SENTENCES, encoding="utf-16")
    texts = [f"{number}. {SENTENCES}" for number in range(99)]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "good.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    heard: list[AnyEvent] = []
    peer = JoinOptions(folder=folder, devices="cpu", threads=1, microbatch=4)
    bad = [{"dataset": str(tmp_path / "wide.txt")}, {"dataset": str(tmp_path / "nowhere")}]
    data = {
        "train": [{"dataset": str(tmp_path / "good.jsonl")}, *bad],
        "evaluation": {"dataset": str(tmp_path / "held_out.jsonl")},
    }
    with pytest.raises(UserError, match="the 2 faults of the data that the lines above name must be mended"):
        rehearse(parse_run(values(folder, {}, data=data)), peer, heard.append, threading.Event())
    told = [event.text for event in heard if isinstance(event, Warned | State)]
    for words in ("wide.txt is UTF-16", "nowhere does not exist", "99 of 99 held-out documents that were read are"):
        assert len([text for text in told if words in text]) == 1
    (used,) = [text for text in told if "good.jsonl, train: " in text and "tokens in a sample of 32 (" in text]
    tokens = int(used.split(" tokens")[0].rpartition(" ")[2])
    assert 8 <= tokens <= 32


def overlap(run: RunConfig, folder: Path) -> str:
    """What is said of held-out data that is training data; empty if nothing is. Raises UserError as a rehearsal."""
    heard: list[AnyEvent] = []
    rehearse(run, JoinOptions(folder=folder, devices="cpu", threads=1, microbatch=4), heard.append, threading.Event())
    return " ".join(event.text for event in heard if isinstance(event, Warned) and "training data too" in event.text)


@pytest.mark.parametrize(
    "held_out",
    [{"dataset": "corpus.txt"}, {"dataset": "corpus.txt", "weight": 2}, {"dataset": "link.txt"}, {"dataset": "."}],
    ids=["equal", "another weight", "another name", "the folder that it lies in"],
)
@pytest.mark.parametrize("of", ["train", "cooldown"])
def test_held_out_data_that_is_the_training_data_is_a_fault(
    folder: Path, tmp_path: Path, held_out: dict[str, Any], of: str
) -> None:
    for name in ("corpus.txt", "own.txt"):
        (tmp_path / name).write_bytes((folder / "corpus.txt").read_bytes())
    (tmp_path / "link.txt").symlink_to(tmp_path / "corpus.txt")
    learned: dict[str, Any] = {
        "train": [{"dataset": str(tmp_path / "own.txt")}],
        of: [{"dataset": str(tmp_path / "corpus.txt")}],
    }
    data = {**learned, "evaluation": {**held_out, "dataset": str(tmp_path / held_out["dataset"])}}
    schedule = {"schedule": "warmup-stable-decay"}
    with pytest.raises(UserError, match=r"corpus\.txt is read for training and as held-out data too.*hold out others?"):
        overlap(parse_run(values(folder, {}, data=data, optimizer=schedule)), folder)


def test_held_out_texts_that_a_space_tells_from_training_texts_are_told(folder: Path, tmp_path: Path) -> None:
    def said(change: str) -> str:
        (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": f"{t}{change}"}) + "\n" for t in texts))
        data = {**source(tmp_path / "train.jsonl"), "evaluation": {"dataset": str(tmp_path / "held.jsonl")}}
        return overlap(parse_run(values(folder, {}, data=data)), folder)

    texts = [f"{number}. {SENTENCES}" for number in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert "20 of 20 held-out documents" in said("\u00a0")
    assert said("Another sentence.") == ""


@pytest.mark.parametrize("name", ["masked", "causal"])
@pytest.mark.parametrize("both", [False, True], ids=["held out as text", "held out as tokens"])
def test_held_out_texts_are_found_in_training_data_that_is_tokenized(tmp_path: Path, name: str, both: bool) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "encoder" if name == "masked" else "causal")
    prepare_tokens(run, tmp_path / "tokens")
    tokens = Source(dataset=str(tmp_path / "tokens"), subset="corpus", tokenized=True)
    assert run.data.evaluation is not None
    apart = run_on(run, (tokens,))
    assert overlap(apart, tmp_path) == ""
    shared = run_on(run, (tokens,), evaluation=run.data.evaluation.model_copy(update={"split": "train"}))
    if both:
        shutil.copytree(tmp_path / "tokens", tmp_path / "copy")
        shared = run_on(run, (tokens,), evaluation=tokens.model_copy(update={"dataset": str(tmp_path / "copy")}))
    assert re.search(r"(\d+) of \1 held-out", overlap(shared, tmp_path))


def test_held_out_pictures_and_their_codes_are_found_in_the_training_data(tmp_path: Path) -> None:
    for split in ("train", "test"):
        striped(tmp_path / "apart", 16, split)
    assert overlap(swav_run(tmp_path / "apart"), tmp_path) == ""
    striped(tmp_path / "shared", 16)
    shutil.copy(tmp_path / "shared/train-00000-of-00001.parquet", tmp_path / "shared/test-00000-of-00001.parquet")
    assert "16 of 16 held-out" in overlap(swav_run(tmp_path / "shared"), tmp_path)
    write_codes(tmp_path, samples=40)
    shutil.copy(tmp_path / "codes/train-00000.parquet", tmp_path / "codes/test-00000.parquet")
    assert re.search(r"(\d+) of \1 held-out samples", overlap(run_of(tmp_path), tmp_path))


def test_what_only_the_organizers_token_opens_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**changes: Any) -> list[str]:
        heard = tried(folder, {"tokenizer": "us/words"}, **changes)
        return [event.text for event in heard if isinstance(event, Warned) and "on the Hub" in event.text]

    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.commits["us/words"] = [{path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}]
        assert told() == []
        hub.private = {"us/words"}
        (line,) = told()
    assert line.startswith("us/words is private on the Hub: this machine's token reads it, and volunteers")
    assert line.endswith("make it public, or give each of them access to it")


def test_of_ten_gigabytes_with_all_that_goes_wrong_everything_is_told_in_one_call_and_soon(
    folder: Path, tmp_path: Path
) -> None:
    all_that_goes_wrong(tmp_path)
    rows = "".join(json.dumps({"text": f"{number}. {SENTENCES}"}) + "\n" for number in range(2 * ROWS)).encode()
    for number in range(4):  # with a hole in the middle, which takes no room on the disk
        with (tmp_path / f"z-large-{number}.jsonl").open("wb") as file:
            file.write(rows)
            file.seek(2_500_000_000)
            file.write(b"\n" + (rows if number else rows[:-20]))
    heard: list[AnyEvent] = []
    peer = JoinOptions(folder=folder, devices="cpu", threads=1, microbatch=4)
    run = parse_run(values(folder, {}, data={"train": [{"dataset": str(tmp_path)}]}))
    began = time.process_time()
    with pytest.raises(UserError, match="the 4 faults of the data that the lines above name must be mended"):
        rehearse(run, peer, heard.append, threading.Event())
    assert time.process_time() - began < 30.0, "what others do on this machine does not count"
    told = [event.text for event in heard if isinstance(event, Warned | State)]
    assert not any("\n" in line for line in told)
    cut = "z-large-0.jsonl: 1 of the 1,000 rows that were read are left out"
    for words in (*ODD, *(wrong for wrong, _ in FAULTS), cut):
        assert len([line for line in told if words in line]) == 1, words
    assert all(any(fix in line for line in told) for _, fix in FAULTS)
    assert any("not read: what follows in 7 of 10 files" in line for line in told)


def test_a_run_with_checks_is_tried_on_blocks_of_all_its_data_and_refused_where_none_can_be_made(
    folder: Path,
) -> None:
    checks: Any = {"trust": {"checks": "on"}, "optimizer": {"schedule": "warmup-stable-decay"}}
    text, more = ({"dataset": str(folder / name)} for name in ("checked.parquet", "more.txt"))
    parquet.write_table(pyarrow.table({"text": [SENTENCES] * 200}), folder / "checked.parquet")
    (folder / "more.txt").write_text((SENTENCES + "\n") * 100)
    data = {"train": [text], "cooldown": [more]}
    heard = tried(folder, data={**data, "cooldown": [text]}, **checks)
    assert isinstance(heard[-1], Rehearsed)
    assert heard[-1].cost is not None
    with pytest.raises(UserError, match=r"more\.txt cannot be read from the middle"):
        tried(folder, data=data, **checks)
    assert isinstance(tried(folder, data={**data, "evaluation": more, "cooldown": []}, **checks)[-1], Rehearsed)
    dropping = {**values(folder, {})["task"]["model"], "hidden_dropout_prob": 0.1}
    with pytest.raises(UserError, match=r"hidden_dropout_prob is 0\.1, .*; set it to 0; or remove trust\.checks"):
        tried(folder, {"model": dropping}, data=data, **checks)
