"""What a run's file says of the task `text-to-image`."""

from itertools import cycle, islice
from typing import Annotated

from pydantic import Field, model_validator

from dedloc_kit.config.section import SAMPLES, TOKENS, PositiveFloat, PositiveInt, Section, Unit
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
    """Width of the layers."""
    num_attention_heads: PositiveInt = 16
    """The number of attention heads of a layer."""
    num_hidden_layers: PositiveInt = 64
    """The number of layers."""
    num_shared_blocks: PositiveInt = 4
    """The number of blocks that all layers but the last use in turn; the last layer has a block of its own."""
    attention: tuple[Attention, ...] = Field(default=("row", "column", "row", "row"), min_length=1)
    """What the layers attend to beside the caption, in turn: the `full` picture, the same `row` or `column`, or a
    neighbourhood (`convolution`)."""
    last_attention: Attention = "convolution"
    """What the last layer attends to."""
    kernel_size: Annotated[int, Field(ge=1), Unit("codes")] = 11
    """Height and width of the neighbourhood of `convolution`, an odd number."""
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
    """How the evaluation samples pictures; also the default of the exported model."""

    top_k: PositiveInt = 40
    """Each code is drawn from this many most likely ones."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; lower values prefer likely codes."""
    guidance_scale: Annotated[float, Field(ge=0)] = 1.0
    """Classifier-free guidance: above 1 pictures follow the caption more closely, in twice the time."""


class TextToImageOptions(Section):
    """The keys of `task` beside its name."""

    tokenizer: str = Field(min_length=1)
    """The tokenizer of the captions: a folder, or `OWNER/NAME@COMMIT` of the Hub."""
    language: Annotated[str, Field(pattern=LANGUAGE_CODE)] = DEFAULT_LANGUAGE
    """ISO 639 code of the captions, for the model card."""
    vocab_size: Annotated[PositiveInt, TOKENS] = 32_000
    """Size of the vocabulary that `dedloc prepare tokenizer` trains."""
    tokenization: Tokenization | None = None
    """The kind of tokenizer that `dedloc prepare tokenizer` trains; by default `bpe`."""
    pictures: PictureCodes
    """The picture model, which turns pictures into codes and back."""
    caption_length: Annotated[int, Field(ge=2, le=MAX_CAPTION), TOKENS] = 256
    """The longest caption; longer ones are cut."""
    image_loss_weight: PositiveFloat = 7.0
    """Weight of the loss of the codes, relative to that of the caption."""
    caption_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of samples that are learned without their caption, for classifier-free guidance."""
    evaluation_samples: Annotated[int, Field(ge=2), SAMPLES] = 256
    """The number of held-out samples on which the losses are measured."""
    ranking_samples: Annotated[int, Field(ge=0), SAMPLES] = 64
    """The number of held-out pictures for which the model picks their caption out of 16; 0: none."""
    drawing: DrawingOptions = DrawingOptions()
    """How pictures are sampled."""
    model: TransformerOptions = TransformerOptions()
    """The shape of the transformer."""

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
