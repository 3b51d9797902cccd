"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import hashlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator

from hivemind.utils import get_dht_time

from dedloc_kit.records import MAX_LOSS, Contribution, Instructions, Progress
from dedloc_kit.swarm.averaging.allreduce import Patience
from dedloc_kit.swarm.averaging.averager import PendingGroup
from dedloc_kit.swarm.averaging.group import GroupRequest, Member, RoundResult
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.summaries import Row
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.other_rows import OtherRows
from dedloc_kit.swarm.rounds.timing import AdaptiveTimeouts
from dedloc_kit.training.accumulator import Accumulator
from dedloc_kit.training.state import TrainingState

START_MARGIN = 5.0
"""Seconds between the first and the last member that sees a full batch, on a slow line."""
MAX_STALENESS = 4
"""Global steps by which a gradient may be late. One is usual; more happens after a fault or with a slow device."""
POLL_SECONDS = 0.02
MIN_PERIOD, USUAL_PERIOD, MAX_PERIOD = 0.3, 1.0, 4.0
"""Seconds between two looks into the directory. If one member sees a full batch soon, it calls the others."""
LOOKS_LEFT, LOOKS_PER_BATCH = 3, 20
"""Looks in the time that is left until the batch is full, and at most in the whole time: often near its end, seldom
before, for each is work for all who are asked."""

_log = logging.getLogger(__name__)


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
    ) -> None:
        self._run, self._state = state.run, state
        self._accumulator, self._tally = accumulator, accumulator.tally
        self._averager, self._grouping = exchange.averager, exchange.grouping
        self._tracker, self._suspicion, self._incidents = tracker, tracker.suspicion, tracker.incidents
        self._signer, self._profile = signer, profile
        self._timeouts = AdaptiveTimeouts()
        self._group: PendingGroup | None = None
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._awaited: frozenset[str] = frozenset()
        self._other_rows = OtherRows(state, tracker, signer)
        self._awaited_rows: frozenset[int] = frozenset()
        self._not_before = 0.0  # when the next round may begin
        self._full_at = 0.0  # when the batch was first seen to be full; 0 if it is not
        self.gather_seconds = 0.0
        """What passed in the last round from the full batch until the group stood."""
        self._last_members: frozenset[str] = frozenset()  # of the global step whose parameters this peer holds
        self._decay_order = ""

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
        """This peer's samples toward the next global step; what accumulates during a round is for the one after."""
        return self._tally.outgoing if self._begun else self._tally.samples

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known."""
        return self.samples + sum(told.samples for told in self._told())

    def seconds_left(self, samples_per_second: float) -> float:
        """Until the batch is full, if this peer computes so fast."""
        return self._seconds_for(self._run.global_batch - self.swarm_samples(), samples_per_second)

    def _probably_left(self, samples_per_second: float) -> float:
        """The same, if the others have gone on computing since they told how far they are.

        What they told is some seconds old, and more if the directory waits for somebody who is gone. For a look too
        early or a group that waits a moment this guess is good enough; a round begins with what was told.
        """
        now = get_dht_time()
        untold = sum(told.samples_per_second * min(MAX_PERIOD, max(0.0, now - told.time)) for told in self._told())
        return self._seconds_for(self._run.global_batch - self.swarm_samples() - untold, samples_per_second)

    def _seconds_for(self, samples: float, samples_per_second: float) -> float:
        rate = samples_per_second + sum(told.samples_per_second for told in self._told())
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

    def gather_if_due(self, samples_per_second: float) -> RoundResult | None:
        """Begin to gather if the batch is nearly full; a peer that is all alone gets its round at once."""
        self._watch_the_batch()
        left, expected = self._probably_left(samples_per_second), self._expected()
        if left > self._timeouts.lead or time.monotonic() < self._not_before:
            return None
        rows = frozenset(self._other_rows.seen())
        if not expected and not rows:
            # Cut off, or the others are busy: a step on our own would part our ways.
            alone = left == 0.0 and not self._profile.client_mode and self._tracker.alone()
            return self._alone() if alone else None
        if self._other_rows.unheard():
            return None
        self._awaited, self._awaited_rows, after = frozenset(expected), rows, self._state.round
        me, follower, client = self._signer.peer, self._profile.follower, self._profile.client_mode
        bandwidth = self._timeouts.bandwidth
        leaders = self._grouping.leaders(after, me, follower, expected, client)
        mine = Member(peer=me, bandwidth=bandwidth, client_mode=client, group_size=1 + len(expected))
        self._group = self._averager.gather(
            GroupRequest(
                step=self._state.step + 1,
                after=after,
                leaders=leaders or (self._other_rows.hosts() if client else ()),
                expected=self._awaited,
                unwelcome=self._suspicion.backed_off(),
                window=self._timeouts.window + 2 * self._boundary(expected.values()),
                bandwidth=bandwidth,
                rows=self._other_rows.call(mine),
            )
        )
        return None

    def advance(self) -> RoundResult | None:
        """Begin the round under way if the batch is full, or finish it; a complete round, once it is."""
        group = self._group
        if group is None:
            return None
        if not self._begun:
            self._watch_the_batch()
            self._begin_if_full(group)
        return self._finish(group) if group.done or (not self._begun and self._in_vain(group)) else None

    def _in_vain(self, group: PendingGroup) -> bool:
        """While we look for a group, or wait in one, the swarm may move on, or somebody vanish for whom we look: a
        window may be a minute long, and who leads us there may be the one who is gone."""
        vanished = group.members is None and not self._awaited <= self._tracker.others().keys()
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

    def stepped(self, members: Collection[str]) -> None:
        """This peer holds the parameters that these members' round led to."""
        self._last_members = frozenset(members)
        self._other_rows.stepped(members)

    def heed(self, instructions: Instructions) -> None:
        """What the organizer orders goes into this peer's contributions from now on."""
        self._decay_order = instructions.decay_order

    def call_off(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._finish(self._group)

    def drop_stale(self) -> None:
        """Gradients of old parameters are of no use; exact training takes none that is old at all."""
        staleness = MAX_STALENESS if self._run.averaging.overlap else 0
        dropped = self._accumulator.drop_older_than(max(self._state.step - staleness, self._state.rewound))
        if dropped:
            _log.warning("%d samples were computed on parameters that are too old; dropped", dropped)

    def _in_sync(self) -> dict[str, Progress]:
        """The others of this peer's row who hold the same state: their samples fill the same batch."""
        in_sync, backed_off = self._tracker.row_at(*self._state.position), self._suspicion.backed_off()
        return {peer: progress for peer, progress in in_sync.items() if peer not in backed_off}

    def _told(self) -> Iterator[Progress | Row]:
        """What is told of this batch: by each of this peer's row, and of the other rows."""
        yield from self._in_sync().values()
        yield from self._other_rows.seen().values()

    def _boundary(self, told: Iterable[Progress]) -> float:
        """How long others may have to be waited for."""
        said = [row.boundary_seconds for row in self._other_rows.seen().values()]
        return max((*said, *(progress.boundary_seconds for progress in told)), default=0.0)

    def _expected(self) -> dict[str, Progress]:
        """Who has to come to the next round.

        Whoever missed the last one first has to fetch what it missed, perhaps over a line that was just down: nobody
        waits.
        """
        others = self._tracker.others()
        before, able = self._state.step - 1, self._last_members & others.keys() - self._suspicion.backed_off()
        late = {p: others[p] for p in able if others[p].step == before and self._tracker.is_near(p)}
        return self._grouping.expected(self._in_sync(), late)

    def _watch_the_batch(self) -> None:
        if self.swarm_samples() < self._run.global_batch:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, group: PendingGroup) -> None:
        members = group.members
        if members is None:
            return
        in_sync = self._in_sync()  # what a member has told of the step before is in that step
        samples = self._tally.samples + sum(in_sync[peer].samples for peer in members & in_sync.keys())
        samples += self._other_rows.samples(members)
        if self._tracker.gone(members & self._awaited):  # without them the group cannot average
            self._averager.call_off(group)
        elif self._grouping.enough_samples(samples) or group.called:
            self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
            if members >= self._awaited:  # otherwise it is the window that it took
                self._timeouts.gathered(group.seconds, self.gather_seconds)
            contribution = self._contribution()
            boundary = self._boundary(in_sync.values())
            self._begun = True
            usual = self._timeouts.patience
            patience = Patience(usual, usual + START_MARGIN + boundary)
            self._averager.begin(group, contribution, patience, self._timeouts.limit + boundary)

    def _contribution(self) -> Contribution:
        """Take a snapshot of our gradients and say what is in it."""
        self.drop_stale()
        organizer = self._tracker.others().get(self._tracker.belief.organizer)
        if organizer is not None and organizer.instructions is not None:  # else what it said last holds
            self.heed(organizer.instructions)
        with self._averager.vector.held() as flat:
            self._accumulator.load_outgoing(flat)
        loss = self._tally.loss
        return Contribution(
            run_id=self._run.run_id,
            step=self._state.step + 1,
            session=self._profile.session,
            samples=self._tally.outgoing,
            session_samples=self._tally.counted + self._tally.outgoing,
            loss=None if loss is None else min(MAX_LOSS, max(-MAX_LOSS, loss)),
            name=self._profile.name,
            time=get_dht_time(),
            decay_order="" if self._state.decay else self._decay_order,
        )

    def _alone(self) -> RoundResult | None:
        mine = self._contribution()
        if mine.samples < self._run.global_batch:
            return None
        self.gather_seconds = self._full_at = 0.0
        peer = self._signer.peer
        name = hashlib.sha256(f"{self._run.run_id} {peer} {self._state.step} {self._state.round}".encode())
        return RoundResult("complete", name.hexdigest()[:40], {peer: mine}, (self._signer.sign(mine),))

    def _finish(self, group: PendingGroup) -> RoundResult | None:
        begun, self._group, self._begun, self._full_at = self._begun, None, False, 0.0
        if not group.done:
            self._averager.call_off(group)
            return None
        outcome, members = group.result(), group.members
        if members is not None:
            self._suspicion.suspect(self._awaited - members)
            self._other_rows.missed(self._awaited_rows, members)
        match outcome.outcome:
            case "complete":
                self._timeouts.averaged(outcome.seconds, outcome.longest_silence, outcome.upload_rate)
                self._suspicion.trust(outcome.contributions)
                self._blame(outcome)
                return outcome
            case "refused":
                # Whoever did not come or bring what it said is not counted any more: the batch fills up again first.
                others = self._tracker.others()
                brought = outcome.contributions.items()
                self._suspicion.suspect({p for p, c in brought if p in others and c.samples < others[p].samples})
                if outcome.contributions:
                    self._other_rows.fell_short(outcome.contributions)
                self._blame(outcome)
                if members is not None and members - outcome.contributions.keys():
                    self._accumulator.doubt(outcome.id)  # those whom this part of the group lost may have had enough
                self._tracker.report_now()
            case "failed":
                self._failed(outcome, begun)
        return None

    def _failed(self, outcome: RoundResult, begun: bool) -> None:
        self._timeouts.failed()
        self._not_before = time.monotonic() + self._timeouts.pause
        if not begun:
            self._suspicion.doubt(outcome.named)  # it let this peer wait for a group, and told of none
            return  # no group was found in time, or it was called off; nothing is lost and nobody is to blame
        self._incidents.failed(self._state.step + 1, outcome.detail)
        if outcome.id:
            self._accumulator.doubt(outcome.id)
        self._blame(outcome)
        self._tracker.report_now()

    def _blame(self, outcome: RoundResult) -> None:
        """Who was gone in a round, or did harm to it, whether it went on or not."""
        self._suspicion.suspect(outcome.culprits, outcome.ended)
        self._suspicion.doubt(outcome.named - outcome.culprits, outcome.ended)
        self._tracker.avoid(outcome.named | outcome.culprits)
