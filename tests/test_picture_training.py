"""A small picture model learns, and uses its codes."""

from itertools import count

import numpy as np
import pytest

from benchmarks.lib.picture_training import Training, architecture_of, train
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.models.picture_model.encoding import Quality, quality
from dedloc_kit.learning.models.picture_model.loading import PictureModel
from tests.pictures import draw

PICTURES = PictureCodes(model="somewhere", codes=32, side=4, size=16)


@pytest.mark.usefixtures("one_thread")
def test_it_learns_to_draw_held_out_pictures_with_many_codes() -> None:
    def trained(steps: int) -> Quality:
        training = Training(steps=steps, batch=16, width=8, code_width=4)
        seen = (np.asarray(draw(number, 16)) for number in count())
        network = train(architecture_of(PICTURES, training), training, seen, seed=0)
        return quality(
            PictureModel(network, PICTURES), [np.asarray(draw(number, 16)) for number in range(100_000, 100_064)]
        )

    begun, learned = trained(1), trained(100)
    assert learned.decibels > begun.decibels + 2
    assert learned.used >= 10
