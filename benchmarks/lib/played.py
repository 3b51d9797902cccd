"""A training that is played in one process, of which some peers are hostile."""

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.lib.attacked import Averaged, Brought, Swarm
from benchmarks.lib.checked import Checks
from benchmarks.lib.gang import Excused, Gang
from benchmarks.lib.hostile_peers import Attack
from benchmarks.lib.learner import Learner
from benchmarks.lib.named_data import NamedData
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Task
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.trust.weight import Earned, Weigh

PEERS, HOSTILE, MICROBATCH = 16, 7, 2


@dataclass(frozen=True)
class Defence:
    """What members are believed."""

    make_reducer: MakeReducer
    weigh: Weigh
    checks: bool = False


@dataclass
class Found:
    """What came of it, besides a model.

    :ivar failed: rounds that moved nothing
    :ivar suspended_after: of each hostile peer, how many steps it had attacked until it was gone; none: it was not sent
        away
    :ivar honest_suspended: how many honest ones were
    :ivar check_share: of all samples whose gradient was computed, how many were to check somebody
    :ivar reasons: of the verdicts, and how many there were of each
    """

    failed: int = 0
    suspended_after: list[int | None] = field(default_factory=list)
    honest_suspended: int = 0
    check_share: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)


class Training:
    """Of one run and seed: the same first weights and the same batches whoever is hostile."""

    def __init__(self, run: RunConfig, task: Task, seed: int, hostile: int = HOSTILE) -> None:
        self.run, self.task, self.seed, self.honest = run, task, seed, PEERS - hostile
        self.data = NamedData(run, task, PEERS, MICROBATCH)
        self._again = Learner(run, task)

    def play(self, attack: Attack, defence: Defence, start: int, peers: int = PEERS) -> tuple[Learner, Found]:
        """The first so many peers train, those after the honest ones are hostile from a step on."""
        learner, codec = Learner(self.run, self.task), codec_of("4bit")
        gang = Gang(attack, range(self.honest, peers), start, self.seed)
        with ExitStack() as stack:
            checks: Checks | None = None
            weigh: Weigh = defence.weigh
            pledges: Sequence[Pledges] = ()
            if defence.checks:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                weigh = Earned(weigh)
                probation = Probation(self.run.probation, weigh)
                chance = random.Random(self.seed)
                checks = Checks(self.run.trust, probation, self.data, self._again, gang, codec, chance)
                pledges = checks.pledges(folder, peers)
                stack.callback(checks.close)
            how = defence.make_reducer, weigh, pledges
            swarm = Swarm(learner.layout, codec, peers, PEERS * MICROBATCH, *how)
            played = _Played(self.data, learner, gang, swarm, checks)
            asyncio.run(played.all_steps(range(peers)))
        return learner, played.found


class _Played:
    """One training."""

    def __init__(self, data: NamedData, learner: Learner, gang: Gang, swarm: Swarm, checks: Checks | None) -> None:
        self._steps, self._first = data.steps, data.steps[0]
        self._learner, self._gang, self._swarm, self._checks = learner, gang, swarm, checks
        self._last = torch.zeros(learner.layout.size)
        self._computed = 0
        self.found = Found()
        self._excused: dict[int, Excused] = {}
        for peer in gang.attacked if gang.how.excuse else ():
            self._excused[peer] = Excused(learner.layout.size, gang.how.excuse == "before")
            swarm.codings[peer] = replace(swarm.codings[peer], sent=self._excused[peer])

    async def all_steps(self, peers: Sequence[int]) -> None:
        """Runs in an event loop, as reducers do."""
        members, leaving = list(peers), set[int]()
        for number in range(len(self._steps)):
            self._gang.announce(number, members)
            averaged = self._step(number, members)
            members = [peer for peer in members if peer not in leaving]
            leaving = self._convicted(averaged)  # they take part once more: so long it takes until everybody knows
        gone = set(peers) - set(members) | leaving
        attacked = self._gang.attacked
        self.found.suspended_after = [attacked[peer] if peer in gone else None for peer in attacked]
        self.found.honest_suspended = len(gone - attacked.keys())
        if self._checks is not None:
            self.found.check_share = self._checks.computed / (self._checks.computed + self._computed)

    def _step(self, number: int, members: Sequence[int]) -> Averaged | None:
        gang, learner, batches, first = self._gang, self._learner, self._steps[number], self._first
        if self._checks is not None:
            self._checks.begin(learner.step, learner.weights(), members)
        own = {peer: learner.gradient(gang.computes_with(peer, batches[peer], first[peer])) for peer in members}
        self._computed += MICROBATCH * len(own)
        brought = {}
        for peer, vector in gang.sends(own, self._last, self._swarm.chunks[0][1:]).items():
            work = gang.names(peer, batches[peer], first[peer], learner.step)
            brought[peer] = Brought(vector, MICROBATCH * gang.claims(peer), work)
            self._excuse(peer, brought[peer].samples * (own[peer] - vector))
        averaged = self._swarm.average(learner.step + 1, brought)
        if averaged is None:
            self.found.failed += 1
            return None
        self._last = averaged.values.clone()
        learner.set_gradient(averaged.values)
        learner.update()
        return averaged

    def _convicted(self, averaged: Averaged | None) -> set[int]:
        if self._checks is None or averaged is None:
            return set()
        verdicts = self._checks.stepped(self._learner.step, averaged.contributions)
        for each in verdicts:
            reason = re.sub(r" \(global step \d+\)| \d+", "", each.why)
            self.found.reasons[reason] = self.found.reasons.get(reason, 0) + 1
        return {int(each.peer) for each in verdicts}

    def _excuse(self, peer: int, lie: Tensor) -> None:
        if peer in self._excused:
            self._excused[peer].excuse = lie
            if self._gang.how.excuse == "before" and self._swarm.pledges:
                self._swarm.pledges[peer].forget()  # what it committed to after the last round
