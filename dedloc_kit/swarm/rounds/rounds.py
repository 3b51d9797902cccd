"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records import MAX_LOSS, Absence, Contribution, Instructions, LeftOut, Progress
from dedloc_kit.swarm.averaging.allreduce import Patience
from dedloc_kit.swarm.averaging.averager import PendingGroup
from dedloc_kit.swarm.averaging.group import GroupRequest, Member
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.summaries import Row
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.batch import Batch, samples_of
from dedloc_kit.swarm.rounds.companions import Companions
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.other_rows import OtherRows
from dedloc_kit.swarm.rounds.timing import AdaptiveTimeouts
from dedloc_kit.training.accumulator import Accumulator
from dedloc_kit.training.state import TrainingState

START_MARGIN = 5.0
"""Seconds between the first and the last member that sees a full batch, on a slow line."""
OPEN_SHARE = 0.5
"""Of the time that is left until the batch is full a group takes in whoever comes; the rest is for it to stand in."""
POLL_SECONDS = 0.02
MIN_PERIOD, USUAL_PERIOD, MAX_PERIOD = 0.3, 1.0, 4.0
"""Seconds between two looks into the directory. If one member sees a full batch soon, it calls the others."""
LOOKS_LEFT, LOOKS_PER_BATCH = 3, 20
"""Looks in the time that is left until the batch is full, and at most in the whole time: often near its end, seldom
before, for each is work for all who are asked."""

NOT_COME: Absence = "did not come"


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
        self.batch = Batch(state, accumulator, exchange.averager.vector, tracker)
        self._group: PendingGroup | None = None
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._awaited: frozenset[str] = frozenset()  # who was expected when this peer began to look for its group
        self._sought: frozenset[str] = frozenset()  # these, and who has come since
        self._other_rows = OtherRows(state, tracker, signer)
        self._companions = Companions(state, tracker, signer.peer)
        self._awaited_rows: frozenset[int] = frozenset()  # the same of the other rows
        self._sought_rows: frozenset[int] = frozenset()
        self._open_until = 0.0  # the batch is not full before: the group need not stand
        self._speed = 0.0  # samples per second of this peer when it began to look
        self._not_before = 0.0  # when the next round may begin
        self._full_at = 0.0  # when the batch was first seen to be full; 0 if it is not
        self.gather_seconds = 0.0
        """What passed in the last round from the full batch until the group stood."""
        self.left_out: LeftOut | None = None
        """Who was to come to the last global step and does not count in it."""
        self._missing: dict[str, Absence] = {}  # in the rounds for the next one so far
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
        """This peer's samples toward the next global step; what accumulates once that is full is for the one after."""
        return self.batch.samples

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known."""
        return self.samples + samples_of(self._in_sync().values(), self._other_rows.seen().values())

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
        if time.monotonic() < self._not_before:
            return None  # until then devices go on, though the batch may be full
        seen = self._other_rows.seen()
        self._companions.look(seen)
        self._watch_the_batch(self._in_sync(), self._late(), seen.values())
        left, expected, rows = self._probably_left(samples_per_second), self._expected(), frozenset(seen)
        if left > self._timeouts.lead:
            return None
        if not expected and not rows:
            # Cut off, or the others are busy: a step on our own would part our ways.
            alone = left == 0.0 and not self._profile.client_mode and self._tracker.alone()
            return self._alone() if alone else None
        if self._other_rows.unheard() or not self._companions.enough({*expected, *self._companions.of(rows)}):
            return None
        self._awaited, self._awaited_rows = frozenset(expected), rows
        self._sought, self._sought_rows = self._awaited, rows
        self._open_until, self._speed = time.monotonic() + OPEN_SHARE * left, samples_per_second
        self._group = self._averager.gather(self._request(expected))
        return None

    def _request(self, expected: Mapping[str, Progress]) -> GroupRequest:
        after, follower, client = self._state.round, self._profile.follower, self._profile.client_mode
        me, bandwidth = self._signer.peer, self._timeouts.bandwidth
        boundary = self._until_all_can_begin((*expected.values(), *self._other_rows.seen().values()))
        leaders = self._grouping.leaders(after, me, follower, expected, client)
        mine = Member(peer=me, bandwidth=bandwidth, client_mode=client, group_size=1 + len(self._sought))
        return GroupRequest(
            step=self._state.step + 1,
            after=after,
            leaders=leaders or (self._other_rows.hosts() if client else ()),
            expected=self._sought,
            unwelcome=self._suspicion.backed_off(),
            window=self._timeouts.window + 2 * boundary,
            open_for=max(0.0, self._open_until - time.monotonic()),
            bandwidth=bandwidth,
            rows=self._other_rows.call(mine),
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
        """Who gets to this state while the group is being found belongs to it, and may be the one to lead it. Once the
        batch is full the group waits for nobody of whom this peer does not know."""
        expected, rows, left = self._expected(), self._other_rows.seen().keys(), self._probably_left(self._speed)
        full = left == 0.0 and self._open_until > time.monotonic()
        more = not (expected.keys() <= self._sought and rows <= self._sought_rows)
        if group.members is None and (expected or rows) and (full or more):
            self._sought, self._sought_rows = self._sought | expected.keys(), self._sought_rows | rows
            self._open_until = min(self._open_until, time.monotonic() + OPEN_SHARE * left)
            self._averager.widen(group, self._request(expected))

    def _in_vain(self, group: PendingGroup) -> bool:
        """While we look for a group, or wait in one, the swarm may move on, or somebody vanish for whom we look: a
        window may be a minute long, and who leads us there may be the one who is gone."""
        vanished = group.members is None and not self._sought <= self._tracker.others().keys()
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
        self._missing = {}
        self._last_members = frozenset(members)
        self._other_rows.stepped()
        self._companions.stepped(members)
        self.batch.open()

    def heed(self, instructions: Instructions) -> None:
        """What the organizer orders goes into this peer's contributions from now on."""
        self._decay_order = instructions.decay_order

    def call_off(self) -> None:
        """Leave the group, if there is one and its round has not begun."""
        if self._group is not None and not self._begun:
            self._finish(self._group)

    def _in_sync(self) -> dict[str, Progress]:
        """The others of this peer's row who hold the same state: their samples fill the same batch."""
        in_sync, backed_off = self._tracker.row_at(*self._state.position), self._suspicion.backed_off()
        return {peer: progress for peer, progress in in_sync.items() if peer not in backed_off}

    def _told(self) -> Iterator[Progress | Row]:
        """What is told of this batch: by each of this peer's row, and of the other rows."""
        yield from self._in_sync().values()
        yield from self._other_rows.seen().values()

    def _expected(self) -> dict[str, Progress]:
        """Who has to come to the next round.

        Whoever missed the last one first has to fetch what it missed, perhaps over a line that was just down: nobody
        waits.
        """
        return self._grouping.expected(self._in_sync(), self._late())

    def _late(self) -> dict[str, Progress]:
        """Who contributed to the step that led to this peer's state, and has not told that it has finished it."""
        others, before = self._tracker.others(), self._state.step - 1
        able = self._last_members & others.keys() - self._suspicion.backed_off()
        return {p: others[p] for p in able if others[p].step == before and self._tracker.is_near(p)}

    def _until_all_can_begin(self, told: Iterable[Progress | Row]) -> float:
        """Seconds; where rounds run in the background nobody has to finish a microbatch first."""
        exact = not self._run.averaging.overlap
        return max((said.boundary_seconds for said in told), default=0.0) if exact else 0.0

    def _watch_the_batch(
        self, in_sync: Mapping[str, Progress], late: Mapping[str, Progress], rows: Collection[Row]
    ) -> None:
        self.batch.watch(in_sync, late.values(), rows)
        if self.swarm_samples() < self._run.global_batch:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, group: PendingGroup) -> None:
        members, in_sync, late = group.members, self._in_sync(), self._late()
        if members is None:
            rows = list(self._other_rows.seen().values())
        else:  # what a member has told of the step before is in that step
            in_sync, late = ({p: told[p] for p in members & told.keys()} for told in (in_sync, late))
            rows = self._other_rows.seen_in(members)
        self._watch_the_batch(in_sync, late, rows)
        if members is None:
            return
        samples = self.samples + samples_of(in_sync.values(), rows)
        self._companions.look(self._other_rows.seen())
        # Without those who leave the group cannot average, and one half of a swarm must not.
        if self._tracker.gone(members & self._awaited) or not self._companions.enough(members):
            self._averager.call_off(group)
        elif self._grouping.enough_samples(samples) or group.called:
            self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
            if members >= self._awaited:  # otherwise it is the window that it took
                self._timeouts.gathered(group.seconds, self.gather_seconds)
            contribution = self._contribution()
            boundary = self._until_all_can_begin(self._told())
            self._begun = True
            usual = self._timeouts.patience
            patience = Patience(usual, usual + START_MARGIN + boundary)
            self._averager.begin(group, contribution, patience, self._timeouts.limit + boundary)

    def _contribution(self) -> Contribution:
        """Fix our part of the batch, unless it is, and say what is in it."""
        if not self.batch.fixed:
            self.batch.fix()
        organizer = self._tracker.others().get(self._tracker.belief.organizer)
        if organizer is not None and organizer.instructions is not None:  # else what it said last holds
            self.heed(organizer.instructions)
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
        self.left_out = None
        peer = self._signer.peer
        name = hashlib.sha256(f"{self._run.run_id} {peer} {self._state.step} {self._state.round}".encode())
        return RoundResult("complete", name.hexdigest()[:40], {peer: mine}, (self._signer.sign(mine),))

    def _finish(self, group: PendingGroup) -> RoundResult | None:
        begun, self._group, self._begun, self._full_at = self._begun, None, False, 0.0
        if not group.done:
            self._averager.call_off(group)
            return None
        outcome, members = group.result(), group.members
        if outcome.outcome != "complete":  # then it stays as it was until the step is taken
            self.batch.open()
        if members is not None:
            self._suspicion.suspect(self._awaited - members)
            self._other_rows.missed(self._awaited_rows, members)
        match outcome.outcome:
            case "complete":
                self._timeouts.averaged(outcome.seconds, outcome.longest_silence, outcome.upload_rate)
                self._suspicion.trust(outcome.contributions)
                self._blame(outcome)
                self._miss(outcome, members or frozenset())
                self.left_out = LeftOut.of({p: w for p, w in self._missing.items() if p not in outcome.contributions})
                return outcome
            case "refused":
                self._miss(outcome, members or frozenset())
                # Whoever did not come or bring what it said is not counted any more: the batch fills up again first.
                others = self._tracker.others()
                brought = outcome.contributions.items()
                self._suspicion.suspect({p for p, c in brought if p in others and c.samples < others[p].samples})
                if outcome.contributions:
                    self._other_rows.fell_short(outcome.contributions)
                self._blame(outcome)
                if begun and members is not None and members - outcome.contributions.keys():
                    self._accumulator.doubt(outcome.id)  # those whom this part of the group lost may have had enough
                self._tracker.report_now()
            case "failed":
                self._failed(outcome, begun)
        return None

    def _miss(self, outcome: RoundResult, members: Collection[str]) -> None:
        """Note who was to come and does not count. That somebody did not come is told only of who gave to the step
        before: a leader may name whom it likes as members, and anybody may say in the directory that it is there."""
        others, expected = self._tracker.others(), self._last_members
        absent = {peer: why for peer, why in outcome.absent.items() if peer in expected or why != NOT_COME}
        absent |= dict.fromkeys((self._awaited & expected).difference(members), NOT_COME)
        self._missing |= {peer: why for peer, why in absent.items() if not (peer in others and others[peer].follower)}

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
