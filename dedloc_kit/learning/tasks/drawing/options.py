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

    hidden_size: PositiveInt = 1024
    num_attention_heads: PositiveInt = 16
    num_hidden_layers: PositiveInt = 64
    num_shared_blocks: PositiveInt = 4
    """Blocks that all layers but the last use in turn; the last has one of its own."""
    attention: tuple[Attention, ...] = Field(default=("row", "column", "row", "row"), min_length=1)
    """What the layers look at beside the caption, in turn: the `full` picture, the same `row` or `column`, or what is
    near (`convolution`)."""
    last_attention: Attention = "convolution"
    """What the last layer looks at."""
    kernel_size: Annotated[int, Field(ge=1)] = 11
    """Of the kind `convolution`: half of so many codes up and to each side, an odd number."""
    tie_word_embeddings: bool = True
    """Whether the embeddings are the output layer too."""

    @model_validator(mode="after")
    def _fits(self) -> "TransformerOptions":
        width, heads = self.hidden_size, self.num_attention_heads
        if self.num_shared_blocks >= self.num_hidden_layers:
            raise ValueError(
                f"model.num_shared_blocks is {self.num_shared_blocks} and model.num_hidden_layers is "
                f"{self.num_hidden_layers}: set it to at most one less, for the last layer has a block of its own"
            )
        if width % heads or width % 4 or width // heads < _LEAST_HEAD:
            raise ValueError(
                f"model.hidden_size is {width}: set it to a multiple of 4 and of model.num_attention_heads ({heads}), "
                f"with at least {_LEAST_HEAD} for each head"
            )
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"model.kernel_size is {self.kernel_size}; set it to an odd number, such as {self.kernel_size + 1}"
            )
        return self


class DrawingOptions(Section):
    """How evaluations, and the model's users if they say nothing else, draw pictures."""

    top_k: PositiveInt = 40
    """Each code is one of so many likeliest ones."""
    temperature: PositiveFloat = 1.0
    guidance_scale: Annotated[float, Field(ge=0)] = 1.0
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
    image_loss_weight: PositiveFloat = 7.0
    """How much more the loss of the codes counts than that of the caption."""
    caption_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of samples that are learned without their caption, so that guidance works."""
    evaluation_samples: Annotated[int, Field(ge=2)] = 256
    """Held-out ones that the losses are measured on."""
    ranking_samples: Annotated[int, Field(ge=0)] = 64
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
            width=model.hidden_size,
            heads=model.num_attention_heads,
            shared=model.num_shared_blocks,
            attention=(*islice(cycle(model.attention), model.num_hidden_layers - 1), model.last_attention),
            kernel=model.kernel_size,
            tied=model.tie_word_embeddings,
        )

    @property
    def how(self) -> Drawn:
        """How codes are drawn."""
        return Drawn(**self.drawing.model_dump())
