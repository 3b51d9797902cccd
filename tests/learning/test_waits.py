"""A card waits for its device once a microbatch at most, whatever the task, and finds what the CPU finds."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat_model import FlatModel
from tests.batches import batches_from
from tests.learning.counting_device import DEVICE, counting, move
from tests.learning.every_task import TASKS, run_of, write_data

SAMPLES, MICROBATCHES = 4, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize("name", TASKS)
def test_a_microbatch_of_a_task_waits_once_at_most_and_is_what_it_is_on_the_cpu(
    name: str, half: torch.dtype | None, folder: Path
) -> None:
    run = run_of(name, folder)
    there, here = create_task(run), create_task(run)
    card = Card(FlatModel(move(there.model()), DEVICE), there.loss, half, prepare=there.prepare)
    plain = Card(FlatModel(here.model(), torch.device("cpu")), here.loss, prepare=here.prepare)
    told, expected = [], []
    for number, batch in enumerate(islice(batches_from(there, SAMPLES, 0, pytest.fail), MICROBATCHES)):
        with counting() as counts:
            assert card.submit(batch)
            if number:  # the first one may bring what stays on the device
                assert not counts.waits
            told += card.results()
        assert not counts.double
        if number:
            assert counts.waits.total() <= 1, counts.waits
        assert plain.submit(batch)
        expected += plain.results()
    told += card.finish()
    # A CPU resizes bytes, and rounds them.
    close, off = (1e-2, 0.5) if name == "swav" else (1e-6, 1e-5)
    if half is not None:  # some of what a model does in half precision asks for no device
        close = off = 0.5
    assert [each.loss for each in told] == pytest.approx([each.loss for each in expected], rel=close)
    found, wanted = card.snapshot(), plain.snapshot()
    assert found is not None
    assert wanted is not None
    one, other = (torch.cat([each.flatten() for each in snapshot.gradients]) for snapshot in (found, wanted))
    assert float((one - other).norm() / other.norm()) < off
