"""A model's configuration within bounds: what transformers makes of its config.json, as GGUF needs it."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf.refusing import refused
from dedloc_kit.pretrained import CONFIG, check_kernels
from dedloc_kit.validation import describe

MAX_BYTES = 2**20
"""Of a JSON file that is no tokenizer."""
ARCHITECTURES = ("llama", "mistral", "qwen3", "gemma3_text", "modernbert")
"""By their names in transformers."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=512)]
"""llama.cpp takes no more."""
Positive = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
Attention = Literal["full_attention", "sliding_attention"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Sizes(_Section):
    """What decides how much memory the configuration itself takes, as it stands in the file."""

    model_type: Annotated[str, Field(min_length=1, max_length=80)]
    num_hidden_layers: Layers | None = None
    num_attention_heads: Size | None = None
    hidden_size: Size | None = None


class Rope(BaseModel):
    """How positions turn queries and keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rope_type: Literal["default", "linear", "llama3"] = "default"
    rope_theta: Positive
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Size | None = None
    partial_rotary_factor: Literal[1] | None = None


class RopeByLayer(_Section):
    """The same for architectures that turn differently in layers with a window."""

    full_attention: Rope
    sliding_attention: Rope


class _Model(_Section):
    """What all architectures have."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    max_position_embeddings: Size
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool
    layer_types: Annotated[tuple[Attention, ...], Field(max_length=512)] = ()


class _Decoder(_Model):
    num_key_value_heads: Size
    head_dim: Size
    rms_norm_eps: Positive
    sliding_window: Size | None = None


class Llama(_Decoder):
    """llama, mistral and qwen3."""

    hidden_act: Literal["silu"]
    rope_parameters: Rope


class Gemma3(_Decoder):
    """The decoder of gemma3."""

    hidden_activation: Literal["gelu_pytorch_tanh"]
    rope_parameters: RopeByLayer
    query_pre_attn_scalar: Positive
    attn_logit_softcapping: None = None
    final_logit_softcapping: None = None
    use_bidirectional_attention: Literal[False] | None = None


class ModernBert(_Model):
    """The encoder of ModernBERT."""

    hidden_activation: Literal["gelu", "gelu_pytorch_tanh"]
    rope_parameters: RopeByLayer
    norm_eps: Positive
    norm_bias: Literal[False]
    local_attention: Annotated[int, Field(ge=2, le=2**24)]


Known = TypeVar("Known", bound=_Model)


def read_json(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """An object in a JSON file of a model's folder; raises UserError if it is none or too large."""
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
        if len(text) > limit:
            raise ValueError(f"it has more than {limit} bytes")
        values = json.loads(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:200]}); export the model again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged (it holds no object); export the model again")
    return values


def read_config(folder: Path) -> dict[str, Any]:
    """All that transformers knows of the model in a folder, its own defaults included.

    Raises UserError if there is no configuration, transformers refuses it, or its architecture has no form in GGUF.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} holds no model of transformers (no {CONFIG}); GGUF files are made of such alone")
    values = read_json(path)
    name = _parsed(_Sizes, values, path).model_type
    if any(values.get(key) for key in _EXPERTS):
        raise refused(f"a {name[:40]} with experts")
    if name not in ARCHITECTURES:
        known = ", ".join(each.removesuffix("_text") for each in ARCHITECTURES)
        raise UserError(
            f"GGUF files are made of {known}, not of {name!r:.60}; export it with --to transformers, which writes all"
        )
    try:
        check_kernels(values)
        found: dict[str, Any] = CONFIG_MAPPING[name].from_dict(values).to_dict()
    except Exception as error:  # ValueError, TypeError, KeyError, and what `strict` dataclasses raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path} cannot be used ({said[-1].strip()[:200]}); export the model again") from None
    return found


def parsed(kind: type[Known], values: dict[str, Any], path: Path) -> Known:
    """The part of a configuration that GGUF needs; raises UserError if it has none that llama.cpp computes."""
    for rope in _ropes(values.get("rope_parameters")):
        if (scaling := rope.get("rope_type", "default")) not in ("default", "linear", "llama3"):
            raise refused(f"positions scaled by {scaling!r:.40}, which llama.cpp computes in another way")
    model = _parsed(kind, values, path)
    if len(model.layer_types) not in (0, model.num_hidden_layers):
        raise UserError(f"{path} has {len(model.layer_types)} layer_types for {model.num_hidden_layers} layers")
    return model


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    if not isinstance(parameters, dict):
        return []
    return [each for each in (parameters, *parameters.values()) if isinstance(each, dict)]


_Parsed = TypeVar("_Parsed", bound=BaseModel)


def _parsed(kind: type[_Parsed], values: dict[str, Any], path: Path) -> _Parsed:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refused(f"{path.name}: {describe(error, kind)}") from None
