"""The data of a volunteer, from where its folder says that it stopped."""

from collections.abc import Callable

from dedloc_kit.learning.data.loader import Loader
from dedloc_kit.learning.data.sampler import DECAY, Position
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.tasks.batches import LAST, USUAL, Batches, Feed, seed_for
from dedloc_kit.memory import DataRead, ReadUpTo, data_read
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.peer import PeerConfig


def feed_of(
    run: RunConfig, task: Task, peer: PeerConfig, name: str, warn: Callable[[str], None], loader: Loader | None = None
) -> Feed:
    """What a peer trains on.

    :param name: the id of this peer
    :param warn: as for `Batches`
    :param loader: as for `Feed`
    """
    read = data_read(peer.folder, run.run_id, name)
    usual, last = (None if each is None else Position(each.block, each.sample) for each in (read.usual, read.last))
    return Feed(
        Batches(run, task, seed_for(run, name), warn, peer.task_module),
        usual if usual is not None and usual.block < DECAY else USUAL,
        last if last is not None and DECAY <= last.block < 2 * DECAY else LAST,
        loader,
    )


def read_by(feed: Feed) -> DataRead:
    """What is to be remembered of it."""
    last = None if feed.last == LAST else ReadUpTo(block=feed.last.block, sample=feed.last.sample)
    return DataRead(usual=ReadUpTo(block=feed.usual.block, sample=feed.usual.sample), last=last)
