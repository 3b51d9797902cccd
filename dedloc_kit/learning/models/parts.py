"""A decoder in parts: consecutive layers, the first with the embeddings, the last with the final norm and the output.

Each part is computed by the model's own class of transformers, and made without any other part ever being in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.blocks.architecture import Layout, cut, skeleton
from dedloc_kit.blocks.ends import FINAL_NORMS
from dedloc_kit.blocks.span import Span
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.learning.models.families import scores_of, softcap
from dedloc_kit.learning.models.packing_check import check_packed, check_scores, tried


class Part(nn.Module):
    """Layers [begin, end) of the decoder that a configuration describes, with what is in front of the first or behind
    the last, on the `meta` device until somebody gives its tensors. Raises UserError as `Span`."""

    def __init__(self, config: Any, begin: int, end: int) -> None:
        super().__init__()
        self.span = Span(config, begin, end)
        self.config = config
        self.first, self.last = begin == 0, end == config.num_hidden_layers
        whole = skeleton(cut(config, 0, 1))  # what is around the layers does not depend on their number
        for name, child in around(whole):
            if self.last if name in FINAL_NORMS else self.first:
                setattr(self.body, name, child)
        self.output: nn.Linear | None = whole.get_output_embeddings() if self.last else None
        if self.last and not any(hasattr(self.body, name) for name in FINAL_NORMS):
            raise UserError(f"{config.model_type} has no final norm that is known here; it cannot be divided")

    @property
    def body(self) -> nn.Module:
        """What runs the layers."""
        body: nn.Module = self.span.base.get_submodule(self.span.layout.holder)
        return body

    @property
    def layers(self) -> Any:
        return getattr(self.body, self.span.layout.layers)

    def forward(self, given: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [rows, length, width] after these layers, of the last part behind the final norm.

        :param given: the tokens' numbers for the first part, for others the hidden states after the part before
        :param positions: as in `Pack`
        """
        inputs = {"input_ids" if self.first else "inputs_embeds": given}
        hidden: Tensor = self.span.base(**inputs, position_ids=positions, use_cache=False)[0]
        return hidden

    def check(self) -> None:
        """Raise UserError if it does not work as packed documents want it, or its output is not what is trained."""
        generator = torch.Generator().manual_seed(0)
        given = torch.arange(2, 10)[None] % self.config.vocab_size
        if not self.first:
            given = torch.randn((1, 8, self.config.hidden_size), generator=generator)
        with tried(self):
            check_packed(self, self, given)
            if self.output is None:
                return
            whole, at = skeleton(cut(self.config, 0, 1)), torch.arange(8)[None]
            setattr(whole, whole.base_model_prefix, self.span.base)
            whole.set_output_embeddings(self.output)
            inputs = {"input_ids" if self.first else "inputs_embeds": given}
            own = whole.eval()(**inputs, position_ids=at, use_cache=False).logits
            check_scores(self, own, scores_of(self.output, self(given, at), softcap(self)))


@dataclass(frozen=True)
class Cut:
    """How a decoder is divided into parts.

    :ivar config: of the whole, with all its layers
    :ivar shared: so many layers, one after the other, have the same weights
    :ivar layers: how many each part has, multiples of `shared`
    :ivar name: what the first weights follow from
    """

    config: Any
    shared: int
    layers: tuple[int, ...]
    name: str

    def bounds(self, number: int) -> tuple[int, int]:
        """The layers [begin, end) of a part."""
        ends = list(accumulate(self.layers))
        return ends[number] - self.layers[number], ends[number]

    def outline(self, number: int) -> Part:
        """A part on the `meta` device."""
        part = Part(self.config, *self.bounds(number))
        self._share_layers(part)
        return part.train()

    def build(self, number: int) -> Part:
        """A part with its first weights on the CPU.

        They are drawn layer by layer, so they do not depend on where the decoder is cut.
        """
        begin, end = self.bounds(number)
        part, author = Part(self.config, begin, end), skeleton(self.config)
        for name, _ in around(author):
            if next((own := getattr(part.body, name)).parameters(), None) is not None:
                self._draw(author, own, name)
        for at in range(0, end - begin, self.shared):
            self._draw(author, part.layers[at], f"layer {(begin + at) // self.shared}")
        self._share_layers(part)
        if part.output is not None:
            self._draw(author, part.output, "output")
            if self.config.tie_word_embeddings and part.first:
                part.output.weight = part.span.base.get_input_embeddings().weight
        _check_filled(part)
        part.check()
        return part.train()

    def whole(self, parts: Sequence[Any]) -> nn.Module:
        """The ordinary model out of all parts, whose tensors it shares."""
        model = skeleton(self.config)
        layers = model.base_model.get_submodule(Layout.of(model).path)
        for number, part in enumerate(parts):
            begin, end = self.bounds(number)
            for own, given in zip(layers[begin:end], part.layers, strict=True):
                share(given, own)
            for name, child in around(model):
                if part.last if name in FINAL_NORMS else part.first:
                    share(getattr(part.body, name), child)
            if part.output is not None:
                share(part.output, model.get_output_embeddings())
        device = next(parts[0].parameters()).device
        for module in model.modules():
            unset = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
            for name in unset:
                module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
            if unset:
                model._init_weights(module)  # those that are in no checkpoint, such as of rotary embeddings
        _check_filled(model)
        trained: nn.Module = model.train()
        return trained

    def _share_layers(self, part: Part) -> None:
        for at in range(0, len(part.layers), self.shared):
            for copy in part.layers[at + 1 : at + self.shared]:
                share(part.layers[at], copy)

    def _draw(self, author: Any, module: nn.Module, unit: str) -> None:
        """Give a module the first weights that the library's class has for it."""
        module.to_empty(device="cpu")
        with drawing(seed_of(self.name, "weights", unit)):
            module.apply(author._init_weights)


def check_divisible(config: Any) -> None:
    """Raise UserError if the decoder of a configuration cannot be made in parts."""
    Part(cut(config, 0, 1), 0, 1)


def around(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """What has weights beside the layers in what runs them, with its name there."""
    layout = Layout.of(model)
    for name, child in model.base_model.get_submodule(layout.holder).named_children():
        if name != layout.layers and next(child.parameters(), None) is not None:
            yield name, child


def share(given: nn.Module, other: nn.Module) -> None:
    """Let another module of the same kind have the very tensors of a given one; UserError if it is not of its kind."""
    shapes, others = ({name: each.shape for name, each in module.state_dict().items()} for module in (given, other))
    if shapes != others:
        raise UserError(
            "not all layers of this model are alike, so they cannot share weights; set task.shared_layers = 1"
        )
    for path, module in given.named_modules():
        own = other.get_submodule(path)
        own._parameters.update(module._parameters)
        own._buffers.update(module._buffers)


def copies(model: Any) -> dict[str, Tensor]:
    """The tensors of a model, by name, a copy in place of each that another layer has as well."""
    layers, seen, tensors = Layout.of(model), set(), dict(model.state_dict())
    for name, tensor in tensors.items():
        if tensor.data_ptr() in seen and layers.layer_of(name) is not None:
            tensors[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    return tensors


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """What is drawn within follows from a seed; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the GPU as well, whose state fork_rng does not hold here.
        torch.default_generator.manual_seed(seed)
        yield


def _check_filled(model: Any) -> None:
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    empty += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if empty:
        raise UserError(f"{model.config.model_type} cannot be made in parts: nobody says what {empty[0]} begins with")
