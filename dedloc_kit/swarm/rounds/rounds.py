"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import math
import time
from collections.abc import Callable, Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.gradients.accumulator import Accumulator
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import LABEL, MAX_LOSS, Contribution, LeftOut
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.averaging.averager import PendingGroup
from dedloc_kit.swarm.averaging.matchmaking.group import GroupRequest
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.batch import Batch
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.missing import Missing
from dedloc_kit.swarm.rounds.sought import Sought
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.timing import AdaptiveTimeouts
from dedloc_kit.swarm.trust.weight import Counting

START_MARGIN = 5.0
"""Seconds between the first and the last member that sees a full batch, on a slow line."""
POLL_SECONDS = 0.02
MIN_PERIOD, USUAL_PERIOD, MAX_PERIOD = 0.3, 1.0, 4.0
"""Seconds between two looks into the directory. If one member sees a full batch soon, it calls the others."""
LOOKS_LEFT, LOOKS_PER_BATCH = 3, 20
"""Looks in the time that is left until the batch is full, and at most in the whole time: often near its end, seldom
before, for each is work for all who are asked."""


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
    ) -> None:
        self._run, self._state, self._branch = state.run, state, branch
        self._accumulator, self._counter = accumulator, accumulator.counter
        self._averager, self._grouping = exchange.averager, exchange.grouping
        self._tracker, self._peers, self._incidents = tracker, tracker.peers, tracker.incidents
        self._signer, self._profile = signer, profile
        self._timeouts = AdaptiveTimeouts()
        self.counting = Counting(exchange.grouping.weigh, signer.peer)
        self.batch = Batch(state, accumulator, exchange.averager.vector, tracker, self.counting)
        self._group: PendingGroup | None = None
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._sought = Sought(state, tracker, exchange.grouping)
        self._not_before = 0.0  # when the next round may begin
        self._full_at = 0.0  # when the batch was first seen to be full; 0 if it is not
        self.gather_seconds = 0.0
        """What passed in the last round from the full batch until the group stood."""
        self.left_out: LeftOut | None = None
        """Who was to come to the last global step and does not count in it."""
        self._missing = Missing(state, tracker)
        self._decay_order = ""
        self._answered: Callable[[int], dict[str, int]] = lambda step: {}

    @property
    def under_way(self) -> bool:
        """Is there a group that is being found, gathers or averages?"""
        return self._group is not None

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
        return self.counting.samples(self.samples, self._sought.in_sync())

    def seconds_left(self, samples_per_second: float) -> float:
        """Until the batch is full, if this peer computes so fast."""
        return self._seconds_for(self._lacking(), samples_per_second)

    def _probably_left(self, samples_per_second: float) -> float:
        """The same, if the others have gone on computing since they told how far they are.

        What they told is some seconds old, and more if the directory waits for somebody who is gone. For a look too
        early or a group that waits a moment this guess is good enough; a round begins with what was told.
        """
        now = get_dht_time()
        untold = sum(
            told.samples_per_second * min(MAX_PERIOD, max(0.0, now - told.time))
            for told in self._sought.in_sync().values()
        )
        return self._seconds_for(self._lacking() - untold, samples_per_second)

    def _lacking(self) -> float:
        """Samples of the batch, at least."""
        return min(self.batch.wanted, self._run.global_batch) - self.swarm_samples()

    def _seconds_for(self, samples: float, samples_per_second: float) -> float:
        rate = samples_per_second + sum(told.samples_per_second for told in self._sought.in_sync().values())
        return 0.0 if samples <= 0 else samples / rate if rate else float("inf")

    def look_period(self, samples_per_second: float) -> float:
        """Seconds until the next look into the directory is of use."""
        if self._begun:
            return MAX_PERIOD  # nothing that others say now would change this round
        left = self._probably_left(samples_per_second)
        whole = self._seconds_for(self._run.global_batch, samples_per_second)
        if math.isinf(left):
            return USUAL_PERIOD  # nobody computes yet
        shortest = min(USUAL_PERIOD, max(MIN_PERIOD, whole / LOOKS_PER_BATCH))
        return min(MAX_PERIOD, max(shortest, left / LOOKS_LEFT))

    def gather_if_due(self, samples_per_second: float) -> None:
        """Begin to gather if the batch is nearly full."""
        if time.monotonic() < self._not_before:
            return  # until then devices go on, though the batch may be full
        self._watch_the_batch(self._sought.in_sync(), self._sought.late())
        left, expected = self._probably_left(samples_per_second), self._sought.expected()
        # Before the batch seems full: it is not without those who are not counted.
        needed = self._branch.needed(expected.keys())
        self._peers.need(needed)
        if left > self._timeouts.lead or needed:
            return
        # Cut off, or the others are busy: a step on our own would part our ways.
        alone = not expected and left == 0.0 and not self._profile.client_mode and self._tracker.alone()
        if expected or alone:
            self._sought.begin(expected, left, samples_per_second)
            self._group = self._averager.gather(self._request(expected))

    def _request(self, expected: Mapping[str, Progress]) -> GroupRequest:
        after, follower, client = self._state.round, self._profile.follower, self._profile.client_mode
        boundary = self._until_all_can_begin(expected.values())
        return GroupRequest(
            step=self._state.step + 1,
            after=after,
            leaders=self._grouping.leaders(after, self._signer.peer, follower, expected, client),
            expected=self._sought.peers,
            unwelcome=self._peers.backed_off(),
            window=self._timeouts.window + 2 * boundary,
            open_for=self._sought.open_for,
            bandwidth=self._timeouts.bandwidth,
            alone=not expected,
        )

    def advance(self) -> RoundResult | None:
        """Begin the round under way if the batch is full, or finish it; a complete round, once it is."""
        group = self._group
        if group is None:
            return None
        if not self._begun:
            self._widen(group)
            self._begin_if_full(group)
        return self._finish(group) if group.done or (not self._begun and self._in_vain(group)) else None

    def _widen(self, group: PendingGroup) -> None:
        expected, left = self._sought.expected(), self._probably_left(self._sought.speed)
        if group.members is None and self._sought.widen(expected.keys(), left):
            self._averager.widen(group, self._request(expected))

    def _in_vain(self, group: PendingGroup) -> bool:
        """While we look for a group, or wait in one, the swarm may move on, or somebody vanish for whom we look: a
        window may be a minute long, and who leads us there may be the one who is gone."""
        vanished = group.members is None and self._sought.vanished()
        return vanished or self._tracker.newest(self._state.position).step > self._state.step

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
        self._sought.stepped(brought)
        self._missing.stepped(brought)
        self.batch.open()

    def heed(self, instructions: Instructions) -> None:
        """What the organizer orders goes into this peer's contributions from now on."""
        self._decay_order = instructions.decay_order

    def confirms(self, answered: Callable[[int], dict[str, int]]) -> None:
        """See `CollaborativeOptimizer.confirms`."""
        self._answered = answered

    def call_off(self) -> None:
        """Leave the group, if there is one and its round has not begun."""
        if self._group is not None and not self._begun:
            self._finish(self._group)

    def _until_all_can_begin(self, told: Iterable[Progress]) -> float:
        """Seconds; where rounds run in the background nobody has to finish a microbatch first."""
        exact = not self._run.averaging.overlap
        return max((said.boundary_seconds for said in told), default=0.0) if exact else 0.0

    def _watch_the_batch(self, in_sync: Mapping[str, Progress], late: Mapping[str, Progress]) -> None:
        self.batch.watch(in_sync, late.values())
        if self.swarm_samples() < self.batch.wanted:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, group: PendingGroup) -> None:
        members, in_sync, late = group.members, self._sought.in_sync(), self._sought.late()
        if members is not None:  # what a member has told of the step before is in that step
            in_sync, late = ({p: told[p] for p in members & told.keys()} for told in (in_sync, late))
        self._watch_the_batch(in_sync, late)
        if members is None:
            return
        samples = self.counting.samples(self.samples, in_sync)
        # A batch that is short, for a driver has died, or seems to have, is not taken without any that there is.
        whole = self._full(samples) and samples >= self._run.global_batch
        lacking = self.batch.is_said and not whole and samples < (swarm := self.swarm_samples()) and self._full(swarm)
        # Without those who leave the group cannot average, and one half of a swarm must not.
        if lacking or self._peers.gone(members & self._sought.awaited) or self._branch.needed(members):
            self._averager.call_off(group)
        elif self._full(samples) or (group.called and self._may_follow) or self._full_for_all(samples, in_sync):
            self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
            if members >= self._sought.awaited:  # otherwise it is the window that it took
                self._timeouts.gathered(group.seconds, self.gather_seconds)
            contribution = self._contribution()
            boundary = self._until_all_can_begin(self._sought.in_sync().values())
            self._begun = True
            usual = self._timeouts.patience
            patience = Patience(usual, usual + START_MARGIN + boundary)
            limit = self._timeouts.limit + boundary
            self._averager.begin(group, contribution, patience, limit, work=self._counter.work)

    @property
    def _may_follow(self) -> bool:
        """Who computes a stage is told soon what its batch holds, and is the one to see that all of that is there."""
        return self.batch.follows and (self._profile.follower or not self.batch.is_said)

    def _full(self, samples: int) -> bool:
        return samples >= self.batch.wanted and self._grouping.enough_samples(samples)

    def _full_for_all(self, samples: int, members: Mapping[str, Progress]) -> bool:
        """Do all of these who compute say that the batch is full? So a follower begins that cannot know it, though who
        reduces nothing is called by nobody, and who fails before it calls anybody looks for another group."""
        fixed = all(told.fixed for told in members.values() if not told.follower)
        return self._profile.follower and fixed and samples >= self._run.global_batch and self.batch.follows

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
        begun, self._group, self._begun, self._full_at = self._begun, None, False, 0.0
        if not group.done:
            self._averager.call_off(group)
            return None
        outcome, members = group.result(), group.members
        if outcome.outcome != "complete":  # then it stays as it was until the step is taken
            self.batch.open()
        if members is not None:
            self._sought.stood(members)
        members = members or frozenset()
        less = self.counting.saw(outcome.contributions)
        match outcome.outcome:
            case "complete":
                self._timeouts.averaged(outcome.seconds, outcome.longest_silence, outcome.upload_rate)
                self._peers.trust(outcome.contributions)
                self._blame(outcome)
                self._missing.note(outcome, self._sought.awaited, members)
                self.left_out = self._missing.left_out(outcome.contributions)
                return outcome
            case "refused":
                self._missing.note(outcome, self._sought.awaited, members)
                # Whoever did not come or bring what it said is not counted any more: the batch fills up again first.
                others = self._tracker.others()
                brought = outcome.contributions.items()
                fewer = {p for p, c in brought if p in others and c.samples < others[p].samples}
                self._peers.suspect(fewer | less)
                self._blame(outcome)
                if outcome.offered:
                    self._accumulator.mark_unconfirmed(outcome.offered)
                self._tracker.report_now()
            case "failed":
                self._failed(outcome, begun)
        return None

    def _failed(self, outcome: RoundResult, begun: bool) -> None:
        self._timeouts.failed(begun=begun)
        self._not_before = time.monotonic() + self._timeouts.pause
        if not begun:
            self._peers.doubt(outcome.named)  # it let this peer wait for a group, and told of none
            return  # no group was found in time, or it was called off; nothing is lost and nobody is to blame
        self._incidents.failed(self._state.step + 1, outcome.detail)
        if outcome.offered:
            self._accumulator.mark_unconfirmed(outcome.offered)
        self._blame(outcome)
        self._tracker.report_now()

    def _blame(self, outcome: RoundResult) -> None:
        """Who was gone in a round, or did harm to it, whether it went on or not."""
        self._peers.suspect(outcome.culprits, outcome.ended)
        self._peers.doubt(outcome.named - outcome.culprits, outcome.ended)
        self._tracker.avoid(outcome.named | outcome.culprits)
