"""A volunteer's data from session to session."""

from itertools import islice
from pathlib import Path

import pytest

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.known_peers import DataRead, Memory, ReadUpTo
from dedloc_kit.learning.data.sampler import DECAY
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import DECAY_START, TRAIN_START, after, origin_of
from dedloc_kit.roles.data import feed_of, positions_of
from tests.text_runs import text_run, write_text

PEER = "QmPeer"


def test_a_second_session_goes_on_where_the_first_ended_and_another_key_begins_anew(tmp_path: Path) -> None:
    write_text(tmp_path)
    run, config = text_run(tmp_path, "causal"), PeerConfig(folder=tmp_path / "peer")
    config.folder.mkdir()
    feed = feed_of(run, create_task(run), config, PEER, pytest.fail)
    assert (feed.train, feed.decay) == (TRAIN_START, DECAY_START)
    with feed.batches(3, lambda: False, ahead=2) as batches:
        last = list(islice(batches, 5))[-1]
    Memory(config.folder, run.run_id, PEER, 1).update({}, read=positions_of(feed), at_once=True)
    with feed_of(run, create_task(run), config, PEER, pytest.fail).batches(8, lambda: False, ahead=2) as batches:
        found = origin_of(next(batches))
        assert (found.block, found.position) == after(last)
    assert feed_of(run, create_task(run), config, "QmOther", pytest.fail).train == TRAIN_START


@pytest.mark.parametrize(
    "read",
    [
        DataRead(train=ReadUpTo(block=DECAY), decay=ReadUpTo(block=3)),
        DataRead(train=ReadUpTo(block=2**50), decay=ReadUpTo(block=2 * DECAY)),
    ],
)
def test_what_a_folder_cannot_mean_is_not_believed(tmp_path: Path, read: DataRead) -> None:
    write_text(tmp_path)
    run, config = text_run(tmp_path, "causal"), PeerConfig(folder=tmp_path)
    Memory(tmp_path, run.run_id, PEER, 1).update({}, read=read)
    feed = feed_of(run, create_task(run), config, PEER, pytest.fail)
    assert (feed.train, feed.decay) == (TRAIN_START, DECAY_START)
