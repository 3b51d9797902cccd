"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import time
from collections.abc import Callable, Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.gradients.accumulator import Accumulator
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import LABEL, MAX_LOSS, Contribution, LeftOut
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.averaging.averager import PendingGroup
from dedloc_kit.swarm.averaging.matchmaking.group import GroupRequest
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.batch import MAX_PERIOD
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
        self._averager, self._grouping = exchange.averager, exchange.grouping
        self._tracker, self._peers, self._incidents = tracker, tracker.peers, tracker.incidents
        self._signer, self._profile = signer, profile
        self._timeouts = AdaptiveTimeouts()
        self.counting = Counting(exchange.grouping.weigh, signer.peer)
        vector = exchange.averager.vector
        self.batch = Batch(state, accumulator, vector, tracker, branch.end, self.counting, mine)
        self._group: PendingGroup | None = None
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._sought = Sought(tracker)
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

    def _expected(self) -> dict[str, Progress]:
        """The others that have to come to the next round.

        Those that missed the last one first have to fetch what they missed, perhaps over a line that was just down:
        nobody waits for them.
        """
        others = self._tracker.others()
        with self._peers.lock:
            in_sync, late = self.batch.filling.peers(self._peers.now())
        return {peer: others[peer] for peer in (*late, *in_sync) if peer in others}

    def gather_if_due(self) -> None:
        """Begin to gather if the batch is nearly full."""
        if time.monotonic() < self._not_before:
            return  # until then devices go on, though the batch may be full
        self._watch_the_batch(None)
        left, expected = self.seconds_left(), self._expected()
        # Before the batch seems full: it is not without those who are not counted.
        needed = self._branch.needed(expected.keys())
        self._peers.need(needed)
        if left > self._timeouts.lead or needed:
            return
        # Cut off, or the others are busy: a step on our own would part our ways.
        alone = not expected and left == 0.0 and not self._profile.client_mode and self._tracker.alone()
        if expected or alone:
            self._sought.begin(expected, left)
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
        expected, left = self._expected(), self.seconds_left()
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

    def _watch_the_batch(self, members: frozenset[str] | None) -> None:
        """:param members: of the group: what one has told of the step before is in that step"""
        self.batch.update(members)
        if self.swarm_samples() < self.batch.filling.size:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, group: PendingGroup) -> None:
        members = group.members
        self._watch_the_batch(members)
        if members is None:
            return
        with self._peers.lock:
            filling, now = self.batch.look(), self._peers.now()
            lacks, full = filling.lacks(members, now), filling.may_begin(members, group.called, now)
        # Without those who leave the group cannot average, and one half of a swarm must not.
        if lacks or self._peers.gone(members & self._sought.awaited) or self._branch.needed(members):
            self._averager.call_off(group)
        elif full:
            self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
            if members >= self._sought.awaited:  # otherwise it is the window that it took
                self._timeouts.gathered(group.seconds, self.gather_seconds)
            contribution = self._contribution()
            boundary = self._until_all_can_begin(self._expected().values())
            self._begun = True
            usual = self._timeouts.patience
            patience = Patience(usual, usual + START_MARGIN + boundary)
            limit = self._timeouts.limit + boundary
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
