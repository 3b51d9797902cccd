"""Models of transformers by the name of their architecture, fed with packed documents that do not see each other."""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from dedloc_kit.errors import UserError
from dedloc_kit.learning.models import packed_attention
from dedloc_kit.learning.models.packing_check import ROUNDING, check_packed, check_scores, differ, tried
from dedloc_kit.pretrained import check_kernels, load_weights

NULL = "null"
"""How `task.model` says None: TOML cannot."""
_TEXT_PART = "_text"
"""What marks, in transformers, the decoder of a model that also sees pictures: `gemma3_text` of `gemma3`."""
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_GENERATING = {**_BASE, "intermediate_size": 2048, "tie_word_embeddings": True}
_UNDERSTANDING = {
    **_BASE,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
OF_THE_TOKENIZER = {"vocab_size", *(f"{name}_token_id" for name in ("bos", "eos", "pad", "cls", "sep", "mask", "unk"))}
"""Keys of a model's configuration that are for the tokenizer to say."""


@dataclass(frozen=True)
class Family:
    """The architectures of transformers that learn one thing."""

    automatic: Any
    """transformers' class that makes a model of a configuration."""
    known: Collection[str]
    usual: Mapping[str, Any]
    """Values where `task.model` is silent; those that an architecture does not know are left out."""
    small: Collection[str]
    """Architectures whose own values are those of a small model already."""
    causal: bool

    def config(self, architecture: str, values: Mapping[str, Any], tokens: Mapping[str, int | None]) -> Any:
        """The configuration of an architecture, with the values of `task.model`.

        :param architecture: as transformers calls it, such as `llama`; of one that also sees pictures the text part
        :param tokens: the size of the vocabulary and the special tokens, which the tokenizer says

        Raises UserError with the nearest name if the architecture or a key is unknown, or with what transformers says.
        """
        name = self._name(architecture)
        config_class = CONFIG_MAPPING[name]
        keys = _keys(config_class)
        for key in values:
            if key in tokens:
                raise UserError(f"task.model.{key} is for the tokenizer to say; leave it out")
            if key not in keys:
                nearest = difflib.get_close_matches(key, keys - tokens.keys(), n=1, cutoff=0.0)[0]
                raise UserError(f"task.model.{key[:80]} is not a known key of {name}; did you mean '{nearest}'?")
        usual = {} if name in self.small else self.usual
        said = {key: None if value == NULL else value for key, value in values.items()}
        merged = {key: value for key, value in usual.items() if key in keys} | said
        merged = {**_heads(merged, keys), **merged}
        with _one_line():
            check_kernels(merged)
            return config_class(**merged, **{key: value for key, value in tokens.items() if key in keys})

    def _name(self, architecture: str) -> str:
        text_part = f"{architecture}{_TEXT_PART}"
        name = text_part if text_part in self.known else architecture
        if name not in self.known or name not in CONFIG_MAPPING:
            if architecture in (ENCODERS if self.causal else DECODERS).known:
                task = "encoder" if self.causal else "causal"
                raise UserError(f'a {architecture} is for the task {task}; set task.name = "{task}"')
            nearest = difflib.get_close_matches(architecture, self.known, n=1, cutoff=0.0)[0].removesuffix(_TEXT_PART)
            raise UserError(
                f"task.architecture '{architecture[:80]}' is none that transformers has for this task; "
                f"did you mean '{nearest}'?"
            )
        return name

    def published(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """All that the config.json of a published model says and `task.model` can; errors as `config`.

        The vocabulary and the special tokens are left out, for they are the tokenizer's.
        """
        config_class = CONFIG_MAPPING[self._name(config["model_type"])]
        keys = _keys(config_class) - OF_THE_TOKENIZER
        with _one_line():
            return {key: value for key, value in config_class.from_dict(dict(config)).to_dict().items() if key in keys}

    def described(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The same as `task.model` has to say it, so that a model of this shape comes of it; errors as `config`."""
        with _one_line():
            usual = {**CONFIG_MAPPING[self._name(config["model_type"])]().to_dict(), **self.usual}
        found = self.published(config)
        needed = {key: value for key, value in found.items() if value is not None or usual.get(key) is not None}
        return {key: NULL if value is None else value for key, value in needed.items()}

    def load(self, folder: Path) -> nn.Module:
        """A published model in float32, from config.json and safetensors in a folder.

        Raises UserError if it lacks weights that the architecture has, or cannot be loaded.
        """
        try:
            model, missing = load_weights(self.automatic, folder, dtype=torch.float32)
        except Exception as error:  # OSError, ValueError, RuntimeError, and what safetensors raises
            lines = str(error).strip().splitlines() or [type(error).__name__]
            problem = f"the model of task.init_from cannot be loaded ({lines[0][:200]})"
            raise UserError(f"{problem}; name another one") from None
        if missing:
            raise UserError(
                f"the model of task.init_from lacks {len(missing)} weights that this task needs, such as "
                f"'{missing[0]}'; name one that was trained for it"
            )
        loaded: nn.Module = model
        return loaded

    def unties(self, model: Any) -> bool:
        """Whether a loaded model has an output layer of its own, though its configuration says that it is tied."""
        inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
        tied = getattr(model.config, "tie_word_embeddings", False)
        return bool(tied and outputs is not None and outputs.weight is not inputs.weight)

    def build(self, config: PretrainedConfig) -> nn.Module:
        """A model with random float32 weights; raises UserError if it cannot be trained on packed documents."""
        attention = "sdpa" if getattr(self.automatic._model_mapping[type(config)], "_supports_sdpa", False) else "eager"
        with _one_line():
            model: nn.Module = self.automatic.from_config(config, dtype=torch.float32, attn_implementation=attention)
            self.check(model)
        return model.train()

    def hidden(
        self, model: nn.Module, input_ids: torch.Tensor, positions: torch.Tensor, bounds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The last hidden states of packed documents, [rows, length, width].

        :param positions: as in `Pack`
        :param bounds: as `document_bounds` makes them; none: documents are kept apart by a mask
        """
        transformer: Any = model
        config = transformer.base_model.config
        if config._attn_implementation != packed_attention.NAME:
            return self._plain(model, input_ids, positions)
        device = input_ids.device
        if bounds is not None and packed_attention.in_half(device) and packed_attention.has_kernel(device):
            mask = packed_attention.as_mask(config, bounds)
        else:
            mask = packed_attention.document_masks(config, positions, self.causal)
        return self._masked(model, input_ids, positions, mask)

    def _plain(self, model: Any, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if self.causal:
            # transformers sees from positions that begin again where a document ends, and makes the mask; with a cache
            # it does not.
            return self._masked(model, input_ids, positions, None)
        base = model.base_model
        masks = packed_attention.document_masks(base.config, positions, causal=False)
        if not base.config.model_type.startswith("deberta"):
            return self._masked(model, input_ids, positions, masks)
        embedded = base.embeddings(input_ids=input_ids, position_ids=positions)  # it takes no such mask from outside
        hidden: torch.Tensor = base.encoder(embedded, masks[:, 0], output_hidden_states=False)[0]
        return hidden

    def _masked(self, model: Any, input_ids: torch.Tensor, positions: torch.Tensor, mask: Any) -> torch.Tensor:
        uncached = {"use_cache": False} if self.causal else {}
        hidden: torch.Tensor = model.base_model(
            input_ids=input_ids, position_ids=positions, attention_mask=mask, **uncached
        )[0]
        return hidden

    def output_inputs(self, model: Any, hidden: torch.Tensor) -> torch.Tensor:
        """What the model's output layer gets for last hidden states [tokens, width].

        A decoder's gets them as they are, an encoder's what its head makes of them, whatever head that is.
        """
        if self.causal:
            return hidden
        given = BaseModelOutput(last_hidden_state=hidden[None])
        with (
            _instead(model.base_model, lambda *_, **__: given),
            _instead(model.get_output_embeddings(), lambda made: made),
        ):
            made: torch.Tensor = model().logits[0]
        return made

    def check(self, model: nn.Module) -> None:
        """Raise UserError if the model does not work as packing takes for granted, tried on two documents.

        What the second becomes must not depend on the first, nor, in a decoder, a word on later ones; and the hidden
        states must lead to the model's own scores.
        """
        anything: Any = model
        ids = torch.arange(2, 10)[None] % anything.get_input_embeddings().num_embeddings
        with tried(model):
            check_packed(model, lambda given, at: self.hidden(model, given, at), ids, self.causal)
            own, ours = anything(input_ids=ids).logits[0], self._scores(model, ids, torch.arange(8)[None])
            check_scores(model, own, ours)
        self._pack(model)

    def _pack(self, model: Any) -> None:
        """Let a model attend by what keeps documents apart alone, if it is the same to it.

        Tried on rows of several documents with windows that are shorter than these: what a model makes of masks and of
        bounds must be what it makes of positions, with the attention of transformers.
        """
        config = model.base_model.config
        if config._attn_implementation != "sdpa" or not packed_attention.has_known_windows(config):
            return
        positions = torch.cat([torch.arange(length) for length in (7, 5, 2, 10)]).view(2, 12)
        ids = torch.arange(2, 26).view(2, 12) % model.get_input_embeddings().num_embeddings
        bounds = packed_attention.document_bounds(positions)
        try:
            with packed_attention.narrow_windows(model), tried(model):
                plain = self._plain(model, ids, positions)
                model.set_attn_implementation(packed_attention.NAME)
                masks = packed_attention.document_masks(config, positions, self.causal)
                found = [
                    self._masked(model, ids, positions, each)
                    for each in (masks, packed_attention.as_mask(config, bounds))
                ]
                same = not any(differ(plain, each, ROUNDING) for each in found)
        except UserError:
            same = False
        if not same:
            model.set_attn_implementation("sdpa")

    def _scores(self, model: Any, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = self.output_inputs(model, self.hidden(model, input_ids, positions)[0])
        return scores_of(model.get_output_embeddings(), hidden, softcap(model))


DECODERS = Family(AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, _GENERATING, (), causal=True)
ENCODERS = Family(
    AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES, _UNDERSTANDING, ("modernbert",), causal=False
)


def scores_of(output: nn.Module, hidden: torch.Tensor, cap: float | None) -> torch.Tensor:
    """What an output layer makes of last hidden states, `softcap` included."""
    scores: torch.Tensor = output(hidden)
    return scores if cap is None else cap * (scores / cap).tanh()


def softcap(model: Any) -> float | None:
    """What bounds the scores of a model, as Gemma's are; none if nothing does."""
    cap: float | None = getattr(model.config, "final_logit_softcapping", None)
    return cap


def _keys(config_class: type[PretrainedConfig]) -> set[str]:
    """What the configuration class itself takes, beside what those of all models do."""
    own = set(inspect.signature(config_class.__init__).parameters)
    common = set(inspect.signature(PretrainedConfig.__init__).parameters) | {"kwargs"}
    return own - common | {"tie_word_embeddings"}


def _heads(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, int]:
    """The size of heads, and at most four of them for keys and values, where nothing else is said."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return {}
    usual = {"head_dim": width // heads, "num_key_value_heads": math.gcd(heads, 4)}
    return {key: value for key, value in usual.items() if key in keys}


@contextmanager
def _instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module do something else for a moment."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _one_line() -> Iterator[None]:
    """Whatever transformers raises of values that it cannot use, as one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # ValueError, TypeError, RuntimeError, and what `strict` dataclasses raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = re.sub(r"^\s*\w*Error: ", "", lines[-1])
        raise UserError(f"task.model cannot be used: {said[:300]}; correct it") from None
