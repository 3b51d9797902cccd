"""The hostile peers of a training that is played: they know all of each other, and attack together."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.lib.hostile_peers import DELAY, Attack, Sight
from dedloc_kit.learning.task import Batch
from dedloc_kit.learning.tasks.batches import origin_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.audits.projections import project
from dedloc_kit.swarm.audits.questions import Found, Recompute
from dedloc_kit.swarm.trust.pledge import Work


class Gang:
    """Honest until the attack begins.

    :param start: the first step, from 0 on, in which they attack
    """

    def __init__(self, how: Attack, peers: Sequence[int], start: int, seed: int) -> None:
        self.how, self._start = how, start
        self.attacked = dict.fromkeys(peers, 0)
        """In how many steps each of them has attacked."""
        self._sent: dict[int, Tensor] = {}
        self._before: list[dict[int, Tensor]] = []
        self._generator = torch.Generator().manual_seed(seed)
        self._step = 0

    def __contains__(self, peer: object) -> bool:
        return peer in self.attacked

    @property
    def begun(self) -> bool:
        return self._step >= self._start

    @property
    def active(self) -> bool:
        """In the step that was announced last."""
        return self.begun and (self._step - self._start) % self.how.every == 0

    def announce(self, step: int, members: Sequence[int]) -> None:
        """A step begins, with these members."""
        self._step = step
        if self.active:
            for peer in self.attacked.keys() & set(members):
                self.attacked[peer] += 1

    # What they bring

    def computes_with(self, peer: int, batch: Batch, first: Batch) -> Batch:
        if not self.active or peer not in self:
            return batch
        if self.how.first_batch:
            return first
        return self.how.data(batch) if self.how.data else batch

    def sends(self, own: Mapping[int, Tensor], last: Tensor, chunk: tuple[int, int]) -> dict[int, Tensor]:
        """What all members send, given what each has computed; `last` and `chunk` as in `Sight`."""
        mine = {peer: vector for peer, vector in own.items() if peer in self}
        self._before = [*self._before, mine][-DELAY - 1 :]
        self._sent = mine
        if self.active and mine:
            good = torch.stack([vector for peer, vector in own.items() if peer not in self])
            before = [[each[peer] for peer in mine] for each in self._before[:-1]]
            sight = Sight(list(mine.values()), good, before, last, chunk, self._generator)
            self._sent = dict(zip(mine, self.how.send(sight), strict=True))
        return {**own, **self._sent}

    def claims(self, peer: int) -> int:
        """Times the samples that it has."""
        return self.how.claims if self.active and peer in self else 1

    def names(self, peer: int, batch: Batch, first: Batch, step: int) -> tuple[bytes, ...]:
        """The lines of work of a member, whose own batch this is."""
        hostile = self.active and peer in self
        origin = origin_of(first if hostile and self.how.first_batch == "named" else batch)
        line = Work(origin.block, origin.missing, origin.position, origin.samples, step)
        each = range(self.claims(peer))
        if hostile and self.how.twice:
            return (line.content,) * len(each)
        return tuple(line._replace(position=line.position + number * line.samples).content for number in each)

    # What they answer

    def shows(self, peer: int) -> bool:
        """Does a member show its work?"""
        return not (self.begun and peer in self and self.how.answers == "nothing")

    def answers(self, peer: int, question: Recompute, truth: Callable[[], Found]) -> Found:
        """What a member says that it found."""
        author = int(question.author)
        if not self.begun or peer not in self:
            return truth()
        if self.how.answers == "nothing":
            return Found()
        if author == peer or (self.how.answers == "covers" and author in self):
            return _as_sent(self._sent[author], question)
        found = truth()
        if self.how.answers == "accuses" and author not in self:
            opposite = tuple(tuple(-x for x in each) for each in found.projections)
            return found.model_copy(update={"projections": opposite})
        return found


class Excused(Feedback):
    """Feedback of a peer that says something else of what compression has lost than is true.

    :param in_past: it lies about what was lost before a round, and each time anew, not after it and from then on
    """

    def __init__(self, size: int, in_past: bool) -> None:
        super().__init__(size)
        self._in_past = in_past
        self._lie = torch.zeros(size)
        self.excuse = torch.zeros(size)
        """What is to be added to what it sends in the next round, times its weight."""

    @property
    def residual(self) -> Tensor:
        true = super().residual
        said = self._lie if true is None else true + self._lie
        return said - self.excuse if self._in_past else said

    def next_residual(self) -> Tensor:
        true = super().next_residual()
        assert true is not None, "what it sends is compressed"
        return true if self._in_past else true + (self._lie + self.excuse)

    def commit(self) -> None:
        super().commit()
        if not self._in_past:
            self._lie = self._lie + self.excuse


def _as_sent(vector: Tensor, question: Recompute) -> Found:
    """So that it adds up, whatever was sent."""
    count = len(Work.read_all(question.work))
    projections = tuple(project(vector[question.begin : question.end], question.seed).tolist())
    return Found(projections=(projections,) * count, norms=(float(vector.norm()),) * count, weights=(1.0,) * count)
