"""Adapters in files, as peft has them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dedloc_kit.blocks.adapters.adapter_files import CONFIG, PROMPTS, WEIGHTS, load_adapter, save_adapter
from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.adapters.lora import LoraConfig, new_adapter
from dedloc_kit.errors import UserError
from tests.blocks import tiny

NAMES = {
    "Llama": ("self_attn.q_proj", "base_model.model.model.layers.3."),
    "GPT2": ("attn.c_attn", "base_model.model.transformer.h.3."),
    "Bloom": ("self_attention.dense", "base_model.model.transformer.h.3."),
    "OPT": ("fc1", "base_model.model.model.decoder.layers.3."),
    "GPTNeoX": ("attention.dense", "base_model.model.gpt_neox.layers.3."),
}


def adapter_of(family: str, prompt_tokens: int = 0) -> Adapter:
    """Of LoRA for one linear layer in each layer."""
    config = LoraConfig(rank=4, alpha=6.0, target_modules=(NAMES[family][0],), prompt_tokens=prompt_tokens)
    return new_adapter(config, tiny.config(family)).adapter()


@pytest.mark.parametrize("family", NAMES)
def test_its_tensors_are_named_as_pefts(family: str, tmp_path: Path) -> None:
    config, adapter, (path, prefix) = tiny.config(family), adapter_of(family), NAMES[family]
    save_adapter(adapter, tmp_path / "new", config, "me/model")
    stored = load_file(tmp_path / "new" / WEIGHTS)
    assert len(stored) == 2 * tiny.LAYERS
    for half in ("lora_A", "lora_B"):
        assert torch.equal(stored[f"{prefix}{path}.{half}.weight"], adapter.tensors[f"layers.3.{path}.{half}"])
    values = json.loads((tmp_path / "new" / CONFIG).read_text())
    expected = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6.0, "target_modules": [path]}
    expected |= {"fan_in_fan_out": family == "GPT2", "base_model_name_or_path": "me/model", "lora_dropout": 0.0}
    assert expected.items() <= values.items()
    assert load_adapter(tmp_path / "new", config).digest == adapter.digest


@pytest.mark.parametrize("lora", [True, False])
def test_prompts_before_layers_are_kept_beside(lora: bool, tmp_path: Path) -> None:
    adapter = adapter_of("Llama", prompt_tokens=2)
    if not lora:
        adapter = Adapter.of({name: it for name, it in adapter.tensors.items() if name.endswith("prompt")})
    save_adapter(adapter, tmp_path, tiny.config("Llama"))
    assert (tmp_path / CONFIG).exists() == (tmp_path / WEIGHTS).exists() == lora
    assert load_adapter(tmp_path, tiny.config("Llama")).digest == adapter.digest


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"use_rslora": True}, "use_rslora is not supported"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is not supported"),
        ({"peft_type": "IA3"}, "adapter_config.json is not of LoRA"),
        ({"r": 0}, "adapter_config.json has no alpha and rank"),
        ({"lora_alpha": "16"}, "adapter_config.json has no alpha and rank"),
        ({"lora_alpha": 1e9}, "scaling"),
    ],
)
def test_another_kind_of_adapter_is_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    save_adapter(adapter_of("Llama"), tmp_path, tiny.config("Llama"))
    values = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**values, **changed}))
    with pytest.raises(UserError, match=f"^the adapter in .* cannot be used with this model: .*{why}"):
        load_adapter(tmp_path, tiny.config("Llama"))


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("base_model.model.lm_head.lora_A.weight", (4, 32), "lm_head.lora_A.weight' is no LoRA of a layer"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", (32, 1), "tensors"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 32), "is no LoRA of a layer"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", (4, 31), "this model wants"),
        ("base_model.model.model.layers.4.self_attn.q_proj.lora_A.weight", (4, 32), "comes without"),
    ],
)
def test_tensors_that_are_none_of_a_layers_lora_are_refused(
    name: str, shape: tuple[int, int], why: str, tmp_path: Path
) -> None:
    save_adapter(adapter_of("Llama"), tmp_path, tiny.config("Llama"))
    save_file({**load_file(tmp_path / WEIGHTS), name: torch.zeros(shape)}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=f"^the adapter in .* cannot be used with this model: .*{why}"):
        load_adapter(tmp_path, tiny.config("Llama"))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    save_adapter(adapter_of("Llama"), tmp_path, tiny.config("Llama"))
    with pytest.raises(UserError, match="is for none of the layers 0:2"):
        load_adapter(tmp_path, tiny.config("Llama", num_hidden_layers=2))
    with pytest.raises(UserError, match="is no LoRA of a layer"):
        load_adapter(tmp_path, tiny.config("GPT2"))


def test_files_that_are_missing_too_large_or_damaged_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter_config.json cannot be read \(No such file"):
        load_adapter(tmp_path, tiny.config("Llama"))
    hostile = {"too large": " " * (2**20 + 1), "nested too deeply": "[" * 2**19, "property name": "{", "utf-8": "\xff"}
    for why, text in hostile.items():
        (tmp_path / CONFIG).write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=f"^the adapter in .* cannot be used with this model: .*{why}"):
            load_adapter(tmp_path, tiny.config("Llama"))
    (tmp_path / PROMPTS).write_bytes(b"nonsense")
    (tmp_path / CONFIG).unlink()
    with pytest.raises(UserError, match="is damaged"):
        load_adapter(tmp_path, tiny.config("Llama"))


def test_lora_of_several_ranks_is_not_saved(tmp_path: Path) -> None:
    tensors = {
        f"layers.{rank}.self_attn.q_proj.lora_{half}": torch.zeros(shape)
        for rank in (1, 2)
        for half, shape in {"A": (rank, 32), "B": (32, rank)}.items()
    }
    with pytest.raises(UserError, match=r"several ranks \[1, 2\]"):
        save_adapter(Adapter.of(tensors), tmp_path, tiny.config("Llama"))
