"""Names from the network: whatever an invitation or the card of a dataset says, no file of a volunteer is read."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dedloc_kit.cli.generated import add_options
from dedloc_kit.config.loading import load_run, parse_run
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.places import local_copies, names_local_files, with_copies
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.hub import described, repository_and_revision
from dedloc_kit.learning.data.sources.hub_files import check_card, check_files, check_loader, commit_of
from dedloc_kit.learning.data.sources.shards import find_shards, find_splits
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.init_from import Start
from dedloc_kit.learning.models.picture_model.files import find
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import parse_serving
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.tiny import tiny_run

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
COMMIT = "0123456789" * 4
OWN = f"hf://datasets/us/texts@{COMMIT}"


@pytest.fixture
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a volunteer would never give, in the folder where it starts; by a name that could be the Hub's, too."""
    (tmp_path / "Documents").mkdir()
    place = tmp_path / "Documents" / "private"
    place.mkdir()
    (place / "diary.txt").write_text("nobody is to know\n")
    (tmp_path / "linked").symlink_to(tmp_path / "Documents")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return place / "diary.txt"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


def no_warning(text: str) -> None:
    raise AssertionError(text)


def invitation_to(task: dict[str, Any] | None = None, **data: Any) -> Invitation:
    """Of an organizer whose kit does not check what it sends."""
    values = tiny_run().model_dump(mode="json")
    values["task"] |= task or {}
    values["data"] = {"train": [{"dataset": "us/texts"}], **data}
    run = parse_run(values)
    return Invitation.of(run, (ADDRESS,)).model_copy(update={"run": values, "run_id": run.run_id})


PATHS = [
    "DIARY",
    "~/Documents/private/diary.txt",
    "Documents/private/diary.txt",
    "./Documents/private",
    "../Documents/private",
    "file://DIARY",
    "hf://datasets/us/texts",
    "zip://x::us/texts",
    "linked/private/diary.txt",
    "us/texts@../../Documents",
    "..",
]


@pytest.mark.parametrize("name", PATHS)
def test_an_invitation_that_names_files_is_refused_wherever_it_names_them(diary: Path, name: str) -> None:
    name, source = name.replace("DIARY", str(diary)), {"dataset": "us/texts"}
    places: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"train": [source, {"dataset": name}]}),
        ({}, {"evaluation": {"dataset": name}}),
        ({"tokenizer": name}, {}),
        ({"init_from": name}, {}),
        ({"pictures": {"model": name}}, {}),
    ]
    for task, data in places:
        with pytest.raises(UserError, match=r"neither OWNER/NAME of the Hub nor a bare name.*ask the organizer"):
            invitation_to(task, **data).run_config()


def test_a_bare_name_and_one_of_the_hubs_kind_lead_to_no_file_either(diary: Path, hub: LoopbackHub) -> None:
    (diary.parents[2] / "corpus").mkdir()
    (diary.parents[2] / "corpus" / "diary.txt").write_text("nobody is to know\n")
    for name, problem in (("corpus", "is not on the Hub"), ("Documents/private", "start from another folder")):
        run = invitation_to(train=[{"dataset": name}]).run_config()
        with pytest.raises(UserError, match=problem):
            find_splits(run.data.train[0], no_warning)
        for load in (load_tokenizer, BareTokenizer):
            with pytest.raises(UserError, match=r"is not on the Hub|does not exist|there is no Documents/private on"):
                load(name)
        with pytest.raises(UserError):
            find(name)
        with pytest.raises(UserError, match=r"folder of the organizer's|must name a commit"):
            Start(name, None if "/" in name else "0" * 64).look()


def test_a_subset_or_a_revision_leads_out_of_nothing(diary: Path) -> None:
    for subset in ("../..", "..", "/etc", "a/b", "a\\b", "zip://x::y"):
        with pytest.raises(ValidationError, match="subset"):
            Source(dataset=str(diary.parent), subset=subset)
    for revision in ("../../../x", "a/../../b", "/etc", "a::b", "a b", "", "refs/../x"):
        with pytest.raises(ValidationError, match="revision"):
            Source(dataset="us/texts", revision=revision)
        assert repository_and_revision(f"us/texts@{revision}") is None
    assert repository_and_revision("us/texts@refs/pr/1") == ("us/texts", "refs/pr/1")


AWAY = [
    "DIARY",
    "file://DIARY",
    "https://example.org/x.txt",
    "s3://bucket/x.txt",
    "hf://datasets/them/private@COMMIT/x.txt",
    "hf://datasets/us/texts-private@COMMIT/x.txt",
    "hf://datasets/us/texts@COMMIT/../../them/private@COMMIT/x.txt",
    "hf://datasets/us/texts@COMMIT/zip://x.txt::DIARY",
    "hf://datasets/us/texts@COMMIT/a.zip::file://DIARY",
    "hf://datasets/us/texts@main/x.txt",
    "hf://us/texts@COMMIT/x.txt",
    "hf://buckets/us/texts/x.txt",
    "hf://spaces/us/texts@COMMIT/x.txt",
    "zip://x.txt::hf://datasets/us/texts@COMMIT/a.zip",
    "simplecache::hf://datasets/us/texts@COMMIT/x.txt",
    "local://DIARY",
    "HF://datasets/us/texts@COMMIT/x.txt",
    " hf://datasets/us/texts@COMMIT/x.txt",
    "hf://datasets/us/texts@COMMIT/x\n.txt",
    "hf://datasets/us/texts@COMMIT/",
]


@pytest.mark.parametrize("name", AWAY)
def test_files_that_are_not_of_the_dataset_are_refused_whoever_resolved_them(diary: Path, name: str) -> None:
    name = name.replace("DIARY", str(diary)).replace("COMMIT", COMMIT)
    with pytest.raises(UserError, match=r"the dataset us/texts names .* which is no file of its own on the Hub"):
        check_files("us/texts", [f"{OWN}/train.txt", name])


def test_files_of_the_dataset_may_have_any_name() -> None:
    check_files(
        "us/texts", [f"{OWN}/train.txt", f"{OWN}/দল/a b (1)...jsonl.zst", f"{OWN}/data/@x/train-0-of-1.parquet"]
    )
    check_card("us/texts", {"configs": [{"config_name": "a", "data_files": [{"split": "train", "path": "d/*..txt"}]}]})
    check_card("us/texts", {"configs": None, "license": "mit", "homepage": "https://example.org"})


CARDS = [
    'data_files: "DIARY"',
    'data_files: "PLACE/**"',
    "data_files: [{split: train, path: [ok.txt, 'PLACE/*.txt']}]",
    "data_files: {train: '../../**'}",
    "data_dir: PLACE",
    "data_dir: '~'",
    "data_files: file://DIARY",
    "data_files: 'hf://datasets/them/private/x.txt'",
    "data_files: 'zip://*::DIARY'",
]


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("card", CARDS)
def test_a_hostile_card_is_refused_before_anything_is_looked_for(
    diary: Path, hub: LoopbackHub, card: str, file: str
) -> None:
    card = card.replace("DIARY", str(diary)).replace("PLACE", str(diary.parent))
    head = f"configs:\n- config_name: default\n  {card}\n"
    hub.commits["datasets/them/private"] = [{"x.txt": b"of the volunteer's own account\n"}]
    hub.commits["datasets/us/texts"] = [
        {"ok.txt": b"text\n", file: (f"---\n{head}---\n" if file.endswith("md") else head).encode()}
    ]
    with pytest.raises(UserError, match="which is no file of its own on the Hub, and is not read"):
        find_splits(Source(dataset="us/texts"), no_warning)


@pytest.mark.parametrize("loader", ["hdf5", "pandas", "sql", "spark", "xml", "cache", "generator", ""])
def test_files_that_may_lead_to_others_are_not_read_at_all(loader: str) -> None:
    with pytest.raises(UserError, match="which is not used here; choose one with files of arrow, csv"):
        check_loader("us/texts", loader)


def test_a_dataset_is_read_at_the_commit_whose_card_was_checked(hub: LoopbackHub) -> None:
    card = b"---\nconfigs:\n- config_name: default\n  data_files: good.txt\n---\n"
    hub.commits["datasets/us/texts"] = [{"README.md": card, "good.txt": b"text\n"}]
    commit = commit_of("us/texts", None)
    assert commit == hub.revision("datasets/us/texts")
    hostile = card.replace(b"good.txt", b"/etc/passwd")
    hub.commits["datasets/us/texts"].append({"README.md": hostile, "good.txt": b"text\n"})
    assert commit_of("us/texts", commit) == commit
    with pytest.raises(UserError, match="no file of its own"):
        commit_of("us/texts", None)


def test_a_served_model_is_on_the_hub_or_with_other_servers_and_in_no_folder(diary: Path) -> None:
    values = {"name": "a", "config": {"model_type": "llama"}, "manifest": "0" * 64}
    for name in (f"{diary.parent}@{COMMIT}", f"~/private@{COMMIT}", "us/model@main", f"../../us/model@{COMMIT}"):
        assert not parse_serving({**values, "model": name}).from_hub
    assert parse_serving({**values, "model": f"us/model@{COMMIT}"}).from_hub


LOCAL: dict[str, Any] = {
    "task": {"tokenizer": "us/words", "init_from": "/home/asha/start", "pictures": {"model": "/home/asha/pictures"}},
    "train": [{"dataset": "us/texts"}],
    "cooldown": [{"dataset": "/home/asha/better"}],
    "evaluation": {"dataset": "/home/asha/held-out.txt"},
}


def test_no_path_of_the_organizer_gets_into_an_invitation_or_on_the_hub() -> None:
    values = tiny_run(optimizer=STEADY).model_dump(mode="json")
    values["task"] |= LOCAL["task"]
    values["data"] = {key: LOCAL[key] for key in ("train", "cooldown", "evaluation")}
    run = parse_run(values)
    for told in (Invitation.of(run, (ADDRESS,)).model_dump_json(), described(run), run.canonical()):
        assert "asha" not in told
        assert all(name in told for name in ("start", "pictures", "better", "held-out.txt"))
    assert Invitation.of(run, (ADDRESS,)).run_config().run_id == run.run_id, "where it lies is no part of the run"
    assert names_local_files(run), "who trains to the end has to read what is in data.cooldown"


STEADY = {"learning_rate": 0.1, "total_steps": 10, "warmup_steps": 0, "schedule": "warmup-stable-decay"}


def test_local_data_is_read_where_the_volunteer_names_it(diary: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'name = "x"\nglobal_batch = 8\ntask = {name = "tiny", tokenizer = "./words"}\n[[data.train]]\n'
        'dataset = "./Documents"\n[data.evaluation]\ndataset = "us/texts"\n'
    )
    own = load_run(tmp_path / "run.toml")
    run = Invitation.of(own, (ADDRESS,)).run_config()
    with pytest.raises(UserError, match="--data NAME=PATH"):
        find_shards(run.data.train[0], no_warning)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    (copy / "mine.txt").write_text("given\n")
    placed = with_copies(run, {"Documents": copy, "texts": copy, "words": copy})
    for source in (placed.data.train[0], placed.data.evaluation):
        assert source is not None
        assert [shard.path for shard in find_shards(source, no_warning)] == [str(copy / "mine.txt")]
    assert placed.task.options["tokenizer"] == str(copy)
    assert placed.run_id == run.run_id == own.run_id
    assert placed.model_dump() == run.model_dump()
    with pytest.raises(UserError, match=r"--data corpus=...: this run reads nothing of this name; it reads: Documents"):
        with_copies(run, {"corpus": copy})
    mine = with_copies(run, local_copies(own))
    assert [shard.path for shard in find_shards(mine.data.train[0], no_warning)] == [str(diary)]


def test_two_things_of_one_name_are_refused_where_others_know_them_by_it() -> None:
    two = tiny_run(data={"train": [{"dataset": "/a/corpus"}], "evaluation": {"dataset": "/b/corpus"}})
    with pytest.raises(UserError, match=r"/b/corpus and /a/corpus have the same name.*rename one"):
        local_copies(two)
    shadowed = tiny_run(data={"train": [{"dataset": "/a/texts"}], "evaluation": {"dataset": "us/texts"}})
    with pytest.raises(UserError, match="rename the one on this machine"):
        local_copies(shadowed)


def test_what_a_volunteer_names_on_the_command_line_is_a_copy_of_its_own(
    diary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, PeerConfig, "data")
    given = parser.parse_args(["--data", "corpus=Documents/private", "--data", "words=~/words=1"]).data
    assert dict(given) == {"corpus": diary.parent, "words": diary.parents[2] / "words=1"}
    for wrong in ("corpus", "corpus=", "=x", "us/texts=x"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--data", wrong])
        assert "must be NAME=PATH" in capsys.readouterr().err
