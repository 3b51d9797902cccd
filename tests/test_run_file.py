"""Reading a run configuration from TOML: local paths, overrides, faulty files."""

from pathlib import Path

import pytest

from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


RUN_TOML = """
name = "demo"
global_batch = 64
[task]
name = "albert"
[[data.train]]
dataset = "owner/first"
[optimizer]
warmup_steps = 1
total_steps = 10
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "run.toml", RUN_TOML))
    assert isinstance(run, RunConfig)
    assert run.data.train[0].dataset == "owner/first"
    assert run.run_id.startswith("demo-")


def test_local_paths_are_taken_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "recipe" / "there" / "already").mkdir(parents=True)
    path = write(
        tmp_path / "recipe" / "run.toml",
        """
        name = "demo"
        global_batch = 1
        task = {name = "albert", tokenizer = "tokenizer.json"}
        optimizer = {warmup_steps = 0}
        [data]
        evaluation = {dataset = "held-out.txt"}
        train = [
            {dataset = "corpus"}, {dataset = "./a/b"}, {dataset = "../up"}, {dataset = "/absolute"},
            {dataset = "~/mine"}, {dataset = "there/already"}, {dataset = "owner/name"}, {dataset = "a/b/c"},
        ]
        """,
    )
    run = load_run(path)
    folder = tmp_path / "recipe"
    assert [source.dataset for source in run.data.train] == [
        str(folder / "corpus"),
        str(folder / "a" / "b"),
        str(tmp_path / "up"),
        "/absolute",
        str(tmp_path / "home" / "mine"),
        str(folder / "there" / "already"),
        "owner/name",
        str(folder / "a" / "b" / "c"),
    ]
    assert run.data.evaluation is not None
    assert run.data.evaluation.dataset == str(folder / "held-out.txt")
    assert run.task.options["tokenizer"] == str(folder / "tokenizer.json")


def test_a_tokenizer_on_the_hub_stays_a_name(tmp_path: Path) -> None:
    text = RUN_TOML.replace('name = "albert"', 'name = "albert"\ntokenizer = "owner/tokenizer"')
    assert load_run(write(tmp_path / "run.toml", text)).task.options["tokenizer"] == "owner/tokenizer"


def test_overrides_replace_single_keys_and_keep_the_rest(tmp_path: Path) -> None:
    base = write(tmp_path / "run.toml", RUN_TOML)
    smoke = write(
        tmp_path / "smoke.toml",
        """
        global_batch = 8
        optimizer = {total_steps = 3}
        averaging = {overlap = false}
        [[data.train]]
        dataset = "owner/tiny"
        """,
    )
    run = load_run(base, smoke)
    assert (run.name, run.global_batch, run.averaging.overlap) == ("demo", 8, False)
    assert (run.optimizer.warmup_steps, run.optimizer.total_steps) == (1, 3)
    assert [source.dataset for source in run.data.train] == ["owner/tiny"]
    assert run.fingerprint != load_run(base).fingerprint


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name = ", "is not valid TOML"),
        (b"\xff\xfd", "is not valid TOML"),
        (b'name = "demo"', "global_batch is missing; add it"),
        (RUN_TOML.encode() + b"global_batch = 3\n", "optimizer.global_batch is not a known key"),
        (b"seed = 2026-11-21\n" + RUN_TOML.encode(), "a value has a type that no key takes"),
    ],
)
def test_a_faulty_file_is_named_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_run(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml does not exist; give the path of a run configuration"):
        load_run(tmp_path / "nowhere.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load_run(tmp_path)
