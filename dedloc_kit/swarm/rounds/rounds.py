"""One round after the other: the group gathers shortly before the batch is full, and averages when it is."""

import hashlib
import math
import time
from collections.abc import Callable

from hivemind.utils import get_dht_time

from dedloc_kit.records import Contribution, Progress
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.averaging.averager import GradientAverager
from dedloc_kit.swarm.averaging.group import Gathering, Round
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Troubles
from dedloc_kit.swarm.network.signing import Signer
from dedloc_kit.swarm.rounds.timing import Pace
from dedloc_kit.training.gradients import Gradients
from dedloc_kit.training.state import TrainingState

START_MARGIN = 5.0
"""Seconds between the first and the last member that sees a full batch, on a slow line."""
MAX_STALENESS = 4
"""Global steps by which a gradient may be late. One is usual; more happens after a fault or with a slow device."""
POLL_SECONDS = 0.02
SHORTEST_PERIOD, USUAL_PERIOD, LONGEST_PERIOD = 0.3, 1.0, 4.0
"""Seconds between two looks into the directory. If one member sees a full batch soon, it calls the others."""
LOOKS_LEFT, LOOKS_PER_BATCH = 3, 20
"""Looks in the time that is left until the batch is full, and at most in the whole time: often near its end, seldom
before, for each is work for all who are asked."""


class Rounds:
    """Decides when this peer gathers, with whom, and when it begins; learns from how the round ended.

    :param follower: this peer contributes no samples
    :param session: hexadecimal name of this session; contributions of one session count up
    :param warn: told in plain words about what went wrong and was dealt with
    :param troubles: told about rounds that fail
    """

    def __init__(
        self,
        run: RunConfig,
        state: TrainingState,
        gradients: Gradients,
        averager: GradientAverager,
        tracker: Tracker,
        signer: Signer,
        *,
        follower: bool,
        session: str,
        name: str,
        warn: Callable[[str], None],
        troubles: Troubles,
    ) -> None:
        self._run, self._state, self._gradients, self._averager = run, state, gradients, averager
        self._tracker, self._signer, self._follower = tracker, signer, follower
        self._session, self._name, self._warn, self._troubles = session, name, warn, troubles
        self._pace = Pace()
        self._gathering: Gathering | None = None
        self._begun = False  # has our part of the round begun, or does the group still gather?
        self._awaited: frozenset[str] = frozenset()
        self._not_before = 0.0  # when the next round may begin
        self._full_at = 0.0  # when the batch was first seen to be full; 0 if it is not
        self.gather_seconds = 0.0
        """What passed in the last round from the full batch until the group stood."""
        self.companions: frozenset[str] = frozenset()
        """Who contributed to the global step whose parameters this peer holds."""

    @property
    def under_way(self) -> bool:
        """Is there a group that is being found, gathers or averages?"""
        return self._gathering is not None

    @property
    def begun(self) -> bool:
        """Is this peer's contribution to a round on its way?"""
        return self._begun

    @property
    def upload(self) -> float | None:
        """Bytes per second at which this peer got rid of its gradients in recent rounds; none before the first."""
        return self._pace.upload

    @property
    def samples(self) -> int:
        """This peer's samples toward the next global step; what accumulates during a round is for the one after."""
        return self._gradients.outgoing_samples if self._begun else self._gradients.samples

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known."""
        return self.samples + sum(progress.samples for progress in self._mates().values())

    def seconds_left(self, samples_per_second: float) -> float:
        """Until the batch is full, if this peer computes so fast."""
        return self._seconds_for(self._run.global_batch - self.swarm_samples(), samples_per_second)

    def _probably_left(self, samples_per_second: float) -> float:
        """The same, if the others have gone on computing since they told how far they are.

        What they told is some seconds old, and more if the directory waits for somebody who is gone. For a look too
        early or a group that waits a moment this guess is good enough; a round begins with what was told.
        """
        now = get_dht_time()
        untold = sum(
            progress.samples_per_second * min(LONGEST_PERIOD, max(0.0, now - progress.time))
            for progress in self._mates().values()
        )
        return self._seconds_for(self._run.global_batch - self.swarm_samples() - untold, samples_per_second)

    def _seconds_for(self, samples: float, samples_per_second: float) -> float:
        rate = samples_per_second + sum(progress.samples_per_second for progress in self._mates().values())
        return 0.0 if samples <= 0 else samples / rate if rate else float("inf")

    def look_period(self, samples_per_second: float) -> float:
        """Seconds until the next look into the directory is of use."""
        if self._begun:
            return LONGEST_PERIOD  # nothing that others say now would change this round
        left = self._probably_left(samples_per_second)
        whole = self._seconds_for(self._run.global_batch, samples_per_second)
        if math.isinf(left):
            return USUAL_PERIOD  # nobody computes yet
        shortest = min(USUAL_PERIOD, max(SHORTEST_PERIOD, whole / LOOKS_PER_BATCH))
        return min(LONGEST_PERIOD, max(shortest, left / LOOKS_LEFT))

    def gather_if_due(self, samples_per_second: float) -> Round | None:
        """Begin to gather if the batch is nearly full; a peer that is all alone gets its round at once."""
        self._watch_the_batch()
        left, expected = self._probably_left(samples_per_second), self._expected()
        if left > self._pace.lead or time.monotonic() < self._not_before:
            return None
        if not expected:
            # Cut off, or the others are busy: a step on our own would part our ways.
            alone = left == 0.0 and not self._averager.client_mode and self._tracker.alone()
            return self._alone() if alone else None
        self._awaited = frozenset(expected)
        self._averager.bandwidth = self._pace.bandwidth
        self._gathering = self._averager.gather(
            step=self._state.step + 1,
            after=self._state.round,
            leaders=self._averager.grouping.leaders(
                self._state.round, self._signer.peer, self._follower, expected, self._averager.client_mode
            ),
            expected=expected,
            window=self._pace.window + 2 * max(progress.boundary_seconds for progress in expected.values()),
            unwelcome=self._tracker.shunned(),
        )
        return None

    def advance(self) -> Round | None:
        """Begin the round under way if the batch is full, or finish it; a complete round, once it is."""
        gathering = self._gathering
        if gathering is None:
            return None
        if not self._begun:
            self._watch_the_batch()
            self._begin_if_full(gathering)
        # While we look for a group, or wait in one, the swarm may move on.
        nobody_comes = not self._begun and self._tracker.newest(self._state.position).step > self._state.step
        return self._finish(gathering) if gathering.control.done() or nobody_comes else None

    def leave(self) -> Round | None:
        """Finish a round that has begun: breaking off would cost the others this round, and us our samples."""
        deadline = time.monotonic() + self._pace.patience
        while self._begun and time.monotonic() < deadline and self._averager.is_alive():
            time.sleep(POLL_SECONDS)
            if (complete := self.advance()) is not None:
                return complete
        self.call_off()
        return None

    def call_off(self) -> None:
        """Leave the group, if there is one."""
        if self._gathering is not None:
            self._finish(self._gathering)

    def drop_stale(self) -> None:
        """Gradients of old parameters are of no use; exact training takes none that is old at all."""
        staleness = MAX_STALENESS if self._run.averaging.overlap else 0
        dropped = self._gradients.drop_older_than(max(self._state.step - staleness, self._state.rewound))
        if dropped:
            self._warn(f"{dropped} samples were computed on parameters that are too old; dropped")

    def _mates(self) -> dict[str, Progress]:
        """The others who hold the same state as this peer: their samples fill the same batch."""
        mates, shunned = self._tracker.at(*self._state.position), self._tracker.shunned()
        return {peer: progress for peer, progress in mates.items() if peer not in shunned}

    def _expected(self) -> dict[str, Progress]:
        """Who has to come to the next round.

        Whoever missed the last one first has to fetch what it missed, perhaps over a line that was just down: nobody
        waits.
        """
        others = self._tracker.others()
        before, able = self._state.step - 1, self.companions & others.keys() - self._tracker.shunned()
        late = {peer: others[peer] for peer in able if others[peer].step == before}
        return self._averager.grouping.expected(self._mates(), late)

    def _watch_the_batch(self) -> None:
        if self.swarm_samples() < self._run.global_batch:
            self._full_at = 0.0
        elif not self._full_at:
            self._full_at = time.monotonic()

    def _begin_if_full(self, gathering: Gathering) -> None:
        members = gathering.gathered()
        if members is None:
            return
        mates = self._mates()  # what a member has told of the step before is in that step
        samples = self._gradients.samples + sum(mates[peer].samples for peer in members & mates.keys())
        if self._tracker.gone(members & self._awaited):  # without them the group cannot average
            self._averager.call_off(gathering)
        elif self._averager.grouping.enough_samples(samples) or gathering.called:
            self.gather_seconds = time.monotonic() - self._full_at if self._full_at else 0.0
            if members >= self._awaited:  # otherwise it is the window that it took
                self._pace.gathered(gathering.seconds(), self.gather_seconds)
            contribution = self._contribution()
            boundary = max((progress.boundary_seconds for progress in self._mates().values()), default=0.0)
            self._begun = True
            self._averager.begin(
                gathering,
                contribution,
                patience=self._pace.patience,
                start_patience=self._pace.patience + START_MARGIN + boundary,
                limit=self._pace.limit + boundary,
            )

    def _contribution(self) -> Contribution:
        """Take a snapshot of our gradients and say what is in it."""
        self.drop_stale()
        with self._averager.get_tensors() as (flat,):
            self._gradients.load_outgoing(flat)
        return Contribution(
            run_id=self._run.run_id,
            step=self._state.step + 1,
            session=self._session,
            samples=self._gradients.outgoing_samples,
            session_samples=self._gradients.counted_samples + self._gradients.outgoing_samples,
            loss=self._gradients.outgoing_loss,
            name=self._name,
            time=get_dht_time(),
        )

    def _alone(self) -> Round | None:
        mine = self._contribution()
        if mine.samples < self._run.global_batch:
            return None
        self.gather_seconds = self._full_at = 0.0
        peer = self._signer.peer
        name = hashlib.sha256(f"{self._run.run_id} {peer} {self._state.step} {self._state.round}".encode())
        return Round("complete", name.hexdigest()[:40], {peer: mine}, (self._signer.sign(mine),))

    def _finish(self, gathering: Gathering) -> Round | None:
        begun, self._gathering, self._begun, self._full_at = self._begun, None, False, 0.0
        if not gathering.control.done():
            self._averager.call_off(gathering)
            return None
        try:
            outcome: Round = gathering.control.result()
        except BaseException as error:  # hivemind found no group, or its process is gone
            outcome = Round("failed", detail=repr(error)[:200])
        members = gathering.gathered()
        if members is not None:
            self._tracker.suspect(self._awaited - members)
        match outcome.outcome:
            case "complete":
                self._pace.averaged(outcome.seconds, outcome.longest_silence, outcome.upload_rate)
                self._tracker.trust(outcome.contributions)
                return outcome
            case "refused":
                # Whoever did not come or bring what it said is not counted any more: the batch fills up again first.
                others = self._tracker.others()
                brought = outcome.contributions.items()
                self._tracker.suspect({p for p, c in brought if p in others and c.samples < others[p].samples})
                self._tracker.speak()
            case "failed":
                self._failed(outcome, begun)
        return None

    def _failed(self, outcome: Round, begun: bool) -> None:
        self._pace.failed()
        self._not_before = time.monotonic() + self._pace.pause
        if not begun:
            return  # no group was found in time, or it was called off; nothing is lost and nobody is to blame
        self._troubles.failed(self._state.step + 1, outcome.detail)
        if outcome.id:
            self._gradients.doubt(outcome.id)
        self._tracker.suspect(outcome.culprits, outcome.ended)
        self._tracker.doubt(outcome.named - outcome.culprits, outcome.ended)
        self._tracker.avoid(outcome.named | outcome.culprits)
        self._tracker.speak()
