"""What llama.cpp does not compute in the same way is refused, in one line with a way out."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf import write_gguf
from dedloc_kit.learning.models.families import DECODERS
from tests.export.gguf.small import save, save_model

INSTEAD = "export it with --to transformers"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("llama", "qwen3", "gemma3", "modernbert")}
    for name, folder in folders.items():
        save(folder, name, {"num_hidden_layers": 2})
    return folders


def refused(folder: Path) -> str:
    """The one line, after which nothing is there."""
    with pytest.raises(UserError) as raised:
        write_gguf(folder, folder / "out" / "model.gguf", "f32")
    assert not (folder / "out").exists() or not list((folder / "out").iterdir())
    line = str(raised.value)
    assert "\n" not in line
    return line


def edited(source: Path, folder: Path, values: dict[str, Any]) -> Path:
    """A model's folder with another configuration."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


@pytest.mark.parametrize(
    "model_type", ["gpt2", "albert", "bert", "resnet", "gemma2", "gemma3", "qwen2_moe", "smollm3", "../llama"]
)
def test_other_architectures_are_named_with_a_way_out(model_type: str, saved: dict[str, Path], tmp_path: Path) -> None:
    line = refused(edited(saved["llama"], tmp_path / "model", {"model_type": model_type}))
    assert line.startswith(f"GGUF files are made of llama, mistral, qwen3, gemma3, modernbert, not of {model_type!r}")
    assert INSTEAD in line


def test_a_model_with_experts_has_a_line_of_its_own(saved: dict[str, Path], tmp_path: Path) -> None:
    line = refused(edited(saved["qwen3"], tmp_path / "model", {"model_type": "qwen3_moe", "num_experts": 4}))
    assert line.startswith("a qwen3_moe with experts: there is no exact GGUF file")
    assert INSTEAD in line


SCALED = {"rope_theta": 1e4, "factor": 4.0}
YARN = {**SCALED, "rope_type": "yarn", "original_max_position_embeddings": 64}
TURNS = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("llama", {"rope_parameters": YARN}, "positions scaled by 'yarn'"),
        ("llama", {"rope_parameters": {**SCALED, "rope_type": "dynamic"}}, "positions scaled by 'dynamic'"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act: input should be 'silu', not 'gelu'"),
        ("llama", {"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ("qwen3", {"attention_bias": True}, "layers with biases"),
        ("gemma3", {"attention_bias": True}, "layers with biases"),
        ("gemma3", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types other than llama.cpp's"),
        ("gemma3", {"layer_types": ["full_attention"] * 2}, "layer_types other than llama.cpp's"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (
            "gemma3",
            {"rope_parameters": {**TURNS, "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}},
            "a rope_theta other than 10000 in layers with a window",
        ),
        ("modernbert", {"norm_bias": True}, "norm_bias"),
        ("modernbert", {"mlp_bias": True}, "layers with biases"),
        ("modernbert", {"hidden_activation": "silu"}, "hidden_activation"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 2}, "layer_types of no regular pattern"),
    ],
)
def test_what_has_no_exact_form_is_refused(
    name: str, values: dict[str, Any], message: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    line = refused(edited(saved[name], tmp_path / "model", values))
    assert message in line
    assert INSTEAD in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is damaged"),
        ("[]", "it holds no object"),
        ("[" * 100_000, "config.json is damaged"),
        (" " * 2_000_000, "it has more than 1048576 bytes"),
        ('{"model_type": "gemma3_text", "num_hidden_layers": 1000000000}', "num_hidden_layers"),
        ('{"model_type": "llama", "hidden_size": "x"}', "hidden_size"),
        ('{"model_type": "llama", "num_attention_heads": 0}', "num_attention_heads"),
        ('{"model_type": "llama", "num_key_value_heads": 1e400}', "num_key_value_heads"),
        ('{"model_type": ["llama"]}', "model_type"),
        ('{"model_type": "llama", "attn_implementation": "someone/else"}', "which is never run here"),
    ],
)
def test_a_hostile_configuration_is_one_line(text: str, message: str, saved: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(saved["llama"], tmp_path / "model")
    (folder / "config.json").write_text(text)
    assert message in refused(folder)


def test_a_folder_without_a_model_is_one_line(saved: dict[str, Path], tmp_path: Path) -> None:
    assert "holds no model of transformers (no config.json)" in refused(tmp_path)
    shutil.copy(saved["llama"] / "config.json", tmp_path)
    assert "holds no weights" in refused(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "model.safetensors is damaged" in refused(tmp_path)
    index = {"weight_map": {"model.norm.weight": "../llama/model.safetensors"}}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is no index of a model's weights" in refused(tmp_path)


def test_frequencies_of_llama3_are_those_of_transformers(tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    values = {"num_hidden_layers": 1, "head_dim": 64, "rope_parameters": rope}
    save(tmp_path, "llama", values)
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    factors = next(each for each in GGUFReader(tmp_path / "model.gguf").tensors if each.name == "rope_freqs.weight")
    config = DECODERS.config("llama", {"hidden_size": 256, "num_attention_heads": 4, **values}, {})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 5e5 ** (-np.arange(0, 64, 2) / 64)
    assert len(set(factors.data.round(3).tolist())) > 4  # long, short, and some between
    np.testing.assert_allclose(plain / factors.data, scaled.numpy(), rtol=1e-5)


def test_a_tied_model_needs_no_output_layer_even_if_its_file_has_one(tmp_path: Path) -> None:
    save(tmp_path, "llama", {"num_hidden_layers": 1, "tie_word_embeddings": False})
    edited(tmp_path, tmp_path / "tied", {"tie_word_embeddings": True})
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    write_gguf(tmp_path / "tied", tmp_path / "tied.gguf", "f32")
    names = [{each.name for each in GGUFReader(tmp_path / f"{name}.gguf").tensors} for name in ("model", "tied")]
    assert names[0] - names[1] == {"output.weight"}


def test_shared_layers_are_written_as_often_as_they_are_used(tmp_path: Path) -> None:
    save(tmp_path, "llama", {"num_hidden_layers": 3})
    model = save_model(tmp_path, "llama", {"num_hidden_layers": 3})
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    names = {each.name for each in GGUFReader(tmp_path / "model.gguf").tensors}
    assert {f"blk.{number}.attn_q.weight" for number in range(model.config.num_hidden_layers)} <= names
