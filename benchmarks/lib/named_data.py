"""What sixteen peers train on: in blocks, so that every microbatch has a name and can be made again from it."""

from functools import lru_cache
from itertools import islice

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.sampler import Origin
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.learning.tasks.batches import Batches, origin_of
from dedloc_kit.swarm.trust.pledge import Work


class NamedData:
    """The microbatches of all peers and steps.

    :param run: with checks
    """

    def __init__(self, run: RunConfig, task: Task, peers: int, microbatch: int) -> None:
        self._each = [Batches(run, task, seed_of(run.run_id, "peer", peer), print) for peer in range(peers)]
        streams = [each.batches(microbatch) for each in self._each]
        self.steps: list[tuple[Batch, ...]] = list(islice(zip(*streams, strict=True), run.optimizer.total_steps))
        """Of each step, one for each peer."""
        self._made = {(peer, origin_of(batch)): batch for each in self.steps for peer, batch in enumerate(each)}
        self._derived = lru_cache(1024)(self._derive)

    def named(self, peer: int, line: Work) -> Batch:
        """The one that a line of a peer's work names; raises ValueError if there is none."""
        origin = Origin(line.block, line.missing, line.position, line.samples)
        made = self._made.get((peer, origin))  # it would be derived bit for bit
        return self._derived(peer, origin) if made is None else made

    def _derive(self, peer: int, origin: Origin) -> Batch:
        return self._each[peer].derive(origin)
