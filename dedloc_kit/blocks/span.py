"""Some consecutive layers of a causal language model, computed by the model's own class of transformers."""

import copy
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from dedloc_kit.blocks.architecture import Layout, causal_class, cut, skeleton
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.weights.conversion import Conversion
from dedloc_kit.errors import UserError


class Span(nn.Module):
    """Layers [begin, end) of the model that a configuration describes.

    It is the model's base class with these layers and nothing else, so masks, rotary embeddings, ALiBi and sliding
    windows are the library's. The layers lie on the `meta` device until `load_state_dict(..., assign=True)` gives them
    their tensors, as `wanted` names them. Raises UserError for a range that the model does not have, and for a model
    that does more between its embeddings and its final norm than to run layers.
    """

    def __init__(self, config: Any, begin: int, end: int) -> None:
        super().__init__()
        causal_class(config)
        if not 0 <= begin < end <= config.num_hidden_layers:
            raise UserError(f"no span {begin}:{end} in a model with {config.num_hidden_layers} layers")
        whole = skeleton(config)
        self.layout = Layout.of(whole)
        self._conversion = Conversion(whole)
        self.begin, self.end = begin, end
        self._whole = whole.config
        self.config = cut(whole.config, begin, end)
        self.base = whole.base_model
        self._takes_positions = "position_ids" in inspect.signature(self.base.forward).parameters
        body = self.base.get_submodule(self.layout.holder)
        # They are built as part of the whole, for some follow from their number, and run as layers from 0 on.
        layers = getattr(body, self.layout.layers)[begin:end]
        _number_from(layers, begin)
        setattr(body, self.layout.layers, nn.ModuleList())
        for module in [*self.base.modules(), *layers.modules()]:
            if hasattr(module, "config"):
                module.config = self.config
        self._empty(body)
        self.eval()
        self._check_frame()
        setattr(body, self.layout.layers, layers.eval())

    @classmethod
    def of(cls, model: Any, begin: int, end: int) -> "Span":
        """The same out of a whole model in memory, whose tensors it shares."""
        span = cls(model.config, begin, end)
        tensors = {own: tensor for name, tensor in model.state_dict().items() if (own := span._own(name))}
        span.load_state_dict(tensors, assign=True)
        return span

    def part(self, begin: int, end: int) -> "Span":
        """Some of these layers as a span, which shares their tensors; raises ValueError if it does not have them."""
        if not self.begin <= begin < end <= self.end:
            raise ValueError(f"no layers {begin}:{end} in a span {self.begin}:{self.end}")
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        config = cut(self._whole, begin, end)
        part = copy.deepcopy(self, {**shared, id(self._whole): self._whole, id(self.config): config})
        part.begin, part.end = begin, end
        body = part.base.get_submodule(self.layout.holder)
        layers = getattr(body, self.layout.layers)[begin - self.begin : end - self.begin]
        _number_from(layers, begin - self.begin)
        setattr(body, self.layout.layers, layers)
        return part

    def wanted(self, names: Iterable[str]) -> dict[str, str]:
        """Which tensors of a checkpoint it needs, of all that this holds, and their names here.

        Several that have one name are merged, see `merged`. Raises UserError if one is missing.
        """
        own, wanted = set(self.state_dict()), {}
        for name in names:
            if self._own(name) and (key := self._own(self._conversion.name(name))) in own:
                wanted[name] = key
        if missing := sorted(own.difference(wanted.values())):
            raise UserError(
                f"the checkpoint lacks {len(missing)} tensors of layers {self.begin}:{self.end}: {missing[0]}"
            )
        return wanted

    def merged(
        self, wanted: Mapping[str, str], tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The wanted tensors of a checkpoint as they come, under their names here and as they are here.

        Raises UserError if those that are to become one do not fit together.
        """
        parts = Counter(wanted.values())
        waiting: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors:
            key = wanted[name]
            waiting[key][name] = tensor
            if len(waiting[key]) == parts[key]:
                yield key, self._conversion.tensor(waiting.pop(key))

    def forward(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Any | None = None,
    ) -> torch.Tensor:
        """Hidden states [batch, tokens, hidden] after these layers.

        :param attention_mask: [batch, past and new tokens], 0 for padding
        :param position_ids: [batch, new tokens]
        :param cache: holds the past of these layers, and gets the new tokens; None where there is none
        """
        positions = {"position_ids": position_ids} if self._takes_positions else {}
        use = {"past_key_values": cache, "use_cache": cache is not None}
        output = self.base(inputs_embeds=hidden, attention_mask=attention_mask, **positions, **use)
        after: torch.Tensor = output.last_hidden_state
        return after

    def _own(self, name: str) -> str | None:
        """What a tensor of the whole model is called here, if it has such a one; None if it is of another layer."""
        layer, rest = self.layout.layer_of(name) or (-1, "")
        return f"base.{self.layout.path}.{layer - self.begin}.{rest}" if self.begin <= layer < self.end else None

    def new_cache(self) -> Any:
        return DynamicCache(config=self.config)

    def _empty(self, body: nn.Module) -> None:
        """What is around the layers goes: embeddings and norms have weights, rotary embeddings computed buffers."""
        for name, child in list(body.named_children()):
            if isinstance(child, nn.Embedding) and child is not self.base.get_input_embeddings():
                setattr(body, name, _NoPosition())  # GPT-2 and OPT add them to what they are given
            elif next(child.parameters(), None) is not None:
                setattr(body, name, nn.Identity())
            elif next(child.buffers(), None) is not None:
                setattr(body, name, type(child)(config=self.config))  # they are in no checkpoint

    def _check_frame(self) -> None:
        """Without layers it has to return what it gets."""
        given = torch.arange(2.0 * self.config.hidden_size).view(1, 2, -1)
        try:
            kept = torch.equal(self(given, None, None), given)
        except Exception as error:  # whatever such a class needs beside hidden states
            raise UserError(f"{self.config.model_type} cannot be divided into spans: {error!r:.200}") from error
        if not kept:
            raise UserError(f"{self.config.model_type} changes hidden states outside its layers; it cannot be divided")


class CachedSpan:
    """A span in one session, with the past of its steps. After an error it is of no use any more."""

    def __init__(self, span: Span, forward: Callable[..., torch.Tensor] | None = None) -> None:
        """:param forward: instead of the span's own, such as that with an adapter"""
        self._span = span
        self._forward = forward or span.forward
        self._cache = span.new_cache()
        self.tokens, self.rows = 0, 0

    @torch.no_grad()
    def __call__(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        past: Past,
    ) -> torch.Tensor:
        """The hidden states after the span, as `Span.forward`; raises ValueError if there is no such past."""
        self.follow(past, len(hidden))
        return self.more(hidden, attention_mask, position_ids)

    @torch.no_grad()
    def follow(self, past: Past, rows: int) -> None:
        """What comes next, in so many rows, follows this; raises ValueError if there is no such past."""
        if past.tokens == 0:
            self._cache, self.rows = self._span.new_cache(), rows
        past.restore(self._cache, self.rows)
        self.tokens = past.tokens
        self.rows = self.rows if past.rows is None else len(past.rows)
        if self.rows != rows:
            raise ValueError(f"{rows} rows follow a past of {self.rows}")

    @torch.no_grad()
    def more(
        self, hidden: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """The hidden states after the span of tokens that come next, all that follow a past or the first of them."""
        self.tokens += hidden.shape[1]
        return self._forward(hidden, attention_mask, position_ids, self._cache)


def _number_from(layers: Any, begin: int) -> None:
    """A layer finds its cache by its number: the one that was `begin` becomes the first."""
    for module in layers.modules():
        if isinstance(number := getattr(module, "layer_idx", None), int):
            module.layer_idx = number - begin


class _NoPosition(nn.Module):
    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())
