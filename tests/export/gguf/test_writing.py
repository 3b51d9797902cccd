"""A GGUF file of every architecture, read back; whatever goes wrong leaves no half of one."""

import json
import math
import multiprocessing
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, TokenType, dequantize
from safetensors.torch import load_file, save_file

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf import write_gguf
from tests.export.gguf.small import VOCABULARY, save, save_hollow, save_model
from tests.peak import Peak

FEW_KEYS = {"num_key_value_heads": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**FEW_KEYS, "head_dim": 32}),
    "llama with all its own": ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", FEW_KEYS),
    "qwen3": ("qwen3", FEW_KEYS),
    "gemma3": ("gemma3", FEW_KEYS),
    "modernbert": ("modernbert", {}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, (architecture, values) in CASES.items():
        folders[name] = tmp_path_factory.mktemp(architecture)
        save(folders[name], architecture, {"num_hidden_layers": 2, **values})
    return folders


def value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def tensors(reader: GGUFReader) -> dict[str, np.ndarray[Any, Any]]:
    return {each.name: dequantize(each.data, each.tensor_type) for each in reader.tensors}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_back(name: str, saved: dict[str, Path], tmp_path: Path) -> None:
    write_gguf(saved[name], tmp_path / "model.gguf", "f32")
    reader = GGUFReader(tmp_path / "model.gguf")
    architecture = {"mistral": "llama", "modernbert": "modern-bert"}.get(CASES[name][0], CASES[name][0])
    config = json.loads((saved[name] / "config.json").read_text())
    assert value(reader, "general.architecture") == architecture
    assert value(reader, f"{architecture}.block_count") == 2
    assert value(reader, f"{architecture}.embedding_length") == 64
    assert value(reader, f"{architecture}.feed_forward_length") == 96
    assert value(reader, f"{architecture}.attention.head_count") == 4
    assert value(reader, f"{architecture}.attention.head_count_kv") == config.get("num_key_value_heads", 4)
    assert value(reader, f"{architecture}.attention.key_length") == config.get("head_dim")
    assert value(reader, "tokenizer.ggml.pre") == "qwen35"
    assert len(value(reader, "tokenizer.ggml.tokens")) == len(value(reader, "tokenizer.ggml.token_type")) == VOCABULARY
    found = tensors(reader)
    source = load_file(saved[name] / "model.safetensors")
    needless = {"decoder.bias", "head.dense.weight", "head.norm.weight"}
    assert len(found) == len(source.keys() - needless)
    embedded = "model.embeddings.tok_embeddings" if architecture == "modern-bert" else "model.embed_tokens"
    np.testing.assert_array_equal(found["token_embd.weight"], source[f"{embedded}.weight"].numpy())


def test_queries_and_keys_of_a_llama_stand_in_pairs(saved: dict[str, Path], tmp_path: Path) -> None:
    write_gguf(saved["llama"], tmp_path / "model.gguf", "f32")
    found, source = tensors(GGUFReader(tmp_path / "model.gguf")), load_file(saved["llama"] / "model.safetensors")
    for ours, theirs in ("attn_q", "q_proj"), ("attn_k", "k_proj"):
        rows = source[f"model.layers.1.self_attn.{theirs}.weight"].numpy()
        for row in range(len(rows)):
            head, at = divmod(row, 32)
            paired = head * 32 + (2 * at if at < 16 else 2 * (at - 16) + 1)
            np.testing.assert_array_equal(found[f"blk.1.{ours}.weight"][paired], rows[row])
    values = source["model.layers.1.self_attn.v_proj.weight"].numpy()
    np.testing.assert_array_equal(found["blk.1.attn_v.weight"], values)


def test_norms_of_gemma3_have_their_one_and_the_scale_of_attention(saved: dict[str, Path], tmp_path: Path) -> None:
    write_gguf(saved["gemma3"], tmp_path / "model.gguf", "f32")
    found, source = tensors(GGUFReader(tmp_path / "model.gguf")), load_file(saved["gemma3"] / "model.safetensors")
    folded = math.sqrt(16 / 256)  # the size of a head, and query_pre_attn_scalar as transformers has it
    for ours, theirs, scale in (
        ("output_norm", "norm", 1.0),
        ("blk.1.attn_q_norm", "layers.1.self_attn.q_norm", folded),
        ("blk.1.attn_k_norm", "layers.1.self_attn.k_norm", 1.0),
        ("blk.1.attn_norm", "layers.1.input_layernorm", 1.0),
        ("blk.1.post_attention_norm", "layers.1.post_attention_layernorm", 1.0),
        ("blk.1.ffn_norm", "layers.1.pre_feedforward_layernorm", 1.0),
        ("blk.1.post_ffw_norm", "layers.1.post_feedforward_layernorm", 1.0),
    ):
        wanted = (1.0 + source[f"model.{theirs}.weight"].numpy()) * scale
        np.testing.assert_allclose(found[f"{ours}.weight"], wanted, rtol=1e-6)


def test_a_window_that_llama_cpp_does_not_know_bounds_the_context(
    saved: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_gguf(saved["mistral"], tmp_path / "model.gguf", "f32")
    assert value(GGUFReader(tmp_path / "model.gguf"), "llama.context_length") == 4096  # of 131,072
    assert "takes 4096 tokens" in caplog.text
    assert "PARAMETER num_ctx 4096" in (tmp_path / "Modelfile").read_text()


def test_an_encoder_says_how_it_looks_around_and_pools(saved: dict[str, Path], tmp_path: Path) -> None:
    write_gguf(saved["modernbert"], tmp_path / "model.gguf", "f32")
    reader = GGUFReader(tmp_path / "model.gguf")
    keys = {
        "attention.causal": False,
        "attention.sliding_window": 128,
        "attention.sliding_window_pattern": 2,
        "pooling_type": 1,
        "rope.freq_base": 160_000.0,
        "rope.freq_base_swa": 10_000.0,
    }
    assert {key: value(reader, f"modern-bert.{key}") for key in keys} == keys
    assert value(reader, "tokenizer.ggml.add_bos_token")
    assert value(reader, "tokenizer.ggml.add_eos_token")
    assert (tmp_path / "Modelfile").read_text() == "FROM ./model.gguf\n"


@pytest.mark.parametrize(
    ("kind", "type_", "tolerance"), [("f16", GGMLQuantizationType.F16, 1e-3), ("q8_0", GGMLQuantizationType.Q8_0, 8e-3)]
)
def test_matrices_are_stored_as_asked_and_vectors_exactly(
    kind: Any, type_: GGMLQuantizationType, tolerance: float, saved: dict[str, Path], tmp_path: Path
) -> None:
    write_gguf(saved["qwen3"], tmp_path / "model.gguf", kind)
    source = load_file(saved["qwen3"] / "model.safetensors")
    for tensor in GGUFReader(tmp_path / "model.gguf").tensors:
        vector = len(tensor.shape) == 1
        assert tensor.tensor_type == (GGMLQuantizationType.F32 if vector else type_), tensor.name
        if tensor.name == "blk.1.ffn_down.weight":
            wanted = source["model.layers.1.mlp.down_proj.weight"].numpy()
            found = dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_allclose(found, wanted, atol=tolerance * float(np.abs(wanted).max()), rtol=0)


def test_rows_that_are_no_whole_blocks_are_stored_in_two_bytes(tmp_path: Path) -> None:
    save(tmp_path, "llama", {"num_hidden_layers": 1, "intermediate_size": 40})
    write_gguf(tmp_path, tmp_path / "model.gguf", "q8_0")
    kinds = {tensor.name: tensor.tensor_type for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == GGMLQuantizationType.F16
    assert kinds["blk.0.ffn_up.weight"] == GGMLQuantizationType.Q8_0


def test_rows_that_the_tokenizer_lacks_are_unused(tmp_path: Path) -> None:
    save(tmp_path, "llama", {"num_hidden_layers": 1})
    save_model(tmp_path, "llama", {"num_hidden_layers": 1}, VOCABULARY + 3)
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    types = value(GGUFReader(tmp_path / "model.gguf"), "tokenizer.ggml.token_type")
    assert types[:2] == [TokenType.CONTROL] * 2
    assert types[-4:] == [TokenType.NORMAL, *[TokenType.UNUSED] * 3]


def test_a_model_in_several_files_is_the_same_one(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(saved["llama"], tmp_path / "shards")
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for number, name in enumerate(whole):
        index[name] = f"model-{number % 2 + 1:05}-of-00002.safetensors"
    for shard in set(index.values()):
        save_file({name: whole[name] for name in whole if index[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    for name, source in (("one", saved["llama"]), ("several", folder)):
        write_gguf(source, tmp_path / f"{name}.gguf", "f16")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "several.gguf").read_bytes()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def changed(folder: Path, **weights: Any) -> Path:
    """Replace weights of a model by what a function makes of them, or take them out."""
    stored = load_file(folder / "model.safetensors")
    for name, change in weights.items():
        stored[name] = change(stored.get(name))
    save_file({name: each for name, each in stored.items() if each is not None}, folder / "model.safetensors")
    return folder


def spoiled(number: float) -> Any:
    def change(weight: torch.Tensor) -> torch.Tensor:
        weight[-1, -1] = number
        return weight

    return change


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("kind", "name", "change", "message"),
    [
        ("f32", DOWN, spoiled(math.nan), f"the weight {DOWN} holds numbers that are not finite"),
        ("f16", DOWN, spoiled(1e5), f"the weight {DOWN} holds 1e[+]05, too large for f16; choose f32"),
        ("f32", DOWN, lambda _: None, f"the model lacks the weight {DOWN}"),
        ("f32", DOWN, lambda weight: weight[1:].clone(), r"has the shape \(63, 96\), and by config.json \(64, 96\)"),
        ("f32", DOWN, lambda weight: weight.to(torch.int32), "is stored as 'I32', not in floating point"),
        ("f32", "model.gate.weight", lambda _: torch.ones(1), "has the weight 'model.gate.weight', which llama.cpp"),
    ],
)
def test_a_bad_weight_is_one_line_and_leaves_the_old_file(
    kind: Any, name: str, change: Any, message: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder, out = shutil.copytree(saved["qwen3"], tmp_path / "model"), tmp_path / "out"
    write_gguf(folder, out / "model.gguf", "q8_0")
    before = (out / "model.gguf").read_bytes()
    with pytest.raises(UserError, match=message) as raised:
        write_gguf(changed(folder, **{name: change}), out / "model.gguf", kind)
    assert "\n" not in str(raised.value)
    assert left(out) == ["Modelfile", "model.gguf"]
    assert (out / "model.gguf").read_bytes() == before


def test_a_full_disk_leaves_nothing(saved: dict[str, Path], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(UserError, match=r"model.gguf cannot be written \(File too large\); choose another place"):
            write_gguf(saved["llama"], tmp_path / "out" / "model.gguf", "f32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(tmp_path / "out") == []


def test_a_place_that_cannot_be_written_is_one_line(saved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written \(.*\); choose another place"):
        write_gguf(saved["llama"], tmp_path / "file" / "model.gguf", "f32")


def killed(folder: Path, out: Path) -> None:
    """Write until the kernel ends this process: with the first byte beyond 100,000."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    write_gguf(folder, out, "f32")


@pytest.mark.child
def test_an_export_that_is_killed_leaves_no_file_of_that_name(saved: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out" / "model.gguf"
    process = multiprocessing.get_context("fork").Process(target=killed, args=(saved["llama"], out))
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGXFSZ
    assert left(out.parent) == [".model.gguf.part"]
    write_gguf(saved["llama"], out, "f32")
    assert left(out.parent) == ["Modelfile", "model.gguf"]


def test_a_large_model_is_not_held_in_memory(tmp_path: Path) -> None:
    save(tmp_path, "llama", {"num_hidden_layers": 1})
    write_gguf(tmp_path, tmp_path / "model.gguf", "q8_0")  # what is imported and kept for good is no matter here
    size = save_hollow(tmp_path, {"num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 8192})
    assert size > 100_000_000
    peak = Peak()
    peak.start()
    write_gguf(tmp_path, tmp_path / "model.gguf", "q8_0")
    assert peak.end() < 0.5 * size
