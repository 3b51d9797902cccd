"""A decoder with experts as an architecture of transformers has it, which loads where there is no dedloc_kit.

It tells the same: a cell's score is the sum of its row's and its column's, so a linear gate whose rows are such sums
has the same scores, and the softmax over the chosen experts is that over all, divided by its sum.
"""

import inspect
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.errors import UserError
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.frozen import Frozen
from dedloc_kit.experts.mixture import Mixture, mixtures_of
from dedloc_kit.learning.models.families import DECODERS
from dedloc_kit.learning.models.packing_check import check_scores, tried
from dedloc_kit.learning.train.flat import Room, zeros_like, zeros_on_disk

_STOCK = {"llama": "qwen2_moe", "qwen2": "qwen2_moe", "qwen3": "qwen3_moe"}
"""What has the same attention, and experts in those layers that one names."""
_TRIED_TOKENS = 64


def why_not_stock(architecture: str) -> str:
    """Why transformers has no such architecture with experts, in one line with the fix; empty if it has one."""
    if architecture in _STOCK:
        return ""
    return (
        f"transformers has no {architecture} with experts, so this model is not written for it; a task.architecture "
        f"for which it has one is {', '.join(_STOCK)}"
    )


def stock(model: Any, settings: ExpertsConfig, folder: Path) -> nn.Module:
    """A model of transformers that tells the same as one with experts, to which `Frozen` ones are connected.

    It shares the other tensors of the model; its experts, which may be more than the memory holds, lie on the disk of
    that folder. Raises UserError if transformers has none.
    """
    if why := why_not_stock(model.config.model_type):
        raise UserError(why)
    theirs = _STOCK[model.config.model_type]
    with torch.device("meta"):  # in no memory: all of it is replaced
        made: Any = DECODERS.automatic.from_config(_config(model, settings, theirs), dtype=torch.float32).eval()
    try:
        made.load_state_dict(_tensors(model, made, partial(zeros_on_disk, folder)), assign=True)
        for name, buffer in model.named_buffers():  # what no state has, of positions
            owner, _, own = name.rpartition(".")
            setattr(made.get_submodule(owner), own, buffer)
        made.tie_weights()
        if lacking := [name for name, each in chain(made.named_parameters(), made.named_buffers()) if each.is_meta]:
            raise RuntimeError(f"it has {lacking[0]}")
    except (RuntimeError, AttributeError) as error:
        told = " ".join(str(error).split())[:200]
        raise UserError(f"transformers' {theirs} is not this {model.config.model_type} ({told})") from None
    ids = torch.arange(_TRIED_TOKENS)[None] % made.config.vocab_size
    with tried(made), tried(model):
        check_scores(made, made(input_ids=ids).logits[0], model(input_ids=ids).logits[0])
    whole: nn.Module = made
    return whole


def _config(model: Any, settings: ExpertsConfig, theirs: str) -> Any:
    own, config_class = model.config.to_dict(), CONFIG_MAPPING[theirs]
    known = {*inspect.signature(config_class.__init__).parameters, "head_dim"} - {"architectures", "dtype"}
    rows, columns = settings.grid
    experts = {
        "num_experts": rows * columns,
        "num_experts_per_tok": settings.top_k,
        "norm_topk_prob": True,
        "moe_intermediate_size": settings.hidden,
        "mlp_only_layers": [at for at in range(own["num_hidden_layers"]) if at not in settings.layers],
        "decoder_sparse_step": 1,
        "qkv_bias": any(name.endswith("q_proj.bias") for name, _ in model.named_parameters()),
        "shared_expert_intermediate_size": 1,  # the expert that all tokens go to: it says nothing
    }
    inherited = {key: value for key, value in own.items() if key in known}
    return config_class(**inherited | {key: value for key, value in experts.items() if key in known})


def _tensors(model: Any, made: Any, room: Room) -> dict[str, Tensor]:
    """All of a model's, by the names of the other one."""
    prefix_of = {id(module): f"{name}." for name, module in model.named_modules()}
    mixtures = {prefix_of[id(mixture)]: mixture for mixture in mixtures_of(model)}
    own = {name: each for name, each in model.state_dict().items() if not name.startswith(tuple(mixtures))}
    of_mixtures: dict[str, Tensor] = {}
    for prefix, mixture in mixtures.items():
        of_mixtures |= {f"{prefix}{name}": each for name, each in _of_mixture(mixture, room).items()}
    # Where all tokens go to one more expert, that is nothing.
    shared = {name: torch.zeros(each.shape) for name, each in made.state_dict().items() if "shared_expert" in name}
    return own | of_mixtures | shared


def _of_mixture(mixture: Mixture, room: Room) -> dict[str, Tensor]:
    experts, gate = mixture.link.experts, mixture.gate
    assert isinstance(experts, Frozen), "a model that is written has its experts here"
    rows, columns = len(gate.rows), len(gate.columns)
    networks = [
        experts.networks[ExpertName(mixture.layer, row, column)] for row in range(rows) for column in range(columns)
    ]
    hidden, width = networks[0].gate.shape
    shapes = (len(networks), 2 * hidden, width), (len(networks), width, hidden)
    gates_and_ups, downs = zeros_like([torch.empty(shape, device="meta") for shape in shapes], room)
    with torch.no_grad():
        for each, gate_and_up, down in zip(networks, gates_and_ups, downs, strict=True):
            torch.cat([each.gate, each.up], out=gate_and_up)
            down.copy_(each.down)
        return {
            "gate.weight": (gate.rows[:, None] + gate.columns[None]).flatten(0, 1),
            "experts.gate_up_proj": gates_and_ups,
            "experts.down_proj": downs,
        }
