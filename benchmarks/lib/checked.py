"""Checks of a swarm that is played in one process: the package's pledges, proofs and auditor, without its network.

The audits of a step are done, one after the other, before the next step begins, so nothing hangs on the clock.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from benchmarks.lib.gang import Gang
from benchmarks.lib.learner import Learner
from benchmarks.lib.named_data import NamedData
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.encoding.codec import Codec
from dedloc_kit.swarm.audits.auditor import Auditor
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.audits.projections import project
from dedloc_kit.swarm.audits.proofs import Proven, Shown
from dedloc_kit.swarm.audits.questions import Found, Prove, Recompute
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.pledges.proving import proven, work_of
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.trust.pledge import Pledged, Work, nothing_lost

KEPT_STEPS = 4
"""Of which parameters are kept: audits look at the last one, whose work names the one before."""


class Checks:
    """The coordinator's auditor, and those it asks.

    :param probation: what has been confirmed so far
    :param again: computes microbatches again
    :param chance: what is drawn
    """

    def __init__(
        self,
        trust: TrustConfig,
        probation: Probation,
        data: NamedData,
        again: Learner,
        gang: Gang,
        codec: Codec,
        chance: random.Random,
    ) -> None:
        self._asked = _Asked(data, again, gang, codec)
        self._verdicts: list[Verdict] = []
        nothing = nothing_lost(again.layout.size)
        self._auditor = _InTurn(trust, probation, nothing, self._asked, self._verdicts.append, chance)

    def pledges(self, folder: Path, peers: int) -> Sequence[Pledges]:
        """Of each peer, in an empty folder."""
        self._asked.pledges = [
            Pledges(Kept(folder / str(peer), LOTS), IntroducedRounds(folder / f"rounds of {peer}"))
            for peer in range(peers)
        ]
        return self._asked.pledges

    @property
    def computed(self) -> int:
        """Samples whose gradient was computed to check somebody."""
        return self._asked.computed

    def begin(self, step: int, parameters: Tensor, members: Sequence[int]) -> None:
        """These members begin to compute with the parameters of a global step."""
        self._asked.members = members
        kept = self._asked.parameters
        kept[step] = parameters
        kept.pop(step - KEPT_STEPS, None)

    def stepped(self, step: int, contributions: Mapping[str, Contribution]) -> list[Verdict]:
        """A global step is done: audit it; returns who was convicted."""
        self._verdicts.clear()
        self._auditor.stepped(step, contributions)
        self._auditor.do_all()
        return list(self._verdicts)

    def close(self) -> None:
        self._auditor.close()
        for each in self._asked.pledges:
            each.close()


class _InTurn(Auditor):
    """Its threads could draw in any order."""

    _due: Sequence[Callable[[], None]] = ()

    def _submit(self, task: Callable[[], None]) -> None:
        self._due = (*self._due, task)

    def do_all(self) -> None:
        due, self._due = self._due, ()
        for task in due:
            task()


class _Asked:
    """All volunteers, as `trust.audit.Inquiry`."""

    def __init__(self, data: NamedData, again: Learner, gang: Gang, codec: Codec) -> None:
        self._data, self._again, self._gang, self._codec = data, again, gang, codec
        self._lock = threading.Lock()
        self.pledges: Sequence[Pledges] = ()
        self.members: Sequence[int] = ()
        self.parameters: dict[int, Tensor] = {}
        self.computed = 0

    def here(self) -> Mapping[str, float]:
        return {str(peer): 1.0 for peer in self.members}

    def prove(self, peer: str, question: Prove) -> Shown:
        shown = self.pledges[int(peer)].prove(question) if self._gang.shows(int(peer)) else None
        if shown is None:
            raise NoAnswer(peer)
        return shown

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        return proven(pledged, question, shown, self._again.layout, self._codec)

    def work(self, peer: str, pledged: Pledged) -> list[Work]:
        shown = self.pledges[int(peer)].work_of(pledged.group) if self._gang.shows(int(peer)) else None
        if shown is None:
            raise NoAnswer(peer)
        return work_of(pledged, shown)

    def reducers(self, group: str) -> tuple[str, ...]:
        return ()  # here the swarm itself averages

    def made(self, group: str, number: int) -> Tensor:
        raise ValueError("nobody reduces")

    def sent(self, peer: str, pledged: Pledged, number: int) -> Tensor:
        raise ValueError("nobody reduces")

    def confirm(self, peer: str, samples: int) -> None:
        self.pledges[int(peer)].stand(samples, "")

    def recompute(self, peer: str, question: Recompute) -> Found:
        return self._gang.answers(int(peer), question, lambda: self.own(question))

    def own(self, question: Recompute) -> Found:
        try:
            with self._lock:
                lines = Work.read_all(question.work)
                found = [self._gradient(question, line) for line in lines]
        except ValueError:  # there is no such microbatch
            return Found()
        parts = [each[question.begin : question.end] for each in found]
        return Found(
            projections=tuple(tuple(project(part, question.seed).tolist()) for part in parts),
            norms=tuple(float(each.norm()) for each in found),
            weights=tuple(float(line.samples) for line in lines),  # by which members are averaged here
        )

    def _gradient(self, question: Recompute, line: Work) -> Tensor:
        batch = self._data.named(int(question.author), line)
        if line.step not in self.parameters:
            raise ValueError(f"the parameters of step {line.step} are not kept")
        self._again.set_weights(self.parameters[line.step])
        self._again.step = line.step
        self.computed += line.samples
        return self._again.gradient(batch)
