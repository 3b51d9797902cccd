"""Data on a Hub that is busy, or of which a file never comes to its end: training data goes on, and what is lost is
counted and shown."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.blocks import Block, Blocks
from dedloc_kit.learning.data.sources.data_issues import Loss
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.stream import texts
from tests.loopback_hub import LoopbackHub, loopback_hub

READERS, FILES, BLOCKS = 4, 3, 2
FAR = "of/words"


def write(folder: Path) -> Path:
    for number in range(FILES):
        table = pyarrow.table({"text": [f"{number} {row:050}" for row in range(2000)]})
        path = folder / f"train-{number:05d}-of-{FILES:05d}.parquet"
        parquet.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        write(tmp_path)
        served.commits[f"datasets/{FAR}"] = [{path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}]
        yield served


def blocks(dataset: str, seed: int, warn: Warn) -> list[Block]:
    found = Blocks([Source(dataset=dataset)], texts, seed=seed, warn=warn, stretch=2**13)
    return list(islice(found.from_block(0), BLOCKS))


def test_four_readers_that_find_the_hub_busy_at_once_wait_as_it_asks_and_lose_nothing(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    told, found = list[str](), dict[int, list[Block]]()

    def read(seed: int) -> None:
        found[seed] = blocks(FAR, seed, told.append)

    hub.rush = threading.Barrier(READERS)
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert hub.rush is None, "all four were refused"
    for seed in range(READERS):
        assert [each.items for each in found[seed]] == [each.items for each in blocks(str(tmp_path), seed, pytest.fail)]
        assert not any(each.missing is not None for each in found[seed])
    assert not told


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_file_that_stalls_at_its_end_is_left_out_counted_and_told_once(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.stalled = f"train-00001-of-{FILES:05d}.parquet"
    told = list[str]()
    found = Blocks([Source(dataset=FAR)], texts, seed=0, warn=told.append, checked=False, stretch=2**13)
    here = Blocks([Source(dataset=str(tmp_path))], texts, seed=0, warn=pytest.fail, checked=False, stretch=2**13)
    for number in range(BLOCKS):
        assert sorted(found.block(number).items) == sorted(t for t in here.block(number).items if t[0] != "1")
    assert hub.asked.acquire(blocking=False), "it was asked for what never came"
    (loss,) = [text for text in told if isinstance(text, Loss)]
    assert f"1 of {FILES} files of {FAR} cannot be read" in loss
    assert [path.rpartition("/")[2] for path in loss.losses.unreadable] == [hub.stalled]
