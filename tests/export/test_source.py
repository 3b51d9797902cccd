"""What a person names is found, whatever happens to it meanwhile, or one line says what is wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dedloc_kit.errors import UserError
from dedloc_kit.export import source
from dedloc_kit.export.checkpoint_file import CheckpointFile
from dedloc_kit.export.source import Finished, Trained, find, model_names
from dedloc_kit.learning.train.state.checkpoint import load
from tests.export.runs import LedRun
from tests.loopback_hub import LoopbackHub
from tests.tiny import tiny_run


@pytest.fixture
def led(tmp_path: Path) -> LedRun:
    return LedRun(tmp_path / "run", tiny_run(), module="tests.tiny")


def trained(where: Path, step: int | None = None) -> Trained:
    found = find(str(where), step)
    assert isinstance(found, Trained)
    return found


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    return folder


def test_of_a_runs_folder_the_best_checkpoint_is_taken_and_the_newest_one_where_none_was_measured(led: LedRun) -> None:
    for _ in range(2):
        led.step()
    assert trained(led.folder).step == 2
    led.step(loss=1.0)
    led.step(loss=2.0)
    led.step()
    found = trained(led.folder)
    assert (found.step, found.name, found.folder) == (3, "tiny", led.folder)
    assert found.run.run_id == led.run.run_id


def test_a_step_that_is_not_kept_is_told_with_those_that_are(led: LedRun) -> None:
    with pytest.raises(UserError, match=r"run has no checkpoint yet; wait until the run has taken more global steps$"):
        find(str(led.folder))
    for _ in range(5):
        led.step()
    assert trained(led.folder, 4).step == 4
    with pytest.raises(UserError, match=r"has no checkpoint of step 1; it keeps: 3, 4, 5$"):
        find(str(led.folder), 1)


def test_what_is_lost_is_not_taken(led: LedRun) -> None:
    led.step(loss=1.0)
    led.checkpoints.ruined.judge(1, sound=False)
    with pytest.raises(UserError, match=r"has no checkpoint that is not lost yet"):
        find(str(led.folder))


def test_a_run_is_found_by_its_checkpoints_by_one_of_them_and_in_the_folder_of_a_demo(led: LedRun) -> None:
    demo = led.folder.parent / "demo"
    led.step()
    led.step()
    path = led.checkpoints.path(1)
    assert trained(path).checkpoint == path
    assert trained(path.parent).step == 2
    led.ledger.close()
    demo.mkdir()
    led.folder.rename(demo / "coordinator")
    assert trained(demo).folder == demo / "coordinator"


def test_a_checkpoint_that_was_found_is_whole_though_the_run_removes_and_replaces_it(led: LedRun) -> None:
    led.step()
    weights = {name: each.clone() for name, each in led.weights().items()}
    found = trained(led.folder)
    for _ in range(4):
        led.step()
    assert not found.checkpoint.exists()
    found.checkpoint.write_bytes(b"something else")
    model = found.model(led.task)
    assert all(torch.equal(each, weights[name]) for name, each in model.named_parameters())


def test_a_checkpoint_is_read_as_it_was_written(led: LedRun) -> None:
    led.step()
    path = led.checkpoints.path(1)
    tensors, info = load(path)
    opened = CheckpointFile(path)
    assert opened.info == info
    assert opened.keys() == {name for name in tensors if name.startswith("model.")}, "the optimizer's state is left"
    assert all(torch.equal(each, tensors[name]) for name, each in opened.items())


@pytest.mark.parametrize("size", [0, 7, 100, 5000])
def test_a_checkpoint_that_is_cut_off_or_damaged_is_one_line(led: LedRun, size: int) -> None:
    led.step()
    path = led.checkpoints.path(1)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=r"^/\S+\.safetensors is damaged or not a checkpoint; name another [^\n]*$"):
        find(str(led.folder))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F33"},
        {"shape": [-1]},
        {"shape": [2**62, 2**62]},
        {"shape": None},
        {"data_offsets": [0, 2**70]},
        {"data_offsets": [0]},
        {"data_offsets": ["a", "b"]},
        {"data_offsets": [-4, 28]},
    ],
)
def test_a_hostile_head_is_one_line(led: LedRun, change: dict[str, object]) -> None:
    led.step()
    path = led.checkpoints.path(1)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    name = next(name for name in head if name != "__metadata__")
    head[name] |= change
    told = json.dumps(head).encode()
    path.write_bytes(len(told).to_bytes(8, "little") + told + content[8 + length :])
    with pytest.raises(UserError, match=r"^/\S+\.safetensors is (damaged or )?not a checkpoint[^\n]*$"):
        find(str(led.folder))


def test_a_checkpoint_that_is_not_of_this_run_or_not_finite_is_one_line(led: LedRun, tmp_path: Path) -> None:
    other = LedRun(tmp_path / "other", tiny_run("other"), module="tests.tiny")
    wider = LedRun(tmp_path / "wider", tiny_run(task={"name": "tiny", "hidden": 16}), module="tests.tiny")
    for each in (led, other, wider):
        each.step()
    path = led.checkpoints.path(1)
    shutil.copy(other.checkpoints.path(1), path)
    with pytest.raises(UserError, match=rf"belongs to the run {other.run.run_id}, and /\S+ is of {led.run.run_id}"):
        find(str(led.folder))
    shutil.copy(wider.checkpoints.path(1), path)
    with pytest.raises(UserError, match=r"has no 0\.weight like the model of tiny-"):
        trained(led.folder).model(led.task)
    with torch.no_grad():
        led.state.parameters[0].fill_(torch.nan)
    tensors, info = led.state.copy()
    save_file(tensors, path, {"dedloc_kit.state_info": info.model_dump_json()})
    with pytest.raises(UserError, match=r"the tensor 'model\.0\.weight' holds numbers that are not finite; name ano"):
        trained(led.folder).model(led.task)


def test_a_run_of_another_version_is_one_line_that_names_what_needs_none(led: LedRun) -> None:
    led.step()
    file = led.folder / "invitation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.0.1", "unknown": 1}))
    with pytest.raises(UserError, match=r"is of dedloc_kit 0\.0\.1, and here is \S+: do this with 0\.0\.1$"):
        find(str(led.folder))
    model_folder(led.folder / "model")
    with pytest.raises(UserError, match=r"do this with 0\.0\.1, or use /\S+/run/model, which needs no dedloc_kit$"):
        find(str(led.folder))


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"[]", b"[" * 100_000, b'{"version": 1}'])
def test_an_invitation_that_is_none_is_one_line(led: LedRun, content: bytes) -> None:
    led.step()
    (led.folder / "invitation.json").write_bytes(content)
    with pytest.raises(UserError, match=r"invitation\.json, which says what the run's model is, cannot be read \("):
        find(str(led.folder))


def test_what_is_no_model_is_one_line_and_a_step_is_for_runs_alone(led: LedRun, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    for where, said in (
        (tmp_path, "is neither a run's folder"),
        (model / "model.safetensors", "is no checkpoint in a run's folder"),
        (model / "config.json", "is no checkpoint in a run's folder"),
        (tmp_path / "none" / "such", "does not exist; name a run's folder"),
        (Path("x" * 5000), "does not exist; name a run's folder"),
        (Path("../none"), "does not exist; name a run's folder"),
    ):
        with pytest.raises(UserError, match=said):
            find(str(where))
    led.step()
    for where in (model, led.checkpoints.path(1), Path("us/model")):
        with pytest.raises(UserError, match=r"^--step is for the folder of a run"):
            find(str(where), 1)
    assert find(str(model)) == Finished(model, "model")
    assert model_names(model) == ["config.json", "model.safetensors"]


def test_files_of_a_model_that_lead_elsewhere_or_are_too_large_are_refused(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    (model / "model.safetensors").rename(tmp_path / "secret.safetensors")
    wrong: list[object] = [{"a": "../secret.safetensors"}, {"a": "/etc/passwd"}, {}, [], None]
    for weights in wrong:
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
        with pytest.raises(UserError, match=r"is no index of a model's weights"):
            model_names(model)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(UserError, match=r"lacks gone\.safetensors; get the model again"):
        model_names(model)
    with (model / "tokenizer.json").open("wb") as file:
        file.truncate(source.MAX_FILE + 1)
    with pytest.raises(UserError, match=r"tokenizer\.json is larger than"):
        model_names(model)


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"model_type": 1}', "[" * 100_000])
def test_a_configuration_of_no_model_of_transformers_is_one_line(tmp_path: Path, config: str) -> None:
    model = model_folder(tmp_path / "model")
    (model / "config.json").write_text(config)
    with pytest.raises(
        UserError, match=r"holds no model of transformers: its config\.json names no model_type; use it"
    ):
        model_names(model)


def test_a_name_of_the_hub_gives_the_models_files_and_nothing_else(hub: LoopbackHub, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    hub.commits["us/model"] = [{**files, "README.md": b"hello", "code.py": b"evil()", "pytorch_model.bin": b"pickle"}]
    found = find("us/model")
    assert isinstance(found, Finished)
    assert found.name == "model"
    assert sorted(path.name for path in found.folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert find(f"us/model@{hub.revision('us/model')}") == found
    with pytest.raises(UserError, match=r"^there is no us/other on the Hub that you may read"):
        find("us/other")
    hub.failing.set()
    with pytest.raises(
        UserError, match=r"^us/new cannot be read now \(the Hub does not answer\); check the connection"
    ):
        find("us/new")
