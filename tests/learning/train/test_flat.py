"""Memory that is used again."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from dedloc_kit.learning.train.flat import Scratch


def test_the_same_memory_is_there_again_in_any_shape_that_fits() -> None:
    scratch = Scratch()
    first = scratch.like(torch.zeros(4, 6))
    assert first.shape == (4, 6)
    assert scratch.like(torch.zeros(20)).data_ptr() == first.data_ptr()
    assert scratch.like(torch.zeros(25)).shape == (25,)


def test_each_thread_has_memory_of_its_own() -> None:
    scratch, barrier = Scratch(), Barrier(2)

    def fill(number: float) -> bool:
        mine = scratch.like(torch.zeros(1000)).fill_(number)
        barrier.wait(10.0)
        return bool((mine == number).all())

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(fill, (1.0, 2.0)))
