"""What a run's file says of the task `text-to-image`."""

from itertools import cycle, islice
from typing import Annotated

from pydantic import Field, model_validator

from dedloc_kit.config.section import PositiveFloat, PositiveInt, Section
from dedloc_kit.learning.data.pictures.codes import MAX_CAPTION, PictureCodes
from dedloc_kit.learning.data.text.sentences import DEFAULT_LANGUAGE, LANGUAGE_CODE
from dedloc_kit.learning.data.tokenizers.tokenizer import Tokenization
from dedloc_kit.learning.tasks.drawing.generation import Drawn
from dedloc_kit.learning.tasks.drawing.places import Attention
from dedloc_kit.learning.tasks.drawing.transformer import Shape

_LEAST_HEAD = 6
"""Channels: a pair for each part of a place."""


class TransformerOptions(Section):
    """The shape of the transformer; the defaults are those of "Training Transformers Together"."""

    width: PositiveInt = 1024
    heads: PositiveInt = 16
    layers: PositiveInt = 64
    shared: PositiveInt = 4
    """Blocks that all layers but the last use in turn; the last has one of its own."""
    attention: tuple[Attention, ...] = Field(default=("row", "column", "row", "row"), min_length=1)
    """What the layers look at beside the caption, in turn: the `full` picture, the same `row` or `column`, or what is
    near (`convolution`)."""
    last_attention: Attention = "convolution"
    """What the last layer looks at."""
    kernel: Annotated[int, Field(ge=1)] = 11
    """Of the kind `convolution`: half of so many codes up and to each side, an odd number."""
    tied: bool = True
    """Whether the embeddings are the output layer too."""

    @model_validator(mode="after")
    def _fits(self) -> "TransformerOptions":
        if self.shared >= self.layers:
            raise ValueError(
                f"model.shared is {self.shared} and model.layers is {self.layers}: set shared to at most layers - 1, "
                "for the last layer has a block of its own"
            )
        if self.width % self.heads or self.width % 4 or self.width // self.heads < _LEAST_HEAD:
            raise ValueError(
                f"model.width is {self.width}: set it to a multiple of 4 and of model.heads ({self.heads}), with at "
                f"least {_LEAST_HEAD} for each head"
            )
        if self.kernel % 2 == 0:
            raise ValueError(f"model.kernel is {self.kernel}; set it to an odd number, such as {self.kernel + 1}")
        return self


class DrawingOptions(Section):
    """How evaluations, and the model's users if they say nothing else, draw pictures."""

    top_k: PositiveInt = 40
    """Each code is one of so many likeliest ones."""
    temperature: PositiveFloat = 1.0
    guidance: Annotated[float, Field(ge=0)] = 1.0
    """1: as the model says; above, further away from what it says without the caption, in twice the time."""


class TextToImageOptions(Section):
    """The keys of `task` beside its name."""

    tokenizer: str = Field(min_length=1)
    """A folder or a Hub repository."""
    language: Annotated[str, Field(pattern=LANGUAGE_CODE)] = DEFAULT_LANGUAGE
    """ISO 639 code of the captions, for the model's users."""
    vocab_size: PositiveInt = 32_000
    """Tokens, for the command that trains the tokenizer."""
    tokenization: Tokenization | None = None
    """How that command makes it; see `tokenization_of`."""
    pictures: PictureCodes
    caption_length: Annotated[int, Field(ge=2, le=MAX_CAPTION)] = 256
    """Tokens; what is longer is cut."""
    image_weight: PositiveFloat = 7.0
    """How much more the loss of the codes counts than that of the caption."""
    unconditional: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of samples that are learned without their caption, so that guidance works."""
    evaluation_samples: Annotated[int, Field(ge=2)] = 256
    """Held-out ones that the losses are measured on."""
    ranked: Annotated[int, Field(ge=0)] = 64
    """Of those, so many are asked which of 16 captions is theirs; 0: none."""
    drawing: DrawingOptions = DrawingOptions()
    model: TransformerOptions = TransformerOptions()

    def shape(self, tokens: int) -> Shape:
        """Of the transformer, for a vocabulary of so many tokens."""
        model = self.model
        return Shape(
            tokens=tokens,
            codes=self.pictures.codes,
            caption=self.caption_length,
            side=self.pictures.side,
            width=model.width,
            heads=model.heads,
            shared=model.shared,
            attention=(*islice(cycle(model.attention), model.layers - 1), model.last_attention),
            kernel=model.kernel,
            tied=model.tied,
        )

    @property
    def how(self) -> Drawn:
        """How codes are drawn."""
        return Drawn(**self.drawing.model_dump())
