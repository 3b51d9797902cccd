"""The user's part of a causal language model: embeddings, final norm and head, around layers that are elsewhere.

`forward` and `generate` are the library's own.
"""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn
from transformers import Cache

from dedloc_kit.blocks.architecture import Layout, causal_class, cut
from dedloc_kit.blocks.past import Past
from dedloc_kit.errors import UserError

FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


class Through(Protocol):
    """All layers of the model, wherever they are, in one session."""

    def __call__(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        past: Past | None,
    ) -> torch.Tensor:
        """The hidden states after all layers, as `Span.forward`.

        :param past: what they follow; None where nothing is remembered, and then gradients go through
        """


class DistantCache(Cache):
    """Stands for the caches of whoever has the layers: it knows how long they are, and what is to become of them."""

    def __init__(self, through: Through) -> None:
        super().__init__(layers=[])
        self._through = through
        self._tokens = 0
        self._rows: torch.Tensor | None = None  # those that the next step follows
        self._batch = 0
        self._undoable = False

    def step(
        self, hidden: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Hidden states after the layers, which remember them."""
        rows = None if self._rows is None else tuple(self._rows.tolist())
        after = self._through(hidden, attention_mask, position_ids, Past(self._tokens, rows, self._undoable))
        self._tokens, self._rows, self._batch = self._tokens + hidden.shape[1], None, len(hidden)
        return after

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._tokens

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        new = query_length if isinstance(query_length, int) else len(query_length)  # early 5.x: their positions
        return self._tokens + new, 0

    @property
    def is_compileable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """It is given minus the number of tokens that go; by earlier 5.x the number of those that stay, never 0."""
        kept = tokens_to_remove if tokens_to_remove > 0 else self._tokens + tokens_to_remove
        self._tokens = max(0, min(self._tokens, kept))
        if not self._tokens:
            self._rows = None

    def activate_past_recording(self) -> None:
        self._undoable = True

    def reset(self) -> None:
        self._tokens, self._rows = 0, None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(len(self._now())).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self._tokens:
            self._rows = self._now()[indices.to("cpu")]

    def _now(self) -> torch.Tensor:
        return torch.arange(self._batch) if self._rows is None else self._rows


class Ends:
    """In front of a class of the library for causal language models: its layers are elsewhere.

    Each `generate` without a past of its own begins a session; calls that are to follow one another are all given one
    `DistantCache`.
    """

    session: Callable[[], Through]

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        settings = kwargs.get("generation_config") or self.generation_config  # type: ignore[attr-defined]
        if kwargs.get("past_key_values") is None and kwargs.get("use_cache", settings.use_cache) is not False:
            kwargs["past_key_values"] = DistantCache(self.session())
        return super().generate(*args, **kwargs)  # type: ignore[misc]


def ends(config: Any, tensors: Mapping[str, torch.Tensor], session: Callable[[], Through]) -> Any:
    """The model of a configuration, of its class in the library and of `Ends`.

    Raises UserError for one without a final norm, in front of which the layers are.

    :param tensors: those of its checkpoint that are outside the layers, see `Layout.outside`
    :param session: begins one
    """
    library = causal_class(config)
    # The library looks into the module of a class for what this can do.
    attributes = {"session": staticmethod(session), "__module__": library.__module__}
    kind: Any = type(library.__name__, (Ends, library), attributes)
    model = kind.from_pretrained(None, config=cut(config, 0, 0), state_dict=dict(tensors))
    body = model.base_model.get_submodule(Layout.of(model).holder)
    norm = next((getattr(body, name) for name in FINAL_NORMS if isinstance(getattr(body, name, None), nn.Module)), None)
    if norm is None:
        raise UserError(f"{config.model_type} has no final norm that is known here; its layers cannot be elsewhere")
    call = _Call(session, inspect.signature(body.forward))
    body.register_forward_pre_hook(call.begin, with_kwargs=True)
    norm.register_forward_pre_hook(call.through_layers)
    return model.eval()


class _Call:
    """What the body was called with stays until its norm is reached; several threads may use one model."""

    def __init__(self, session: Callable[[], Through], signature: inspect.Signature) -> None:
        self._session = session
        self._signature = signature
        self._arguments: ContextVar[dict[str, Any]] = ContextVar("arguments")

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments.set(self._signature.bind(*args, **kwargs).arguments)

    def through_layers(self, norm: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        arguments, (hidden,) = self._arguments.get(), args
        mask, positions, cache = (arguments.get(name) for name in ("attention_mask", "position_ids", "past_key_values"))
        if mask is not None and mask.ndim != 2:
            raise ValueError("the attention mask has to be [batch, tokens]")
        if cache is None:
            return (self._session()(hidden, mask, positions, None),)
        if not isinstance(cache, DistantCache):
            raise ValueError("the past of distant layers is kept in a DistantCache alone")
        return (cache.step(hidden, mask, positions),)
