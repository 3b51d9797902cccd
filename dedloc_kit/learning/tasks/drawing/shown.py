"""Captions that the model draws for viewers, the same ones in the same way each time."""

from collections.abc import Callable, Sequence

from torch import Tensor

from dedloc_kit.learning.tasks.drawing.generation import Drawn, generate
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.tasks.features.neighbours import small_picture
from dedloc_kit.records.evaluation import Drawing, Picture

SHOWN = 6
_CHARACTERS = 256


class ShownDrawings:
    """A few held-out captions, which the model draws.

    :param texts: the captions in words
    :param captions: the same, as `Shape.padded` makes them
    :param codes: those of the pictures that they came with, int64 [captions, codes]
    :param decode: what makes pictures uint8 [pictures, 3, size, size] of such codes
    """

    def __init__(
        self,
        texts: Sequence[str],
        captions: Tensor,
        codes: Tensor,
        decode: Callable[[Tensor], Tensor],
        how: Drawn,
        seed: int,
    ) -> None:
        self._texts, self._captions, self._decode, self._how, self._seed = texts, captions, decode, how, seed
        self._real = [small_picture(picture) for picture in decode(codes)]

    def drawn(self, model: DrawingTransformer) -> tuple[tuple[Drawing, ...], tuple[Picture, ...]]:
        """Each with the picture that the caption came with, and all pictures that these name."""
        made = self._decode(generate(model, self._captions, self._how, self._seed))
        pictures = [small_picture(picture) for picture in made]
        samples = tuple(
            Drawing(caption=text[:_CHARACTERS], picture=picture.digest, real=real.digest)
            for text, picture, real in zip(self._texts, pictures, self._real, strict=True)
        )
        return samples, tuple({each.digest: each for each in (*pictures, *self._real)}.values())


def first_different(captions: Tensor, count: int) -> list[int]:
    """The numbers of the first captions of which no two are alike, at most so many."""
    found: dict[bytes, int] = {}
    for number, caption in enumerate(captions):
        found.setdefault(caption.numpy().tobytes(), number)
    return list(found.values())[:count]
