"""A host names its cells by a bit for each."""

import pytest
import torch
from hivemind.utils import MSGPackSerializer

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.records.experts import HostOffer, LayerCells
from dedloc_kit.swarm.experts.offer import cells_of, layers_of
from dedloc_kit.swarm.network.kinds import HOSTS
from tests.swarm.experts.local_hosts import offer


def test_cells_come_back_as_they_were() -> None:
    names = [ExpertName(3, 0, 0), ExpertName(3, 4, 6), ExpertName(7, 2, 1)]
    sent = offer([]).model_copy(update={"layers": layers_of(names, (5, 7))})
    read = HostOffer.parse(MSGPackSerializer.loads(MSGPackSerializer.dumps(sent.model_dump())))
    cells = cells_of(read.layers, (5, 7))
    assert {layer: each.nonzero().tolist() for layer, each in cells.items()} == {3: [[0, 0], [4, 6]], 7: [[2, 1]]}
    assert all(each.shape == (5, 7) and each.dtype == torch.bool for each in cells.values())


@pytest.mark.parametrize("grid", [(4, 7), (6, 7), (1, 1), (5, 6)])
def test_cells_of_another_grid_are_refused(grid: tuple[int, int]) -> None:
    sent = offer([]).model_copy(update={"layers": layers_of([ExpertName(0, 4, 6)], (5, 7))})
    with pytest.raises(ValueError, match="not those of a grid"):
        cells_of(sent.layers, grid)


def test_the_largest_grids_of_twenty_layers_fit_into_a_record() -> None:
    names = [ExpertName(layer, row, 0) for layer in range(20) for row in range(64)]
    sent = offer([]).model_copy(update={"layers": layers_of(names, (64, 64)), "through": ("p" * 60,) * 4})
    assert len(MSGPackSerializer.dumps(sent.model_dump())) < HOSTS.bytes - 900


@pytest.mark.parametrize(
    "layers",
    [
        [{"layer": 1, "cells": b""}],
        [{"layer": 1, "cells": bytes(513)}],
        [{"layer": 1, "cells": bytes(8)}] * 2,
        [{"layer": at, "cells": bytes(8)} for at in range(65)],
        [{"layer": -1, "cells": bytes(8)}],
    ],
)
def test_what_no_host_says_is_refused(layers: list[dict[str, object]]) -> None:
    plain = offer([]).model_dump()
    assert HostOffer.parse({**plain, "layers": [{"layer": 1, "cells": bytes(8)}]}).layers == (
        LayerCells(layer=1, cells=bytes(8)),
    )
    with pytest.raises(ValueError, match="HostOffer"):
        HostOffer.parse({**plain, "layers": layers})
