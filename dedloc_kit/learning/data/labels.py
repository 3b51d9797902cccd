"""The places of a batch that have labels, looked up on the host: a GPU would have to be waited for to count them."""

from torch import Tensor

from dedloc_kit.learning.data.masking import IGNORED

PLACES, TARGETS = "places", "targets"
"""In a prepared batch: the numbers of the places that have labels, counted through all rows, int64 [labels]; and their
labels, int64 [labels]."""


def places_of(labels: Tensor) -> dict[str, Tensor]:
    """`PLACES` and `TARGETS` of labels [rows, length], where `IGNORED` is none."""
    flat = labels.flatten()
    places = (flat != IGNORED).nonzero()[:, 0]
    return {PLACES: places, TARGETS: flat[places]}


def at_places(hidden: Tensor, places: Tensor) -> Tensor:
    """Of hidden states [rows, length, width] those at such places, [labels, width]."""
    return hidden.flatten(0, 1).index_select(0, places)
