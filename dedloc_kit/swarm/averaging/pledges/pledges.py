"""A member's side of `trust.pledge`: it encodes all that it will send, commits to that, and can show it afterwards."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.proofs import Shown
from dedloc_kit.swarm.audits.questions import Proof, Prove
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.trust.commitments import Commitment
from dedloc_kit.swarm.trust.pledge import Pledged, Sealed, nothing_pledged, part_content, pieces, window

LOTS = 4
"""Rounds of which all that was committed to is kept. A round that failed here may have counted elsewhere."""
WORK_ROUNDS = 16
"""The same of the work alone, which says that nothing is brought again."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Made:
    """What a round's roots were made of, as far as it stays in memory."""

    chunks: tuple[tuple[int, int], ...]
    parts: Commitment
    before: Commitment
    after: Commitment


class Pledges:
    """Of this peer, for one round after the other. One thread at a time may use it; any thread may `prove`.

    :param kept: `LOTS` lots of it
    :param rounds: in which it has introduced itself
    """

    def __init__(self, kept: Kept, rounds: IntroducedRounds) -> None:
        self._kept, self._rounds = kept, rounds
        self._made: dict[str, _Made] = {}
        self._work: dict[str, bytes] = {}
        self._standing: tuple[int, str] = (0, "")
        # Of the residuals, so that those after a round are not hashed again before the next one.
        self._now: Commitment | None = None
        self._next: Commitment | None = None

    def seal(
        self, group: str, mine: Contribution, work: Sequence[bytes], plan: Plan, flat: Tensor, coding: Coding
    ) -> tuple[Pledged, Sealed | None]:
        """Encode all of this peer's vector, and commit to it and to the lines of work. Takes a while; raises ValueError
        for a vector that cannot be encoded, samples without work, or a round that this peer was introduced to before.

        :param coding: begun with its samples
        :return: nothing is sealed of who brings no samples
        """
        self._rounds.add(group)
        self._next = self._now
        if not mine.samples:
            return nothing_pledged(mine, group), None
        encoded = tuple(
            coding.sent.encode(coding.of_gradients(begin, plan.layout), flat[begin:end], begin).SerializeToString()
            for begin, end in plan.chunks
        )
        before = _contents(coding.sent.residual, plan.layout.size)
        after = _contents(coding.sent.next_residual(), plan.layout.size)
        parts = [part_content(*chunk, each) for chunk, each in zip(plan.chunks, encoded, strict=True)]
        made = _Made(plan.chunks, Commitment(parts), self._now or Commitment(before), Commitment(after))
        self._next = made.after
        confirmed, standing = self._standing
        pledged = Pledged.parse(
            {
                **mine.model_dump(),
                "group": group,
                "parts": made.parts.root,
                "before": made.before.root,
                "after": made.after.root,
                "work": Commitment(work).root,
                "microbatches": len(work),
                "confirmed": confirmed,
                "standing": standing,
            }
        )
        self._work[group] = b"".join(work)
        for old in list(self._work)[:-WORK_ROUNDS]:
            del self._work[old]
        self._keep(group, made, [*encoded, *before, *after, self._work[group]])
        return pledged, Sealed(encoded, made.parts)

    def _keep(self, group: str, made: _Made, contents: Sequence[bytes | memoryview]) -> None:
        try:
            self._kept.put(group, contents)
        except OSError as error:
            _log.warning("what was pledged in a round cannot be shown to who checks it: %s", error)
            return
        newest = islice(reversed({**self._made, group: made}.items()), LOTS)
        self._made = dict(reversed(list(newest)))  # in one piece, for another thread may look into it

    def stand(self, confirmed: int, standing: str) -> None:
        """The organizer has confirmed so much; it goes into what is pledged from now on."""
        self._standing = confirmed, standing  # in one piece, for another thread may be sealing

    def counted(self) -> None:
        """The round is complete with this peer: what it lost is the residual of the next one."""
        self._now = self._next

    def forget(self) -> None:
        """Another state was loaded, to which no loss of this peer belongs."""
        self._now = self._next = None

    def close(self) -> None:
        """Nothing can be shown any more."""
        self._made = {}
        self._kept.close()

    def work_of(self, group: str) -> bytes | None:
        """All lines of work that were committed to in a round; none if they are not kept."""
        return self._work.get(group)

    def prove(self, question: Prove) -> Shown | None:
        """What was committed to; nothing if it is not kept. It reads from the disk."""
        made = self._made.get(question.group)
        if made is None:
            return None
        number, count = question.part % len(made.chunks), len(made.chunks)
        begin, end = made.chunks[number]
        piece, size = window(begin, end).piece, made.before.count
        places = (number, count + piece, count + size + piece, count + 2 * size)
        part, before, after, work = (self._kept.part(question.group, place) for place in places)
        if part is None or before is None or after is None or work is None:
            return None
        proof = Proof(
            begin=begin,
            end=end,
            part=made.parts.opening(number),
            before=made.before.opening(piece),
            after=made.after.opening(piece),
        )
        return Shown(proof, part, before, after, work)


def _contents(residual: Tensor | None, size: int) -> list[memoryview]:
    """Its pieces, as they are committed to."""
    numbers = (torch.zeros(size) if residual is None else residual).numpy().astype("<f4", copy=False)
    return [numbers[begin:end].view(np.uint8).data for begin, end in pieces(size)]
