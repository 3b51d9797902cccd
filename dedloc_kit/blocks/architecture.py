"""How transformers builds a causal language model: where its layers are, and what of its configuration is theirs."""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from dedloc_kit.errors import UserError
from dedloc_kit.pretrained import check_kernels


@dataclass(frozen=True)
class Layout:
    """Where the layers of a model are, by names."""

    base: str
    """The attribute of the whole model that holds its base model."""
    holder: str
    """The module in the base model that runs the layers; empty for the base model itself."""
    layers: str
    """Their list in it."""

    @classmethod
    def of(cls, model: Any) -> "Layout":
        """Raises UserError for a model whose layers are not in one list."""
        for path, module in model.base_model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
                holder, _, layers = path.rpartition(".")
                return cls(model.base_model_prefix, holder, layers)
        raise UserError(f"the layers of {model.config.model_type} are not in one list, so it cannot be divided")

    @property
    def path(self) -> str:
        """Of the layers, from the base model on."""
        return f"{self.holder}.{self.layers}" if self.holder else self.layers

    def layer_of(self, name: str) -> tuple[int, str] | None:
        """The layer to which a tensor of a checkpoint belongs, and its name there; None for one of no layer.

        Some checkpoints name the tensors of the base model without its prefix.
        """
        found = re.fullmatch(rf"(?:{re.escape(self.base)}\.)?{re.escape(self.path)}\.(\d{{1,9}})\.(.+)", name, re.ASCII)
        return (int(found[1]), found[2]) if found else None

    def outside(self, names: Iterable[str]) -> list[str]:
        """Those tensors of a checkpoint that belong to no layer: the user's."""
        return [name for name in names if self.layer_of(name) is None]


def causal_class(config: Any) -> Any:
    """The library's class for a configuration; raises UserError for what is no decoder of text alone."""
    if config.get_text_config(decoder=True) is not config or config.is_encoder_decoder:
        raise UserError(f"{config.model_type} is more than a decoder of text; give the configuration of that part")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"transformers has no causal language model of type {config.model_type}")
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def configuration(values: Mapping[str, Any]) -> Any:
    """The library's configuration of these values, as a `config.json` says them; raises UserError."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UserError(f"this transformers knows no model of type {str(kind)[:40]!r}; a newer one may")
    try:
        check_kernels(values)
        return CONFIG_MAPPING[kind].from_dict(dict(values))
    except Exception as error:  # each family checks its own values in its own way
        raise UserError(f"the configuration of this {kind} model is wrong: {error!r:.200}") from None


def skeleton(config: Any) -> Any:
    """The whole model on the `meta` device, without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config))


def cut(config: Any, begin: int, end: int) -> Any:
    """The configuration of layers [begin, end): every list that has an entry for each layer has theirs alone."""
    part, layers = copy.deepcopy(config), config.num_hidden_layers
    part.num_hidden_layers = end - begin
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(part, name, value[begin:end])
    return part
