"""Microbatches that somebody names are computed again, for the organizer's question."""

import logging
from contextlib import suppress
from functools import lru_cache

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sampler import Origin
from dedloc_kit.learning.data.sources.blocks import Unread
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.batches import ORIGIN, Batches, origin_of, seed_for
from dedloc_kit.learning.train.computing.recomputing import Again, Wanted
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.projections import project
from dedloc_kit.swarm.audits.questions import MAX_ASKED, Found, Recompute
from dedloc_kit.swarm.trust.pledge import Work

_AUTHORS = 2
"""Of whose data so much is kept open: where it lies, and how many rows its files have."""

_log = logging.getLogger(__name__)


def line_of(batch: Batch, step: int) -> bytes:
    """The line of work for a microbatch that was computed with the parameters of a step; empty if it has no name, as
    where a task makes its samples itself."""
    if ORIGIN not in batch:
        return b""
    origin = origin_of(batch)
    return Work(origin.block, origin.missing, origin.position, origin.samples, step).content


class Recomputer:
    """Answers what the organizer asks; use it in one thread.

    :param module: as for `create_task`
    :param parameters: of the steps whose microbatches can be computed
    :param again: how this peer computes
    """

    def __init__(self, run: RunConfig, module: str | None, parameters: KeptParameters, again: Again) -> None:
        self._run, self._module = run, module
        self._parameters, self._again = parameters, again
        self._opened = lru_cache(_AUTHORS)(self._open)

    def answer(self, question: Recompute, again: Again | None = None) -> Found:
        """What comes out, for all lines; nothing if one of them cannot be computed here, or the question is none.

        :param again: computes it, as another than this peer usually does
        """
        try:
            return self._answer(question, again or self._again)
        except (ValueError, Unread, UserError) as error:
            _log.info("asked for work that cannot be computed here: %s", error)
            return Found()

    def prepare(self, question: Recompute) -> None:
        """Read what can be read of its data, so that the answer comes soon."""
        with suppress(ValueError, Unread, UserError):
            for line in Work.read_all(question.work):
                self._batch(question, line)

    def _answer(self, question: Recompute, again: Again) -> Found:
        begin, end, lines = question.begin, question.end, Work.read_all(question.work)
        if not begin < end <= min(self._parameters.size, begin + CHUNK) or len(lines) > MAX_ASKED:
            raise ValueError(f"{len(lines)} lines and the values from {begin} to {end}")
        step, parameters = -1, None
        projections, norms, weights = [], [], []
        for line in lines:
            if line.step != step:
                step, parameters = line.step, self._parameters.read(line.step)
            if parameters is None:
                raise ValueError(f"the parameters of step {step} are not kept")
            batch = self._batch(question, line)
            part = again(Wanted(batch, parameters, step, begin, end))
            if part is None:
                raise ValueError(f"{line.samples} samples do not suit this device, or their gradient is not finite")
            projections.append(tuple(project(part.values, question.seed).tolist()))
            norms.append(part.norm)
            weights.append(part.weight)
        return Found(projections=tuple(projections), norms=tuple(norms), weights=tuple(weights))

    def _batch(self, question: Recompute, line: Work) -> Batch:
        origin = Origin(line.block, line.missing, line.position, line.samples)
        return self._opened(question.author).derive(origin)

    def _open(self, author: str) -> Batches:
        """The data of a volunteer, the same in all its sessions, through a task of its own: what the training uses is
        at work elsewhere."""
        task = create_task(self._run, self._module)
        return Batches(self._run, task, seed_for(self._run, author), _log.info, self._module)
