"""A model on this machine to chat with: a folder that transformers loads, one of the Hub, or a run's best checkpoint.

The folder is hostile until it is checked: what its configuration asks for may take no more memory than its weights do.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig
from transformers.models.auto import modeling_auto

from dedloc_kit.blocks.architecture import causal_class, configuration, skeleton
from dedloc_kit.blocks.past import Past
from dedloc_kit.display.human import size
from dedloc_kit.errors import UserError
from dedloc_kit.export.folder import as_folder
from dedloc_kit.export.source import ATTEMPTS, Finished, Trained, find, model_names
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision
from dedloc_kit.inference.answering import ChatModel
from dedloc_kit.inference.turns import Told
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.train.computing.device import pick_device
from dedloc_kit.machine.hardware import free_bytes, free_memory
from dedloc_kit.machine.paths import expanded
from dedloc_kit.pretrained import CONFIG, load_weights

_MAX_CONFIG_BYTES = 2**20
_MOST_PARTS = 4096
"""Layers, or experts of a layer: each may be some objects of Python."""
_SAMPLING = {"temperature": (1e-3, 1e3), "top_k": (0, 2**31), "top_p": (1e-6, 1.0), "min_p": (0.0, 1.0)}
_PENALTY = {"repetition_penalty": (1e-3, 1e3)}
"""Of a model's generation_config.json: how it chooses words, each with its bounds. All else there is not for a chat."""
_MASKED = "fills in hidden words and does not write; notebooks/use_model.ipynb uses it"
_DRAWS = "draws pictures and does not write; notebooks/draw.ipynb draws with it"
_REWRITES = "fills in what a text lacks and does not chat; load it with AutoModelForSeq2SeqLM of transformers"
_SEES = "learns from pictures and does not write; dedloc evaluate CHECKPOINT --run RUN.toml tells what it sees"
_INSTEAD = {
    "albert": _MASKED,
    "encoder": _MASKED,
    "span-corruption": _REWRITES,
    "swav": _SEES,
    "text-to-image": _DRAWS,
}
"""What is to be done with the models of other tasks."""


Device = Literal["auto", "cpu", "cuda"]


def local(
    where: str,
    told: Told,
    *,
    device: Device = "auto",
    data: Mapping[str, Path] | None = None,
    task_module: str | None = None,
) -> ChatModel:
    """See `chat.chat_with`; raises UserError with what is wrong and what to do instead.

    :param where: as for `export.source.find`, as `data`
    :param task_module: as for `create_task`
    """
    if Path(where).suffix == ".gguf":
        raise UserError(
            f"{where} is for llama.cpp and ollama; talk with it there, or name the model that it was made of"
        )
    told("looking at the model")
    if ((folder := expanded(where)) / CONFIG).is_file():
        _checked(_values(folder), where)
    elif not folder.exists() and (named := repository_and_revision(where)):
        with suppress(HubUnavailable):  # said below
            _checked(_values(model_files(*named, [CONFIG])), where)  # before all of it is downloaded
    try:
        return _found(where, told, pick_device(device), data, task_module)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{where} cannot be read, or written to a temporary folder ({getattr(error, 'strerror', None) or error}); "
            "make room, or name a folder with more in TMPDIR"
        ) from None


def _found(
    where: str, told: Told, device: torch.device, data: Mapping[str, Path] | None, task_module: str | None
) -> ChatModel:
    for _ in range(ATTEMPTS):
        found = find(where, data=data)
        if isinstance(found, Trained) and (instead := _INSTEAD.get(found.run.task.name)):
            raise UserError(f"the model of {found.run.run_id} {instead}")
        name = f"{found.name}, step {found.step}" if isinstance(found, Trained) else found.name
        told(f"reading {name}")
        with as_folder(found, task_module) as folder:
            try:
                loaded = _loaded(folder, name, device)
            except UserError:
                if _is_as_it_was(found, folder):
                    raise
            else:
                if _is_as_it_was(found, folder):
                    return loaded
    raise UserError(f"{where} changes faster than it can be read; try again")


def _is_as_it_was(found: Finished | Trained, folder: Path) -> bool:
    """Whether the run has not put another model into its folder while that was read."""
    return isinstance(found, Finished) or folder.parent != found.folder or found.finished is not None


def _loaded(folder: Path, name: str, device: torch.device) -> ChatModel:
    config = configuration(_checked(_values(folder), str(folder)))
    causal_class(config)
    _check_memory(folder, config, device)
    try:
        tokenizer = load_tokenizer(str(folder.absolute()))
        if len(tokenizer) > config.vocab_size:
            raise UserError(
                f"the tokenizer in {folder} has {len(tokenizer)} tokens and the model {config.vocab_size}; put the "
                "tokenizer there that the model was trained with"
            )
        model, missing = load_weights(AutoModelForCausalLM, folder, config=config, dtype="auto")
        model.generation_config = _generation(model.generation_config, config.vocab_size)
        model.eval().requires_grad_(False).to(device)
    except UserError:
        raise
    except Exception as error:  # every family, and every library that reads a file, has its own
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"the model in {folder} cannot be loaded ({said}); get it again") from None
    if missing:
        raise UserError(f"{folder} lacks {len(missing)} weights of the model, such as {missing[0]:.100}; get it again")
    return ChatModel(name, model, tokenizer, partial(_LocalSession, model))


def _values(folder: Path) -> dict[str, Any]:
    """What a model's config.json says."""
    path = folder / CONFIG
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_CONFIG_BYTES + 1)
        if len(text) > _MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is no table")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be used ({error}); get the model again") from None
    return values


def _checked(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The same; raises UserError with what to do instead if it is no model to chat with."""
    if instead := _instead(values):
        raise UserError(f"{name} {instead}")
    return values


def _instead(values: Mapping[str, Any]) -> str:
    """Why one cannot chat with the model of a configuration, and what can be done with it; empty if one can."""
    named = values.get("architectures")
    names = {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()
    kind = values.get("model_type")
    if "drawing" in values and kind is None:
        return _DRAWS
    if values.get("is_encoder_decoder"):
        return _REWRITES
    if values.get("quantization_config"):
        return "is quantized, and such models are not loaded here; name the model that it was made of"
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if names & set(causal.values()) or (not names and kind in causal):
        return ""
    if any(names & {of_kind.get(kind)} for of_kind in masked) and kind in masked[0]:
        return _MASKED
    return f"is no causal language model (its {CONFIG} names {', '.join(sorted(names))[:200] or kind!r:.60}); name one"


def _check_memory(folder: Path, config: Any, device: torch.device) -> None:
    """Raise UserError if the weights are fewer than the model's, or more than the memory holds: before any is taken."""
    odd = {key: value for key, value in config.to_dict().items() if isinstance(value, int) and value > _MOST_PARTS}
    if crowded := [key for key in odd if "layers" in key or "experts" in key]:
        raise UserError(f"{crowded[0]} in {folder / CONFIG} is {odd[crowded[0]]}, which no model has; get it again")
    stored = stored_bytes = 0
    for name in model_names(folder):
        if name.endswith(".safetensors"):
            stored_bytes += (folder / name).stat().st_size
            stored += _elements(folder / name)
    try:
        whole = skeleton(config)
    except Exception as error:  # every family checks its own values
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{folder / CONFIG} describes no model ({said}); get it again") from None
    parameters = sum(each.numel() for each in whole.parameters())
    if parameters > stored:
        raise UserError(f"{folder} has {stored:,} weights and the model needs {parameters:,}; get it again")
    needed = stored_bytes + sum(each.numel() * each.element_size() for each in whole.buffers())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()
    if needed > free:
        raise UserError(
            f"the model in {folder} needs {size(needed)} of memory and {size(free)} are free; {free_memory()}, or let "
            "a community serve it (docs/serve.md)"
        )


def _elements(path: Path) -> int:
    """The numbers in a file of weights."""
    try:
        with safe_open(path, framework="pt") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (no dict)
    except Exception as error:  # SafetensorError, and what the operating system says
        raise UserError(f"{path} cannot be read ({str(error)[:200]}); get the model again") from None


def _generation(given: Any, vocabulary: int) -> GenerationConfig:
    """How a model chooses words, of what its files say of that; raises ValueError."""
    ends = given.eos_token_id if isinstance(given.eos_token_id, list) else [given.eos_token_id]
    known = [token for token in ends if isinstance(token, int) and 0 <= token < vocabulary]
    samples = given.do_sample is True
    chosen = {}
    for name, (least, most) in {**(_SAMPLING if samples else {}), **_PENALTY}.items():
        value = getattr(given, name, None)
        if value is not None and not (isinstance(value, int | float) and least <= value <= most):
            raise ValueError(f"{name} in its generation_config.json is {value!r:.40}")
        chosen[name] = value
    return GenerationConfig(do_sample=samples, eos_token_id=known or None, use_cache=True, **chosen)


class _LocalSession:
    """What a model on this machine remembers of one text."""

    def __init__(self, model: Any, length: int) -> None:
        self._config = model.config if "past_key_values" in signature(model.forward).parameters else None
        self.cache: Any = None
        self.close()

    @property
    def tokens(self) -> int:
        return 0 if self.cache is None else int(self.cache.get_seq_length())

    def keep(self, tokens: int) -> None:
        try:
            Past(tokens).restore(self.cache, 1)
        except ValueError:  # what it needs has slid out of a window
            self.close()

    def route(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        """Remember nothing."""
        self.cache = None if self._config is None else DynamicCache(config=self._config)
