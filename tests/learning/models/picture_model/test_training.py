"""A picture model of one's own: it learns, it uses its codes, and it says so when it does not."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
import torch
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.data.pictures.images import Pixels
from dedloc_kit.learning.models.picture_model.autoencoder import Autoencoder
from dedloc_kit.learning.models.picture_model.codebook import Codebook
from dedloc_kit.learning.models.picture_model.loading import Ready
from dedloc_kit.learning.models.picture_model.settings import Training
from dedloc_kit.learning.models.picture_model.training import Quality, architecture_of, check_use, quality, train
from tests.pictures import draw

PICTURES = PictureCodes(model="somewhere", codes=32, side=4, size=16)
TRAINING = Training(steps=100, batch=16, width=8, code_width=4)


def striped(first: int) -> Iterator[Pixels]:
    return (np.asarray(draw(number, 16)) for number in count(first))


def some(first: int, number: int) -> list[Pixels]:
    stream = striped(first)
    return [next(stream) for _ in range(number)]


def trained(training: Training = TRAINING, seed: int = 0) -> Autoencoder:
    return train(architecture_of(PICTURES, training), training, striped(0), seed, lambda *_: None)


def test_it_learns_to_draw_held_out_pictures() -> None:
    told: list[tuple[int, float, float]] = []
    network = train(architecture_of(PICTURES, TRAINING), TRAINING, striped(0), 0, lambda *values: told.append(values))
    held_out = some(100_000, 64)

    def measured(network: Autoencoder) -> Quality:
        return quality(Ready(network, PICTURES), held_out, some(0, 64))

    begun, learned = measured(trained(TRAINING.model_copy(update={"steps": 1}))), measured(network)
    assert learned.decibels > begun.decibels + 2
    assert learned.used >= 10
    check_use(network, PICTURES, some(0, 64))
    assert [step for step, _, _ in told] == list(range(1, 101))
    assert told[-1][1] < told[0][1] / 1.5


def test_the_same_seed_gives_the_same_model() -> None:
    few = TRAINING.model_copy(update={"steps": 4})
    one, again, other = trained(few), trained(few), trained(few, seed=1)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in one.state_dict().items())
    assert not torch.equal(one.codebook.words, other.codebook.words)


def test_decibels_are_those_of_the_mean_squared_error() -> None:
    class Darker:
        codes, side, size = 32, 4, 16

        def encode(self, pictures: torch.Tensor) -> torch.Tensor:
            self.pictures = pictures
            return torch.zeros(len(pictures), 4, 4, dtype=torch.int64)

        def decode(self, codes: torch.Tensor) -> torch.Tensor:
            return torch.full((len(codes), 3, 16, 16), 90, dtype=torch.uint8)

    gray = np.full((16, 16, 3), 100, np.uint8)
    found = quality(Darker(), [gray, gray], [gray])
    assert found.decibels == pytest.approx(20 * np.log10(255 / 10))
    assert found.used == 1


def test_codes_move_to_what_has_them_and_unused_ones_are_dealt_anew() -> None:
    torch.manual_seed(0)
    book, generator = Codebook(16, 3), torch.Generator().manual_seed(0)
    # Everything that is seen lies near four directions; the book begins anywhere.
    centres = functional.normalize(torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]]), dim=-1)
    for _ in range(600):
        seen = centres[torch.randint(4, (64,), generator=generator)]
        seen = functional.normalize(seen + 0.1 * torch.randn(64, 3, generator=generator), dim=-1)
        book.follow(seen, book.nearest(seen), generator)
    nearest = (functional.normalize(book.words, dim=-1) @ centres.T).max(dim=-1)
    assert (nearest.values > 0.95).all()
    assert len(nearest.indices.unique()) == 4
    assert len(book.nearest(seen).unique()) > 12
    codes = torch.arange(16)
    assert torch.equal(book.nearest(book.look_up(codes)), codes)


def test_a_codebook_that_collapses_says_so_with_the_share_of_its_codes() -> None:
    # All places of a blank picture are alike, but for those at its borders.
    blank, pictures = np.full((16, 16, 3), 200, np.uint8), PICTURES.model_copy(update={"codes": 1024})
    training = TRAINING.model_copy(update={"steps": 5})
    network = train(architecture_of(pictures, training), training, iter([blank] * 1000), 0, lambda *_: None)
    with pytest.raises(UserError, match=r"collapsed: \d+ of 1024 codes \([01]\.\d%\) are in use; .*training\.steps"):
        check_use(network, pictures, [blank] * 100)


@pytest.mark.parametrize("side", [16, 5, 1])
def test_codes_of_a_size_that_cannot_be_trained_are_refused_with_the_sizes_that_can(side: int) -> None:
    size = 16 if side == 16 else 15 if side == 5 else 128
    with pytest.raises(UserError, match=r"cannot be trained here; set size to side times 2, 4, 8, 16, 32 or 64"):
        architecture_of(PICTURES.model_copy(update={"side": side, "size": size}), TRAINING)
