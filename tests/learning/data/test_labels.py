"""The places that have labels, looked up beforehand."""

import torch

from dedloc_kit.learning.data.labels import PLACES, TARGETS, at_places, places_of
from dedloc_kit.learning.data.masking import IGNORED


def test_places_choose_what_a_mask_chooses_also_in_the_backward_pass() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (4, 10), generator=generator)
    labels[torch.rand(4, 10, generator=generator) < 0.6] = IGNORED
    hidden = torch.randn(4, 10, 5, generator=generator, requires_grad=True)
    found = places_of(labels)
    assert torch.equal(found[TARGETS], labels[labels != IGNORED])
    chosen, expected = at_places(hidden, found[PLACES]), hidden[labels != IGNORED]
    assert torch.equal(chosen, expected)
    weights = torch.randn(expected.shape, generator=generator)
    one, other = (torch.autograd.grad((each * weights).sum(), hidden)[0] for each in (chosen, expected))
    assert torch.equal(one, other)


def test_without_labels_there_are_no_places() -> None:
    found = places_of(torch.full((2, 3), IGNORED))
    assert found[PLACES].shape == found[TARGETS].shape == (0,)
    assert at_places(torch.zeros(2, 3, 4), found[PLACES]).shape == (0, 4)
