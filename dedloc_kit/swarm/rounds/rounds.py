"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import time
from collections.abc import Callable, Mapping, Sequence
from random import SystemRandom

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.gradients.accumulator import Accumulator
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.position import Position
from dedloc_kit.records.steps import LABEL, MAX_LOSS, Contribution, LeftOut
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.averaging.averager import PendingGroup
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.batch import MAX_PERIOD
from dedloc_kit.swarm.gathering.gathering import Gathering
from dedloc_kit.swarm.gathering.messages import Begun, Carried, Member, Tick
from dedloc_kit.swarm.gathering.timing import GatheringTimes
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.batch import Batch
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.gatherer import Gatherer
from dedloc_kit.swarm.rounds.missing import Missing
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.timing import AdaptiveTimeouts
from dedloc_kit.swarm.trust.weight import Counting

START_MARGIN = 5.0
"""Seconds between the first and the last member that sees a full batch, on a slow line."""
POLL_SECONDS = 0.02


class Rounds:
    """Decides when this peer gathers, with whom, and when it begins; learns from how the round ended."""

    def __init__(
        self,
        state: TrainingState,
        accumulator: Accumulator,
        exchange: Exchange,
        tracker: Tracker,
        signer: Signer,
        profile: Profile,
        branch: StateBranch,
        mine: Callable[[], Position],
    ) -> None:
        """:param mine: where this peer is, and how fast"""
        self._run, self._state, self._branch = state.run, state, branch
        self._accumulator, self._counter = accumulator, accumulator.counter
        self._averager = exchange.averager
        self._tracker, self._peers, self._incidents = tracker, tracker.peers, tracker.incidents
        self._signer, self._profile = signer, profile
        self._timeouts, self._times = AdaptiveTimeouts(), GatheringTimes()
        self.counting = Counting(exchange.weigh, signer.peer)
        vector = exchange.averager.vector
        self.batch = Batch(state, accumulator, vector, tracker, branch.end, self.counting, mine)
        me, table = Member(peer=signer.peer, client=profile.client_mode), tracker.peers.table
        machine = Gathering(me, branch.end, table, self.batch.filling, self._times, SystemRandom())
        self._gatherer = Gatherer(
            *(machine, self.batch, exchange.averager, tracker.peers), lambda: self._timeouts.bandwidth
        )
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._full_at = 0.0  # when the batch was first seen to be full; 0 if it is not
        self.gather_seconds = 0.0
        """What passed in the last round from the full batch until the group stood."""
        self.left_out: LeftOut | None = None
        """Who was to come to the last global step and does not count in it."""
        self._missing = Missing(state, tracker)
        self._decay_order = ""
        self._answered: Callable[[int], dict[str, int]] = lambda step: {}

    def hear(self, events: Sequence[Carried]) -> None:
        """Other peers say this; without it, see what is due."""
        self._gatherer.handle(*events or (Tick(),))

    def seconds_until_due(self) -> float:
        """Until `hear` is due again though nobody says anything."""
        return self._gatherer.machine.deadline - self._peers.now()

    @property
    def under_way(self) -> bool:
        """Is there a group that is being found, waits or averages?"""
        return self._gatherer.under_way

    @property
    def stands(self) -> bool:
        """Is there a group that has been found?"""
        return self._gatherer.group is not None

    @property
    def begun(self) -> bool:
        """Is this peer's contribution to a round on its way?"""
        return self._begun

    @property
    def upload(self) -> float | None:
        """Bytes per second at which this peer got rid of its gradients in recent rounds; none before the first."""
        return self._timeouts.upload

    @property
    def samples(self) -> int:
        """This peer's samples toward the next global step; what accumulates once that is full is for the one after."""
        return self.batch.samples

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known, and as far as they count."""
        with self._peers.lock:
            return self.batch.look().samples(self._peers.now())

    def seconds_left(self) -> float:
        """Until the batch is probably full."""
        with self._peers.lock:
            return self.batch.look().seconds_left(self._peers.now())

    def look_period(self) -> float:
        """Seconds until the next look into the directory is of use."""
        if self._begun:
            return MAX_PERIOD  # nothing that others say now would change this round
        with self._peers.lock:
            return self.batch.look().look_period(self._peers.now())

    def _told(self) -> list[Position]:
        """By those who hold the same state, or are about to."""
        with self._peers.lock:
            in_sync, late = self.batch.filling.peers(self._peers.now())
        return [*late.values(), *in_sync.values()]

    def gather_if_due(self) -> None:
        """Look for a group, and lead others, as soon as it is time."""
        with self._peers.lock:
            in_sync, late = self.batch.filling.peers(self._peers.now())
        self._branch.needed(in_sync.keys() | late.keys())
        self._times.may_need(self._until_all_can_begin())
        self._gatherer.look(active=True)
        if not self._gatherer.machine.pauses(self._peers.now()):  # until then devices go on, though it may be full
            self._watch_the_batch(None)

    def advance(self) -> RoundResult | None:
        """Begin the round under way if the batch is full, or finish it; a complete round, once it is."""
        if not self._begun:
            self._gatherer.look(active=True)
        group = self._gatherer.group
        if group is None:
            self._watch_the_batch(None)
            return None
        if not self._begun:
            self._begin_if_full(group)
        return self._finish(group) if group.done else None

    def leave(self) -> RoundResult | None:
        """Finish a round that has begun: breaking off would cost the others this round, and us our samples."""
        deadline = time.monotonic() + self._timeouts.patience
        while self._begun and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if (complete := self.advance()) is not None:
                return complete
        self.call_off()
        return None

    def stepped(self, brought: Mapping[str, int]) -> None:
        """This peer holds the parameters that a round led to, with so many samples of each member."""
        self._missing.stepped(brought)
        self.batch.open()

    def heed(self, instructions: Instructions) -> None:
        """What the organizer orders goes into this peer's contributions from now on."""
        self._decay_order = instructions.decay_order

    def confirms(self, answered: Callable[[int], dict[str, int]]) -> None:
        """See `CollaborativeOptimizer.confirms`."""
        self._answered = answered

    def call_off(self) -> None:
        """Look for no group, and leave the one that stands unless its round has begun."""
        if not self._begun:
            self._gatherer.look(active=False)

    def _until_all_can_begin(self) -> float:
        """Seconds; where rounds run in the background nobody has to finish a microbatch first."""
        exact = not self._run.averaging.overlap
        return max((told.boundary_seconds for told in self._told()), default=0.0) if exact else 0.0

    def _watch_the_batch(self, members: frozenset[str] | None) -> None:
        """:param members: of the group: what one has told of the step before is in that step"""
        self.batch.update(members)
        if self.swarm_samples() < self.batch.filling.size:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, group: PendingGroup) -> None:
        self._watch_the_batch(group.members)
        with self._peers.lock:
            full = self.batch.look().may_begin(group.members, group.called, self._peers.now())
        if not full or group.done:
            return
        self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
        contribution, boundary = self._contribution(), self._until_all_can_begin()
        usual = self._timeouts.patience
        patience, limit = Patience(usual, usual + START_MARGIN + boundary), self._timeouts.limit + boundary
        with self._peers.lock:
            if self._gatherer.group is not group:
                return  # it was given up meanwhile
            self._begun = True
            self._gatherer.handle(Begun())
        self._averager.begin(group, contribution, patience, limit, work=self._counter.work)

    def _contribution(self) -> Contribution:
        """Fix our part of the batch, unless it is, and say what is in it."""
        if not self.batch.fixed:
            self.batch.fix()
        organizer = self._tracker.others().get(self._tracker.belief.organizer)
        if organizer is not None and organizer.instructions is not None:  # else what it said last holds
            self.heed(organizer.instructions)
        loss = self._counter.loss
        return Contribution(
            run_id=self._run.run_id,
            step=self._state.step + 1,
            session=self._profile.session,
            samples=self._counter.in_flight,
            session_samples=self._counter.applied + self._counter.in_flight,
            loss=None if loss is None else min(MAX_LOSS, max(-MAX_LOSS, loss)),
            name=self._profile.name,
            time=get_dht_time(),
            decay_order="" if self._state.decay else self._decay_order,
            answered=self._answered(self._state.step + 1),
            weight=round(LABEL * self._counter.in_flight_loss.weight),
            batch=self.batch.said,
        )

    def _finish(self, group: PendingGroup) -> RoundResult | None:
        begun, self._begun, self._full_at = self._begun, False, 0.0
        outcome, members, awaited = group.result(), group.members, self._gatherer.machine.awaited
        complete = outcome.outcome == "complete"
        if not complete:  # then it stays as it was until the step is taken
            self.batch.open()
        less = self.counting.saw(outcome.contributions)
        failed = set(outcome.culprits)
        if begun and complete:
            self._timeouts.averaged(outcome.seconds, outcome.longest_silence, outcome.upload_rate)
            self._missing.note(outcome, awaited, members)
            self.left_out = self._missing.left_out(outcome.contributions)
        elif begun:
            if outcome.outcome == "refused":
                self._missing.note(outcome, awaited, members)
                # Whoever does not bring what it said is not counted any more: the batch fills up again first.
                others = self._tracker.others()
                brought = outcome.contributions.items()
                failed |= {p for p, c in brought if p in others and c.samples < others[p].samples} | less
            else:
                self._timeouts.failed()
                self._incidents.failed(self._state.step + 1, outcome.detail)
            if outcome.offered:
                self._accumulator.mark_unconfirmed(outcome.offered)
            self._tracker.report_now()
        self._gatherer.over(failed, commit=complete)
        self._blame(outcome)
        return outcome if complete else None

    def _blame(self, outcome: RoundResult) -> None:
        """Others say that these were gone in a round, or did harm to it, whether it went on or not."""
        self._peers.doubt(outcome.named - outcome.culprits, outcome.ended)
        self._tracker.avoid(outcome.named | outcome.culprits)
