"""A volunteer's data, resumed at the position that its folder keeps."""

from collections.abc import Callable

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.known_peers import DataRead, ReadUpTo, data_read
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.data.sampler import DECAY, Position
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.tasks.batches import DECAY_START, TRAIN_START, Batches, Feed, seed_for


def feed_of(
    run: RunConfig, task: Task, peer: PeerConfig, name: str, warn: Callable[[str], None], loader: Loader | None = None
) -> Feed:
    """The batches of a peer, from the position that its folder keeps.

    :param name: the id of this peer
    :param warn: as for `Batches`
    :param loader: as for `Feed`
    """
    read = data_read(peer.folder, run.run_id, name)
    train, decay = (None if each is None else Position(each.block, each.sample) for each in (read.train, read.decay))
    return Feed(
        Batches(run, task, seed_for(run, name), warn, peer.task_module),
        train if train is not None and train.block < DECAY else TRAIN_START,
        decay if decay is not None and DECAY <= decay.block < 2 * DECAY else DECAY_START,
        loader,
    )


def positions_of(feed: Feed) -> DataRead:
    """The positions of a feed, for `Memory`."""
    decay = None if feed.decay == DECAY_START else ReadUpTo(block=feed.decay.block, sample=feed.decay.sample)
    return DataRead(train=ReadUpTo(block=feed.train.block, sample=feed.train.sample), decay=decay)
