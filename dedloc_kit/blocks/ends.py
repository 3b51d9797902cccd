"""The user's part of a causal language model: embeddings, final norm and head, around layers that are elsewhere.

`forward` and `generate` are the library's own.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn
from transformers import Cache

from dedloc_kit.blocks.architecture import Layout, causal_class, cut
from dedloc_kit.blocks.past import MAX_ROWS, Past
from dedloc_kit.errors import UserError
from dedloc_kit.pretrained import load_pretrained

USUAL_LENGTH = 2048
"""Tokens of a session if nobody says."""
GUESSED = 32
"""Tokens beyond its length that a text may have for a moment: those that were guessed."""
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

    def close(self) -> None:
        """The session is over: nothing of it need be remembered."""


Begin = Callable[[int], Through]
"""Begins a session for so many tokens; 0 where nothing is to be remembered."""


class DistantCache(Cache):
    """Stands for the caches of whoever has the layers: it knows how long they are, and what is to become of them.

    :param length: tokens that the text may come to have
    """

    def __init__(self, through: Through, length: int = sys.maxsize) -> None:
        super().__init__(layers=[])
        self.through = through
        """Who has the layers."""
        self._length = length
        self._tokens = 0
        self._rows: torch.Tensor | None = None  # those that the next step follows
        self._batch = 0
        self._undoable = False

    def step(
        self, hidden: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Hidden states after the layers, which remember them. Raises UserError if the session has no room for them."""
        _check_shape(hidden)
        if (whole := self._tokens + hidden.shape[1]) > self._length:
            raise UserError(
                f"the text would have {whole:,} tokens, and its session is for {self._length:,}; begin one with "
                f"model.session(max_length={whole}) or more"
            )
        rows = None if self._rows is None else tuple(self._rows.tolist())
        after = self.through(hidden, attention_mask, position_ids, Past(self._tokens, rows, self._undoable))
        self._tokens, self._rows, self._batch = self._tokens + hidden.shape[1], None, len(hidden)
        return after

    def close(self) -> None:
        self.through.close()

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

    Each `generate` without a past of its own begins a session, and ends it; within `session` all follow one another.
    """

    begin: Begin
    past: ContextVar[DistantCache | None]
    """Of the session that this thread is in."""

    @contextmanager
    def session(self, max_length: int = USUAL_LENGTH) -> Iterator[DistantCache]:
        """Let calls of `generate` go on from each other: each is given the whole text so far, and only what is new of
        it travels.

        :param max_length: tokens that the text may come to have

        Calls raise UserError for a longer one.
        """
        if max_length < 1:
            raise UserError(f"a session for {max_length} tokens has room for none; give max_length=1 or more")
        past = DistantCache(self.begin(max_length), max_length)
        before = self.past.set(past)
        try:
            yield past
        finally:
            self.past.reset(before)
            past.close()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        self._check_tokens((*args, *map(kwargs.get, ("inputs", "input_ids"))))
        second = args[1] if len(args) > 1 else None  # as transformers takes it
        settings = kwargs.get("generation_config") or second or self.generation_config  # type: ignore[attr-defined]
        given = kwargs.get("past_key_values") is not None
        if given or kwargs.get("use_cache", settings.use_cache) is False:
            return super().generate(*args, **kwargs)  # type: ignore[misc]
        if (past := self.past.get()) is not None:
            return super().generate(*args, past_key_values=past, **kwargs)  # type: ignore[misc]
        length = _length(settings, args[:1], kwargs)
        past = DistantCache(self.begin(length), length)
        try:
            return super().generate(*args, past_key_values=past, **kwargs)  # type: ignore[misc]
        finally:
            past.close()

    def _check_tokens(self, given: Iterable[Any]) -> None:
        rows = self.get_input_embeddings().num_embeddings  # type: ignore[attr-defined]
        for ids in given:
            if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or not ids.numel():
                continue
            odd = next((each for each in (int(ids.min()), int(ids.max())) if not 0 <= each < rows), None)
            if odd is not None:
                raise UserError(f"the text has the token {odd}, and the model has {rows} tokens; use its own tokenizer")


def _check_shape(hidden: torch.Tensor) -> None:
    """Raise UserError for what no server takes."""
    rows, tokens = hidden.shape[:2]
    if not rows or not tokens:
        raise UserError(f"a text of {tokens} tokens in {rows} rows is none; give the model at least one token")
    if rows > MAX_ROWS:
        raise UserError(f"{rows:,} rows at once are more than the {MAX_ROWS:,} that servers take; give it fewer texts")


def _length(settings: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """How many tokens the text of a `generate` may come to have."""
    given = next(
        (v for v in (*args, *map(kwargs.get, ("inputs", "input_ids", "inputs_embeds"))) if v is not None), None
    )
    prompt = 1 if given is None or not hasattr(given, "shape") else int(given.shape[1])
    if new := kwargs.get("max_new_tokens", settings.max_new_tokens):
        return prompt + int(new) + GUESSED
    return max(prompt, int(kwargs.get("max_length", settings.max_length) or USUAL_LENGTH)) + GUESSED


def ends(config: Any, tensors: Mapping[str, torch.Tensor], begin: Begin) -> Any:
    """The model of a configuration, of its class in the library and of `Ends`.

    Raises UserError for one without a final norm, in front of which the layers are.

    :param tensors: those of its checkpoint that are outside the layers, see `Layout.outside`
    :param begin: a session for so many tokens
    """
    library = causal_class(config)
    # The library looks into the module of a class for what this can do.
    past: ContextVar[DistantCache | None] = ContextVar("past", default=None)
    attributes = {"begin": staticmethod(begin), "past": past, "__module__": library.__module__}
    kind: Any = type(library.__name__, (Ends, library), attributes)
    model = load_pretrained(kind, None, config=cut(config, 0, 0), state_dict=dict(tensors))
    body = model.base_model.get_submodule(Layout.of(model).holder)
    norm = next((getattr(body, name) for name in FINAL_NORMS if isinstance(getattr(body, name, None), nn.Module)), None)
    if norm is None:
        raise UserError(f"{config.model_type} has no final norm that is known here; its layers cannot be elsewhere")
    call = _Call(begin, inspect.signature(body.forward))
    body.register_forward_pre_hook(call.begin, with_kwargs=True)
    norm.register_forward_pre_hook(call.through_layers)
    return model.eval()


class _Call:
    """What the body was called with stays until its norm is reached; several threads may use one model."""

    def __init__(self, begin: Begin, signature: inspect.Signature) -> None:
        self._begin = begin
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
            _check_shape(hidden)
            through = self._begin(0)
            try:
                return (through(hidden, mask, positions, None),)
            finally:
                through.close()
        if not isinstance(cache, DistantCache):
            raise ValueError("the past of distant layers is kept in a DistantCache alone")
        return (cache.step(hidden, mask, positions),)
