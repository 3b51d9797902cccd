"""A served model as an ordinary one: its embeddings and head are here, its layers with others."""

import secrets
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import GenerationConfig

from dedloc_kit.blocks.adapters.lora import TrainableAdapter
from dedloc_kit.blocks.past import Past
from dedloc_kit.config.loading import local
from dedloc_kit.inference.loading import Loaded
from dedloc_kit.inference.tuning import Current, give, within
from dedloc_kit.inference.worker_link import Activations, Network
from dedloc_kit.pretrained import GENERATION_CONFIG, load_pretrained, load_pretrained_tokenizer


def from_pretrained(
    where: str,
    *,
    folder: str | Path | None = None,
    code: str = "",
    source: str | None = None,
    activations: Activations = "float16",
    settings: Mapping[str, Any] | None = None,
    told: Callable[[str], None] | None = None,
) -> Any:
    """A model that its community serves, as an ordinary one of transformers, of the class that its configuration says.

        from dedloc_kit import from_pretrained
        from dedloc_kit.inference.model import tokenizer_of

        model = from_pretrained("http://HOST:8000")
        tokenizer = tokenizer_of(model)
        text = tokenizer("The river", return_tensors="pt")
        print(tokenizer.decode(model.generate(**text, max_new_tokens=40)[0]))
        model.network.close()

    Its embeddings and head are here, its layers with others, who see what is computed. `model.network` is the
    connection, `model.loaded.version` the version that the model is now. Within `with model.adapted(ADAPTER)` all calls
    and new sessions of this thread use an adapter, and its parameters get gradients. Raises UserError with what is
    wrong and what to do.

    :param where: the page's URL, an invitation's file, or the model's repository on the Hub
    :param folder: keeps this user's identity and what was fetched
    :param code: what lets this user into a swarm that is not open to all
    :param source: a folder with the model, or `OWNER/NAME@COMMIT`, to take embeddings and head from
    :param activations: how hidden states travel; float32 rounds nothing, but answers are exact only from servers
        that compute in float32 too (`dedloc serve --weights float32`; bfloat16 is their default); 8bit is for
        training, where it takes little more than half the bytes of float16; what is written then travels as float16
    :param settings: of the connection, by name, as `dedloc serve` has them, such as swarm_host
    :param told: called with what goes on, such as `print`
    """
    tell = told or (lambda _: None)
    adapter: Current = ContextVar("adapter", default=None)
    network = Network(
        where,
        folder=None if folder is None else Path(folder),
        code=code,
        settings=settings,
        activations=activations,
        told=tell,
    )
    try:
        loaded = Loaded(network, None if source is None else local(source, Path()), tell)
        model = loaded.make(_beginning(network, loaded, adapter))
    except BaseException:
        network.close()
        raise
    if (loaded.files / GENERATION_CONFIG).is_file():
        model.generation_config = load_pretrained(GenerationConfig, loaded.files)
    model.network, model.loaded = network, loaded
    model.adapted = within(adapter)
    return model


class AutoDistributedModelForCausalLM:
    """`from_pretrained` as a class of transformers would have it."""

    from_pretrained = staticmethod(from_pretrained)


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of a model that was made here."""
    return load_pretrained_tokenizer(model.loaded.files)


def _beginning(network: Network, loaded: Loaded, adapter: Current) -> Callable[[int], "DistantLayers"]:
    def begin(length: int) -> DistantLayers:
        def make(version: str) -> DistantLayers:
            return DistantLayers(network, version, length, adapter.get())

        # Where nothing is to be remembered the embeddings are computed already: what is loaded must stay.
        return loaded.begun(make) if length else make(loaded.version.manifest)

    return begin


class DistantLayers:
    """All layers of the model, in one session; see `blocks.ends.Through`."""

    def __init__(self, network: Network, version: str, length: int, adapter: TrainableAdapter | None) -> None:
        """:param version: the digest of its manifest"""
        self.name = secrets.token_hex(8)
        self.closed = False
        self.recoveries = 0
        """How often somebody had to take the place of another."""
        self._network, self._version, self._length, self._adapter = network, version, length, adapter

    def __call__(
        self, hidden: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: Past | None
    ) -> Tensor:
        if past is None:
            given = hidden, attention_mask, position_ids, self._network, self._version, self._adapter
            parameters = [] if self._adapter is None else self._adapter.parameters()
            after: Tensor = _Pass.apply(*given, *parameters)  # type: ignore[no-untyped-call]
            return after
        if self._length and not hasattr(self, "_finalizer"):
            self._finalizer = weakref.finalize(self, self._network.begin, "close", {"session": self.name})
            give(self._network, self.name, self._adapter)
        values = {
            "session": self.name,
            "version": self._version,
            "length": self._length,
            "tokens": past.tokens,
            "undoable": past.undoable,
        }
        rows = None if past.rows is None else list(past.rows)
        said, (output,) = self._network.ask("step", {**values, "rows": rows}, (hidden, attention_mask, position_ids))
        self.recoveries = said["recoveries"]
        assert output is not None
        return output.to(hidden.device, hidden.dtype)

    def route(self) -> list[tuple[str, str, int, int]]:
        """Who answers: peer, name and layers."""
        said, _ = self._network.ask("route", {"session": self.name})
        return [tuple(hop) for hop in said["route"]]

    def close(self) -> None:
        self.closed = True
        if hasattr(self, "_finalizer"):
            self._finalizer()


class _Kept:
    """What servers were given in a forward pass stays with the worker until this is gone."""

    def __init__(self, network: Network) -> None:
        self.name = secrets.token_hex(8)
        weakref.finalize(self, network.begin, "close", {"session": self.name})


class _Pass(torch.autograd.Function):
    """Forward without a past, and backward to what went in."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        network: Network,
        version: str,
        adapter: TrainableAdapter | None,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.network, ctx.kept = network, _Kept(network)
        ctx.names = [] if adapter is None else list(adapter.named)
        give(network, ctx.kept.name, adapter)
        values = {"session": ctx.kept.name, "version": version, "keep": any(ctx.needs_input_grad)}
        _, (output,) = network.ask("forward", values, (hidden, attention_mask, position_ids))
        assert output is not None
        return output.to(hidden.device, hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        said, (back, *others) = ctx.network.ask("backward", {"session": ctx.kept.name}, (gradient,))
        assert back is not None
        found = dict(zip(said["names"], others, strict=True))
        return (
            back.to(gradient.device, gradient.dtype),
            *[None] * 5,
            *(found[name].to(gradient.device) for name in ctx.names),
        )
