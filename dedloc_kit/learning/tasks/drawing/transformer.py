"""A transformer that goes on from a caption with the codes of its picture, as DALL-E's (arXiv 2102.12092).

As "Training Transformers Together" has it (arXiv 2207.03481): layers share blocks, most of them look at a part of the
picture only, and the embeddings are the output layer too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.learning.tasks.drawing.places import Places, mask, rotation, shifted, shifted_code, turned

_FIRST_EMBEDDING = 0.02


@dataclass(frozen=True)
class Shape:
    """Of such a transformer.

    :ivar tokens: of the vocabulary
    :ivar codes: of the codebook
    :ivar caption: tokens of a caption
    :ivar side: codes along each side of a picture
    :ivar heads: of `width // heads` channels each
    :ivar shared: blocks that all layers but the last use in turn; the last has one of its own
    :ivar attention: what each layer looks at, see `places.mask`
    :ivar kernel: of the kind `convolution`
    :ivar tied: whether the embeddings are the output layer too
    """

    tokens: int
    codes: int
    caption: int
    side: int
    width: int
    heads: int
    shared: int
    attention: tuple[str, ...]
    kernel: int
    tied: bool

    @property
    def places(self) -> Places:
        return Places(self.caption, self.side)

    @property
    def layers(self) -> int:
        return len(self.attention)

    def block(self, layer: int) -> int:
        """The number of the block that a layer uses."""
        return self.shared if layer == self.layers - 1 else layer % self.shared

    def padded(self, captions: Sequence[Sequence[int]]) -> Tensor:
        """Captions as ids, int64 [captions, places]: cut where there are too many, and with an id of its own at each
        place where there is no token. Without any token it is no caption."""
        empty = range(self.tokens, self.tokens + self.caption)
        rows = [[*caption[: self.caption], *empty[len(caption) :]] for caption in captions]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, self.caption)


class Recall:
    """What a layer recalls of the places that went through it, so that the next one can go alone.

    :param samples: that go through it together
    """

    def __init__(self, shape: Shape, samples: int, like: Tensor) -> None:
        places, width = shape.places, shape.width
        heads = (samples, shape.heads, places.inputs, width // shape.heads)
        self.keys, self.values = like.new_zeros(heads), like.new_zeros(heads)
        self.rows = [like.new_zeros(samples, places.side, width // 2) for _ in range(2)]
        """Of each branch; see `places.shifted_code`."""

    @staticmethod
    def values_of(shape: Shape) -> int:
        """How many numbers it holds for a sample."""
        return shape.width * (2 * shape.places.inputs + shape.places.side)


@dataclass(frozen=True)
class View:
    """Which places go through the model, and what they need.

    :ivar start: the first of them; those before it went through it earlier
    :ivar looks_at: bool [places, places up to the last]
    :ivar angles: of these places
    :ivar recall: of the layer; none where nothing is to be kept
    """

    places: Places
    start: int
    looks_at: Tensor
    angles: tuple[Tensor, Tensor]
    recall: Recall | None

    def shifted(self, channels: Tensor, branch: int) -> Tensor:
        """The channels that go into a branch of a block, half of them from the places before."""
        if self.recall is None or not self.start:
            return shifted(channels, self.places)
        return shifted_code(channels, self.start - self.places.caption, self.recall.rows[branch])

    def known(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with those of the places before, each [samples, heads, places, channels]."""
        if self.recall is None:
            return keys, values
        end = self.start + keys.shape[2]
        self.recall.keys[:, :, self.start : end] = keys
        self.recall.values[:, :, self.start : end] = values
        return self.recall.keys[:, :, :end], self.recall.values[:, :, :end]


class Block(nn.Module):
    """Attention, and a gated feed-forward layer (GEGLU, Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.merged = nn.Linear(width, width)
        self.wide = nn.Linear(width, 8 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, channels: Tensor, scales: Tensor, view: View) -> Tensor:
        """:param channels: [samples, places, width]; what comes back is like them
        :param scales: [2, width], what each branch is multiplied by
        """
        channels = channels + scales[0] * self._attended(view.shifted(self.attention_norm(channels), 0), view)
        return channels + scales[1] * self._fed(view.shifted(self.feed_norm(channels), 1))

    def _attended(self, channels: Tensor, view: View) -> Tensor:
        parts = self.queries_keys_values(channels).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        keys, values = view.known(turned(keys, view.angles), values)
        found = functional.scaled_dot_product_attention(
            turned(queries, view.angles), keys, values, attn_mask=view.looks_at
        )
        merged: Tensor = self.merged(found.transpose(1, 2).flatten(2))
        return merged

    def _fed(self, channels: Tensor) -> Tensor:
        values, gates = self.wide(channels).chunk(2, dim=-1)
        narrow: Tensor = self.narrow(values * functional.gelu(gates))
        return narrow


class DrawingTransformer(nn.Module):
    """Tells of each place of a caption and of the codes of its picture what comes next."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.of_text = nn.Embedding(shape.tokens + shape.caption, shape.width)
        self.of_codes = nn.Embedding(shape.codes, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.shared + 1))
        # So many branches add up to about what goes in (compare Touvron et al. 2021, arXiv 2103.17239).
        self.scales = nn.Parameter(torch.full((shape.layers, 2, shape.width), (2 * shape.layers) ** -0.5))
        self.norm = nn.LayerNorm(shape.width)
        self.text_output = nn.Linear(shape.width, shape.tokens + shape.caption, bias=False)
        self.code_output = nn.Linear(shape.width, shape.codes, bias=False)
        for embedding, output in ((self.of_text, self.text_output), (self.of_codes, self.code_output)):
            nn.init.normal_(embedding.weight, std=_FIRST_EMBEDDING)
            if shape.tied:
                output.weight = embedding.weight

    def get_output_embeddings(self) -> nn.Module:
        """The output layers, under the name by which models of transformers have theirs."""
        return nn.ModuleList([self.text_output, self.code_output])

    def forward(self, captions: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """What stands at each place, as the output layers take it.

        :param captions: as `Shape.padded` makes them, [samples, places]
        :param codes: int64 [samples, codes] from the first one on, at most all but the last one
        :return: for the tokens from the second one on, and for all codes up to the next one: [samples, ..., width]
        """
        channels = self.through(torch.cat([self.of_text(captions), self.of_codes(codes)], dim=1), 0, None)
        last = self.shape.caption - 1
        return channels[:, :last], channels[:, last:]

    def through(self, channels: Tensor, start: int, recalls: Sequence[Recall] | None) -> Tensor:
        """Embeddings of some places through all layers, [samples, places, width].

        :param start: the number of the first of these places
        :param recalls: of each layer, for all places before; those of these are put there
        """
        shape, places, end = self.shape, self.shape.places, start + channels.shape[1]
        cosines, sines = rotation(places, shape.width // shape.heads, channels.device)
        angles = cosines[start:end], sines[start:end]
        for layer, attention in enumerate(shape.attention):
            looks_at = mask(places, attention, shape.kernel, channels.device)[start:end, :end]
            view = View(places, start, looks_at, angles, None if recalls is None else recalls[layer])
            channels = self.blocks[shape.block(layer)](channels, self.scales[layer], view)
        normed: Tensor = self.norm(channels)
        return normed
