"""A run whose model is cut into stages, as its coordinator sees it: one state, one optimizer, one step after the other.

Each stage is a part of the run that is averaged for itself. The run has taken a step when all stages have.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.distributed_eval import evaluated_in_parts
from dedloc_kit.coordinator.stage_costs import full_rows
from dedloc_kit.events import Joined, PipelineState
from dedloc_kit.known_peers import Taken, recall
from dedloc_kit.learning.task import StageTask, Task
from dedloc_kit.learning.train.flat import Room
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.rooms import Rooms
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.machine.hardware import machine_at
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.contributions import collect
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network.kinds import STAGES
from dedloc_kit.swarm.peer import SwarmPeer, connected_to_stages
from dedloc_kit.swarm.pipeline.measuring import NotMeasured, Swarming, measuring
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer, StepListener
from dedloc_kit.swarm.rounds.together import Together

KEPT_STEPS = 64
"""That some stages have taken and others have not told of."""

FREE_SHARE = 0.5
"""Of the memory that is free at the start, for the states of stages."""

_log = logging.getLogger(__name__)

_Told = tuple[GlobalStep, dict[str, Contribution]]


class Steps:
    """Puts the steps of all stages together: that of the run is told when the last stage has taken it.

    :param on_step: told of the run's steps, in the thread of whichever stage took it last
    """

    def __init__(self, stages: int, on_step: StepListener) -> None:
        self._stages, self._on_step = stages, on_step
        self._lock = threading.Lock()
        self._told: dict[int, dict[int, _Told]] = {}

    def of_stage(self, stage: int, share: float) -> StepListener:
        """Takes the steps of one of them.

        :param share: of the computation: what a peer gives to this stage counts by it
        """
        return partial(self._take, stage, share)

    def _take(self, stage: int, share: float, step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        with self._lock:
            told = self._told.setdefault(step.step, {})
            counted = {peer: _counted(each, share) for peer, each in contributions.items()}
            if stage < self._stages - 1:  # the loss is known where the last stage is computed
                counted = {peer: each.model_copy(update={"loss": None}) for peer, each in counted.items()}
            told[stage] = step, counted
            if len(told) == self._stages:
                del self._told[step.step]
                self._on_step(*_together([told[number] for number in range(self._stages)]))
            for old in sorted(self._told)[:-KEPT_STEPS]:
                del self._told[old]


def _together(told: Sequence[_Told]) -> _Told:
    given: dict[str, Contribution] = {}
    for _, contributions in told:
        for peer, mine in contributions.items():
            given[peer] = mine if peer not in given else _sum(given[peer], mine)
    steps = [step for step, _ in told]
    times = {"time": max(step.time for step in steps), "seconds": max(step.seconds for step in steps)}
    return steps[-1].model_copy(update={**times, "peers": len(given)}), given


def _counted(contribution: Contribution, share: float) -> Contribution:
    """What counts of the samples that a peer has computed one stage of: rounded so that steps add up to a session."""
    ended = contribution.session_samples
    before, given = (round(share * count) for count in (ended - contribution.samples, ended))
    return contribution.model_copy(update={"samples": given - before, "session_samples": given})


def _sum(one: Contribution, other: Contribution) -> Contribution:
    """Of a peer that moved from stage to stage within the step, or follows several.

    Who moves goes on with its session, and counts what it gave before as if to its new stage: the larger number has
    both. Another session has begun anew.
    """
    samples, sessions = one.samples + other.samples, [one.session_samples, other.session_samples]
    given = max(*sessions, samples) if one.session == other.session else sum(sessions)
    return other.model_copy(update={"samples": samples, "session_samples": given})


class StagedBelief:
    """Whom the coordinator believes of each stage; see `Belief` for what each name promises.

    Who brought the last step of a stage proves what it has come to: those of other stages are not there.
    """

    def __init__(self, beliefs: Sequence[Belief]) -> None:
        self._beliefs = beliefs

    @property
    def taken(self) -> tuple[Taken, ...]:
        """Of each stage."""
        return tuple(belief.taken for belief in self._beliefs)

    def remember(self, taken: Sequence[Taken]) -> None:
        """What stands in the folder; another number of stages is of another run."""
        for belief, each in zip(self._beliefs, taken, strict=False):
            belief.remember(each)

    def took(self, step: int, time: float, samples: Mapping[str, int]) -> None:
        """The whole run; who brought something may have been at any stage of which nothing is remembered."""
        for belief in self._beliefs:
            if not belief.taken.samples:
                belief.took(step, time, samples)


class StagedTracker:
    """Who is there, in all stages; see `Tracker` for what each name promises."""

    def __init__(self, parts: Sequence[SwarmPeer], shares: Sequence[float], incidents: Incidents) -> None:
        self._trackers = [part.optimizer.tracker for part in parts]
        self._shares = shares
        self.incidents = incidents
        self.belief, self.twin = StagedBelief([each.belief for each in self._trackers]), self._trackers[0].twin

    def others(self) -> dict[str, Progress]:
        """What each tells of its stage; its samples count by the stage's share."""
        found: dict[str, Progress] = {}
        for tracker, share in zip(self._trackers, self._shares, strict=True):
            for peer, told in tracker.others().items():
                if peer not in found or found[peer].time < told.time:
                    counted = {
                        "samples": round(share * told.samples),
                        "samples_per_second": share * told.samples_per_second,
                    }
                    found[peer] = told.model_copy(update=counted)
        return found

    def give_way(self, stop: threading.Event) -> None:
        for tracker in self._trackers:
            tracker.give_way(stop)


class StagedOptimizer:
    """Follows all stages; see `CollaborativeOptimizer` for what each name promises."""

    def __init__(self, parts: Sequence[CollaborativeOptimizer], state: StagedState, tracker: StagedTracker) -> None:
        self._parts, self.state, self.tracker = parts, state, tracker
        self._decay_steps = 0

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def last_step(self) -> int:
        return min(part.last_step for part in self._parts)

    @property
    def goes_back(self) -> bool:
        return any(part.goes_back for part in self._parts)

    def begin(self) -> None:
        for part in self._parts:
            part.fills(lambda: math.inf)  # it follows: what a batch holds is known to those who compute
            part.begin()

    def leave(self) -> None:
        for part in self._parts:
            part.leave()

    def check(self) -> None:
        for part in self._parts:
            part.check()

    def end_after(self, step: int) -> None:
        for part in self._parts:
            part.end_after(step)

    def decay_order(self, steps: int) -> str:
        """That of a stage which does not decay yet; `instruct` tells each stage its own."""
        self._decay_steps = steps
        return next(filter(None, [part.decay_order(steps) for part in self._parts]), "")

    def instruct(self, instructions: Instructions) -> None:
        for part in self._parts:
            order = part.decay_order(self._decay_steps) if instructions.decay_order else ""
            part.instruct(instructions.model_copy(update={"decay_order": order, "decay": part.state.decay}))

    def go_back(self, found: Found, rate: float, after: int) -> None:
        """All with the same step: between stages of different steps no microbatch finds its way."""
        together = Together(after, lambda: max(part.step for part in self._parts), len(self._parts))
        for number, (part, of_stage) in enumerate(zip(self._parts, self.state.split(found), strict=True)):
            part.go_back(of_stage, rate, after, partial(together.agree, number))


@contextmanager
def connected_to_all(
    run: RunConfig,
    peer: CoordinatorConfig,
    initial_peers: Sequence[str],
    *,
    stop: threading.Event,
    on_step: StepListener,
) -> Iterator["StagedPeer"]:
    """As `swarm.peer.connected`, for the coordinator of a run in stages: it follows all of them."""
    assert run.pipeline is not None
    steps = Steps(run.pipeline.count, on_step)
    entry = Entry(run, peer, initial_peers, None, may_start_alone=True)

    def caller(number: int, stage: StageTask) -> Caller:
        return Caller(stop, peer.last_step(run), steps.of_stage(number, stage.share), lambda *_: None)

    every = range(run.pipeline.count)
    free = machine_at(peer.folder).free_memory * FREE_SHARE
    rooms = Rooms(peer.folder, free if peer.stages_memory is None else 1e9 * peer.stages_memory)

    def room(stage: StageTask) -> Room:
        return rooms.of(sum(each.numel() for each in stage.outline().parameters()))

    with connected_to_stages(run, peer, entry, initial_peers, lambda _: every, caller, follower=True, room=room) as (
        task,
        parts,
    ):
        offers = Offers(STAGES, parts[0].dht, parts[0].signer, initial_peers, lambda: None)
        offers.start()
        try:
            stages = [task.stage(number) for number in every]
            with measuring(run, parts[0].dht, parts[0].signer, stages, offers.others) as others:
                me = StagedPeer(task, run, parts, offers, others)
                me.optimizer.tracker.belief.remember(recall(peer.folder, run.run_id).parts)
                yield me
        finally:
            offers.stop()


class StagedPeer:
    """The coordinator's machine in all stages; see `SwarmPeer` for what each name promises."""

    def __init__(
        self,
        task: Task,
        run: RunConfig,
        parts: Sequence[SwarmPeer],
        offers: Offers[StageOffer],
        others: Swarming,
    ) -> None:
        self.task, self._parts, self._first, self._offers, self._others = task, parts, parts[0], offers, others
        self._rows = full_rows(run, task)
        self.signer, self.dht, self.port = self._first.signer, self._first.dht, self._first.port
        optimizers = [part.optimizer for part in parts]
        state = StagedState(run, task.whole, [optimizer.state for optimizer in optimizers])
        self._shares = [task.stage(number).share for number in range(len(parts))]
        tracker = StagedTracker(parts, self._shares, self._first.optimizer.tracker.incidents)
        self.optimizer = StagedOptimizer(optimizers, state, tracker)

    def pipeline(self) -> PipelineState:
        """Who holds which stage, and who drives."""
        return PipelineState.of(self._offers.others(), len(self._parts))

    def measured(self, step: int) -> Evaluation | None:
        """What the held-out loss at this step is, as those compute it who hold the stages; none if they cannot."""
        if self.task.unsupported("distributed_eval"):
            return None
        try:
            return evaluated_in_parts(self.task, self._rows, lambda parts: self._others.losses(parts, step))
        except NotMeasured as reason:
            _log.info("step %d is measured here, not in the swarm: %s", step, reason)
            return None

    def reachable(self) -> dict[str, tuple[str, ...]]:
        return {peer: addresses for part in self._parts for peer, addresses in part.reachable().items()}

    def hosts(self) -> dict[str, str]:
        return self._first.hosts()

    def collect(self, reject: Callable[[str], None]) -> list[dict[str, Contribution]]:
        """Of each stage the latest contribution of every peer, counted by the stage's share."""
        return [
            {peer: _counted(each, share) for peer, each in found.items()}
            for part, share in zip(self._parts, self._shares, strict=True)
            for found in [collect(self.dht, part.optimizer.run.run_id, part.optimizer.run.global_batch, reject)]
        ]

    def beginning(self) -> Found:
        return self.optimizer.state.together([part.beginning() for part in self._parts])

    def joined(self) -> Joined:
        run_id, size = self.optimizer.state.run_id, self.optimizer.state.size
        return self._first.joined().model_copy(update={"run_id": run_id, "parameters": size})
