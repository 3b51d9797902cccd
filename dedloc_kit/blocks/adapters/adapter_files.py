"""An adapter's files, as `peft` reads and writes those of LoRA."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dedloc_kit.blocks.adapters.adapters import Adapter, AdapterForm, layer_of, parts
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.manifest import opened, stored_as
from dedloc_kit.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PROMPTS = "layer_prompts.safetensors"
"""Beside them, under our own names: `peft` knows no prompts before layers."""
_PREFIX, _SUFFIX = "base_model.model.", ".weight"
_MAX_CONFIG_BYTES = 2**20
_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_OTHER_WAYS = (
    *("use_rslora", "use_dora", "use_qalora", "use_bdlora", "rank_pattern", "alpha_pattern"),
    *("layer_replication", "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config"),
)
"""Settings of `peft` with which the same tensors mean something else."""


def save_adapter(adapter: Adapter, folder: Path, model_config: Any, model: str = "") -> None:
    """Raises UserError for LoRA of several ranks.

    :param model: the name or folder of the model that it is for, for whoever loads it with `peft`
    """
    span = _without_weights(model_config)
    prompts, lora, linear, ranks = dict[str, Tensor](), dict[str, Tensor](), dict[str, nn.Module](), set[int]()
    for name, tensor in adapter.tensors.items():
        number, path, kind = parts(name)
        if path is None:
            prompts[name] = tensor.contiguous()
        else:
            layer = f"{span.layout.base}.{span.layout.path}.{number}"
            lora[f"{_PREFIX}{layer}.{path}.{kind}{_SUFFIX}"] = tensor.contiguous()
            linear[path] = layer_of(span, number).get_submodule(path)
            ranks.add(tensor.shape[0 if kind == "lora_A" else 1])
    if len(ranks) > 1:
        raise UserError(f"LoRA of several ranks {sorted(ranks)} cannot be saved; take one")
    folder.mkdir(parents=True, exist_ok=True)
    if prompts:
        save_file(prompts, folder / PROMPTS)
    for rank in ranks:
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": model,
            "r": rank,
            "lora_alpha": adapter.form.scaling * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted(linear),
            "fan_in_fan_out": any(isinstance(module, Conv1D) for module in linear.values()),
            "inference_mode": True,
        }
        save_file(lora, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapter(folder: Path, model_config: Any) -> Adapter:
    """What `save_adapter` or `peft` wrote; raises UserError if it is for another model, or not of plain LoRA."""
    span, scaling, tensors = _without_weights(model_config), 1.0, dict[str, Tensor]()

    def own_name(stored: str) -> str:
        found = span.layout.layer_of(stored.removeprefix(_PREFIX))
        if found is None or not stored.startswith(_PREFIX) or not stored.endswith(_SUFFIX):
            raise ValueError(f"{stored!r:.120} is no LoRA of a layer")
        return f"layers.{found[0]}.{found[1].removesuffix(_SUFFIX)}"

    has_prompts = (folder / PROMPTS).is_file()
    try:
        if not has_prompts or (folder / CONFIG).is_file():
            scaling = _scaling(folder / CONFIG)
            tensors |= _read(folder / WEIGHTS, own_name, span)
        if has_prompts:
            tensors |= _read(folder / PROMPTS, str, span)
        return Adapter.of(tensors, scaling)
    except ValueError as error:
        raise UserError(f"the adapter in {folder} cannot be used with this model: {error}") from None


def _without_weights(model_config: Any) -> Span:
    return Span(model_config, 0, model_config.num_hidden_layers)


def _scaling(path: Path) -> float:
    """What a configuration of `peft` says; raises ValueError if it is not of plain LoRA."""
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"{path.name} is too large")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(values, dict) or values.get("peft_type") != "LORA":
        raise ValueError(f"{path.name} is not of LoRA")
    if others := [name for name in _OTHER_WAYS if values.get(name)]:
        raise ValueError(f"{others[0]} is not supported")
    alpha, rank = values.get("lora_alpha"), values.get("r")
    if not isinstance(alpha, int | float) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"{path.name} has no alpha and rank")
    return alpha / rank


def _read(path: Path, own_name: Callable[[str], str], span: Span) -> dict[str, Tensor]:
    """The tensors of a file by our names, not before they are known to fit."""
    with opened(path) as file:
        names = {own_name(stored): stored for stored in file.keys()}  # noqa: SIM118 (it is no mapping)
        described = {}
        for own, stored in names.items():
            dtype, shape = stored_as(file, stored)
            described[own] = {"dtype": _FLOATS.get(dtype, dtype), "shape": shape}
        AdapterForm.parse({"tensors": described}).check(span)
        return {own: file.get_tensor(stored) for own, stored in names.items()}
