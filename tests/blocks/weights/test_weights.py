"""Manifests, and tensors that are what a manifest says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import INDEX, SINGLE, Manifest, describe_folder
from dedloc_kit.blocks.weights.quantized import Int8Linear
from dedloc_kit.blocks.weights.weights import load, locate, read, shards
from dedloc_kit.errors import UserError
from tests.blocks import tiny
from tests.loopback_hub import loopback_hub

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(64, 32),
        "a.bias": torch.randn(64),
        "b.weight": torch.randn(32, 64).bfloat16(),
        "b.bias": torch.randn(32).bfloat16(),
        "mask": torch.ones(3, dtype=torch.int64),
        "scale": torch.tensor(2.0),
    }


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    files = {A: ("a.weight", "a.bias", "scale"), B: ("b.weight", "b.bias", "mask")}
    for file, names in files.items():
        save_file({name: tensors()[name] for name in names}, folder / file)
    write_index(folder, {name: file for file, names in files.items() for name in names})
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)


NAMES = ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_a_manifest_names_the_same_weights_after_a_journey_as_json(sharded: Path) -> None:
    manifest = describe_folder(sharded)
    again = Manifest.from_json(manifest.canonical().encode())
    assert again == manifest
    assert again.digest == manifest.digest
    assert manifest.tensors["b.weight"].shape == (32, 64)
    assert manifest.tensors["b.weight"].dtype == "BF16"
    assert manifest.size == sum(tensor.nbytes for tensor in tensors().values())


def test_a_manifest_of_a_single_file_has_another_digest_for_other_numbers(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / SINGLE)
    before = describe_folder(tmp_path)
    save_file(tensors() | {"scale": torch.tensor(3.0)}, tmp_path / SINGLE)
    after = describe_folder(tmp_path)
    assert after.digest != before.digest
    assert {name for name in after.tensors if after.tensors[name] != before.tensors[name]} == {"scale"}


def test_the_wanted_tensors_are_read_as_they_are_stored(sharded: Path) -> None:
    found = dict(read(sharded, describe_folder(sharded), ["b.weight", "a.bias", "scale"]))
    assert found.keys() == {"b.weight", "a.bias", "scale"}
    assert all(torch.equal(found[name], tensors()[name]) for name in found)


@pytest.mark.parametrize(("form", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_module_without_memory_is_filled_in_one_type(sharded: Path, form: str, dtype: torch.dtype) -> None:
    with torch.device("meta"):
        module = Two()
    load(module, read(sharded, describe_folder(sharded), NAMES), form)  # type: ignore[arg-type]
    assert all(torch.equal(value, tensors()[name].to(dtype)) for name, value in module.state_dict().items())


def test_what_was_loaded_does_not_change_with_the_file(sharded: Path) -> None:
    with torch.device("meta"):
        module = Two()
    load(module, read(sharded, describe_folder(sharded), NAMES), "float32")
    with (sharded / A).open("r+b") as file:
        file.write(bytes((sharded / A).stat().st_size))
    assert torch.equal(module.a.weight, tensors()["a.weight"])


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_linear_layers_are_quantized_as_they_come(sharded: Path, form: str) -> None:
    with torch.device("meta"):
        module = Two()
    load(module, read(sharded, describe_folder(sharded), reversed(NAMES)), form)  # type: ignore[arg-type]
    inputs = torch.randn(5, 32)
    wanted = inputs @ tensors()["a.weight"].T + tensors()["a.bias"]
    assert isinstance(module.a, Int8Linear) == (form == "int8")
    assert (module.a(inputs) - wanted).norm() < (0.02 if form == "int8" else 0.15) * wanted.norm()
    assert module.b(module.a(inputs)).shape == (5, 32)


def swap(folder: Path, **changed: Tensor) -> None:
    inside = load_file(folder / A)
    inside.update({name.replace("_", "."): tensor for name, tensor in changed.items()})
    save_file({name: tensor.clone() for name, tensor in inside.items()}, folder / A)


def truncate(folder: Path) -> None:
    (folder / A).write_bytes((folder / A).read_bytes()[:-100])


def flip(folder: Path) -> None:
    content = bytearray((folder / A).read_bytes())
    content[-1] ^= 1
    (folder / A).write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / A).unlink(), "cannot be read"),
        (truncate, "is damaged"),
        (flip, "its hash is not the manifest's"),
        (lambda folder: swap(folder, a_weight=torch.zeros(64, 32)), "its hash is not the manifest's"),
        (lambda folder: swap(folder, a_weight=tensors()["a.weight"].view(32, 64)), "not the shape and type"),
        (lambda folder: swap(folder, a_weight=tensors()["a.weight"].view(torch.int32)), "not the shape and type"),
        (lambda folder: save_file({"x": torch.ones(1)}, folder / A), "has no tensor a.bias"),
    ],
)
def test_a_shard_that_is_not_the_manifests_is_refused_in_a_line(
    sharded: Path, harm: Callable[[Path], object], said: str
) -> None:
    manifest = describe_folder(sharded)
    harm(sharded)
    with pytest.raises(UserError, match=said) as told:
        list(read(sharded, manifest, ["a.weight", "a.bias", "scale"]))
    assert "\n" not in str(told.value)


def test_only_floating_point_tensors_that_the_model_has_are_read(sharded: Path) -> None:
    manifest = describe_folder(sharded)
    with pytest.raises(UserError, match="stored as I64"):
        list(read(sharded, manifest, ["mask"]))
    with pytest.raises(UserError, match="has no tensor 'c'"):
        list(read(sharded, manifest, ["c"]))


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/secret.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin", 3]
)
def test_an_index_leads_nowhere_but_to_safetensors_in_its_folder(sharded: Path, file: object) -> None:
    write_index(sharded, {"a.weight": file})
    with pytest.raises(UserError, match=r"is no index of a model's weights \(_Index: weight_map\.") as told:
        describe_folder(sharded)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', "[" * 100_000])
def test_what_is_no_index_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(UserError, match="is no index"):
        describe_folder(sharded)


def test_an_index_that_names_what_is_not_in_the_file_is_refused(sharded: Path) -> None:
    write_index(sharded, {"a.weight": B})
    with pytest.raises(UserError, match="which has no such tensor"):
        describe_folder(sharded)


def test_pickles_are_refused_and_a_folder_without_weights_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no weights"):
        describe_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"code")
    with pytest.raises(UserError, match="they may hold code"):
        describe_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": [-1]}, "shape"),
        ({"shape": [2**60]}, "shape"),
        ({"shape": [2**30, 2**30]}, "larger than any"),
        ({"shape": [1] * 9}, "shape"),
        ({"shape": [1.5]}, "shape"),
        ({"dtype": "F4"}, "dtype"),
        ({"sha256": "0"}, "sha256"),
        ({"file": "../x.safetensors"}, "file"),
        ({"more": 1}, "more is not a known key"),
    ],
)
def test_a_manifest_with_absurd_values_is_refused_in_a_line(changes: dict[str, object], said: str) -> None:
    tensor = {"file": A, "dtype": "F32", "shape": [2], "sha256": "0" * 64}
    assert Manifest.from_json(json.dumps({"tensors": {"t": tensor}}).encode()).size == 8
    with pytest.raises(ValueError, match=said) as told:
        Manifest.from_json(json.dumps({"tensors": {"t": tensor | changes}}).encode())
    assert "\n" not in str(told.value)


def test_a_manifest_that_is_too_large_is_not_even_parsed() -> None:
    with pytest.raises(ValueError, match="too large"):
        Manifest.from_json(b" " * (2**26 + 1))
    huge = {"file": A, "dtype": "F64", "shape": [2**38], "sha256": "0" * 64}
    with pytest.raises(ValueError, match="larger than any"):
        Manifest.from_json(json.dumps({"tensors": {f"t{n}": huge for n in range(5)}}).encode())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a.weight": torch.ones(32, 64)}, "this part of the model wants"),
        ({"c": torch.ones(1)}, "has no place for 'c'"),
        ({"a.weight": torch.ones(64, 32)}, "no weights came for a.bias"),
    ],
)
def test_a_module_takes_exactly_its_tensors(given: dict[str, Tensor], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(Two(), given.items(), "float32")


def test_of_a_repository_only_the_files_with_the_wanted_tensors_are_taken(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = describe_folder(sharded)
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.commits["them/model"] = [{path.name: path.read_bytes() for path in sharded.iterdir()}]
        where = f"them/model@{hub.revision('them/model')}"
        folder = locate(where, shards(manifest, ["a.weight", "scale"]))
        assert {path.name for path in folder.iterdir()} == {A}
        found = dict(read(folder, manifest, ["a.weight", "scale"]))
        assert torch.equal(found["a.weight"], tensors()["a.weight"])
        assert describe_folder(locate(where)) == manifest


@pytest.mark.parametrize(
    ("model", "said"), [("them/model", "must name a commit"), ("nowhere at all", "neither a folder nor")]
)
def test_a_model_is_a_folder_or_a_commit_of_the_hub(model: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        locate(model)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_span_is_filled_from_the_files_that_hold_its_layers(family: str, tmp_path: Path) -> None:
    whole = tiny.model(family)
    whole.save_pretrained(tmp_path)
    manifest, span = describe_folder(tmp_path), Span(whole.config, 1, tiny.LAYERS)
    own = span.wanted(manifest.tensors)
    load(span, span.merged(own, read(tmp_path, manifest, own)), "float32")
    hidden, positions = torch.randn(2, 5, whole.config.hidden_size), torch.arange(5)[None]
    assert torch.equal(span(hidden, None, positions), Span.of(whole, 1, tiny.LAYERS)(hidden, None, positions))


@pytest.mark.parametrize(
    ("family", "experts", "stored"),
    [
        ("Mixtral", "num_local_experts", "model.layers.2.block_sparse_moe.experts.10.w3.weight"),
        ("Qwen3Moe", "num_experts", "model.layers.2.mlp.experts.10.up_proj.weight"),
    ],
)
def test_experts_that_are_stored_one_by_one_are_merged(family: str, experts: str, stored: str, tmp_path: Path) -> None:
    whole = tiny.model(family, **{experts: 11})
    whole.save_pretrained(tmp_path)
    manifest, span = describe_folder(tmp_path), Span(whole.config, 1, 3)
    own = span.wanted(manifest.tensors)
    assert stored in own
    assert own.keys() == {name for name in manifest.tensors if name.startswith(("model.layers.1.", "model.layers.2."))}
    load(span, span.merged(own, read(tmp_path, manifest, own)), "float32")
    hidden, positions = torch.randn(2, 5, whole.config.hidden_size), torch.arange(5)[None]
    assert torch.equal(span(hidden, None, positions), Span.of(whole, 1, 3)(hidden, None, positions))


def test_experts_that_do_not_fit_together_are_refused_in_a_line(tmp_path: Path) -> None:
    whole = tiny.model("Mixtral")
    whole.save_pretrained(tmp_path)
    manifest, span = describe_folder(tmp_path), Span(whole.config, 0, 1)
    own = span.wanted(manifest.tensors)
    tensors = dict(read(tmp_path, manifest, own))
    experts = "model.layers.0.block_sparse_moe.experts"
    norm, nameless = "model.layers.0.input_layernorm.weight", "layers.0.input_layernorm.weight"
    for given, said in [
        (tensors | {f"{experts}.3.w3.weight": torch.ones(3, 3)}, r"do not fit together \("),
        (
            {name: tensors[name] for name in tensors if ".w3." not in name},
            "do not fit together|part of the model wants",
        ),
        ({name: tensors[name] for name in tensors if ".3." not in name}, "part of the model wants"),
        (tensors | {nameless: tensors[norm]}, f"holds {nameless} twice"),
    ]:
        part = Span(whole.config, 0, 1)
        with pytest.raises(UserError, match=said) as told:
            load(part, part.merged(part.wanted(given), given.items()), "float32")
        assert "\n" not in str(told.value)
