"""The collaborative optimizer: accumulate, and once the swarm has a global batch, average and take one step.

After DeDLOC (Diskin et al. 2021, section 3): the result is that of one machine with the same batch, however many
peers there are. Rounds run in the background: the group gathers shortly before the batch is full, averages, and takes
the step on a copy of the parameters, which each device takes over between two microbatches (so a gradient may be one
global step old). In exact training, without overlap, a volunteer waits for each average instead.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hivemind.utils import get_dht_time
from hivemind.utils.performance_ema import PerformanceEMA

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing.card import Computed
from dedloc_kit.learning.train.computing.device import describe_devices
from dedloc_kit.learning.train.gradients.accumulator import Accumulator
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Decay, Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import Carried, Contribution, GlobalStep, LeftOut, Receipt
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.branch import Anchored
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.alongside import Alongside
from dedloc_kit.swarm.rounds.catchup import CatchUp
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.finished_step import decay_order, falling, global_step, receipt_of, told
from dedloc_kit.swarm.rounds.gatherer import Conversation
from dedloc_kit.swarm.rounds.missed_steps import MissedStep
from dedloc_kit.swarm.rounds.rounds import Rounds
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.timing import Idling
from dedloc_kit.swarm.rounds.together import Together

HAND_OVER_SECONDS = 10.0
SETTLING_SECONDS = 6.0
"""So long after its start a peer that hears others has heard of all who are there: each speaks every four seconds."""
IDLE_SECONDS, BUSY_SECONDS = 0.2, 0.05
"""How often the background looks whether something is due, at most, and while a round is under way."""
LOOK_SECONDS = 1.0
"""So often the organizer's peer looks whether the voters are gone."""
AHEAD_SECONDS = 1.0
"""So often somebody who waits may see to other things."""
IDLES_PER_LOOK = 4
"""Far from a full batch, how often it does so between two looks into the directory: nothing is new in between."""

IDLING = (
    "global steps cannot come faster than rounds: this machine waits for them for more than a fifth of its time, which "
    "a larger global_batch would use"
)

StepListener = Callable[[GlobalStep, dict[str, Contribution]], None]
Agree = Callable[[bool, int], int | None]
"""With which step to go back: see `Together.agree`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Whoever runs this peer: what it wants, and how it is told."""

    stop: threading.Event
    """Set when this peer is to leave: it ends the waiting for a round or for a donor of the state."""
    last_step: int
    """No round is begun after this global step."""
    on_step: StepListener
    """Told about every global step that this peer took, in the background thread."""
    on_loading: Callable[[int, int], None]
    """Told how many bytes of the state have arrived, and of how many."""


class CollaborativeOptimizer:
    """One peer's part in the run. A volunteer calls `count` with what it has computed, then `boundary`.

    :param replicas: the model that this volunteer trains, on each of its devices; none for a follower, which
        contributes no samples but takes every step: how the coordinator holds the state
    :param accumulator: takes what this peer computes and says how much that is
    :param exchange: its process ends when this peer leaves
    :param tracker: begins and ends with this
    """

    def __init__(
        self,
        state: TrainingState,
        replicas: Sequence[Replica],
        accumulator: Accumulator,
        exchange: Exchange,
        tracker: Tracker,
        signer: Signer,
        profile: Profile,
        caller: Caller,
    ) -> None:
        self.run, self.state, self._replicas = state.run, state, replicas
        self._accumulator, self.counter = accumulator, accumulator.counter
        self._at_work = list(range(len(replicas)))  # the first of them hands its buffers over
        self._exchange, self.tracker, self._profile = exchange, tracker, profile
        self._stop, self._on_step = caller.stop, caller.on_step
        self._signer = signer
        self._going_back: tuple[Found, float, int, Agree] | None = None
        self._told_decay: Decay | None = None
        self._signed_decay = (0, 0, "")
        self._last_step = caller.last_step
        self._overlap = state.run.averaging.overlap
        self._speed = PerformanceEMA()
        self._boundary_seconds = self._computed = 0.0
        self._idling = Idling()
        self._stepped = 0.0  # when the last global step was done; 0 if this peer was not there
        self._background: threading.Thread | None = None
        self._error: BaseException | None = None
        self._leaving = threading.Event()
        self._left_out: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
        self._restarted = ""
        self._skipped = 0
        self._began = 0.0
        self._instructions: Instructions | None = None
        self.branch = StateBranch(exchange.host, state, tracker, signer, exchange.weigh)
        self.rounds = Rounds(
            *(state, accumulator, exchange, tracker, signer, profile, self.branch), lambda: self._progress().position
        )
        self._conversation = Conversation(self.rounds, exchange.averager)
        self._looked = 0.0  # when the organizer's peer last looked whether the voters are gone
        self._catch_up: CatchUp | Alongside
        if isinstance(state, NoState):
            self._catch_up = Alongside(state, exchange, tracker, self.branch, caller.stop, profile.client_mode)
        else:
            self._catch_up = CatchUp(state, exchange, tracker, self.branch, profile, caller.stop, caller.on_loading)

    # Joining and leaving

    def load(self) -> None:
        """Load the current state from a peer. Raises UserError if nobody hands it out."""
        if not self._catch_up.load() and not self._stop.is_set():
            self.check()
            raise UserError("no peer of this run hands out the training state; is the coordinator running?")

    def begin(self) -> None:
        """Take part with the state that this peer holds: it has loaded it, or it starts or resumes the run."""
        for replica in range(len(self._replicas)):
            self.refresh(replica)
        self._began = time.monotonic()
        try:
            self.branch.begin()
        except ValueError as error:
            raise UserError(f"the training state does not say where the run stands ({error}); join again") from None
        if (led_here := self._catch_up.led_here()) is not None:
            self._learn(led_here)
        self._exchange.transfers.share(True)
        self._report()
        self._conversation.start()
        self.tracker.start()
        if self._overlap or not self._replicas:
            self._background = threading.Thread(target=self._run, name="rounds", daemon=True)
            self._background.start()

    def await_round(self, deadline: float) -> None:
        """Wait while the batch is full or averaged, at most until then (by `time.monotonic()`)."""
        while self.counter.samples and self.seconds_left == 0 and time.monotonic() < deadline and not self._error:
            if self._background is None:
                self._advance()
            time.sleep(BUSY_SECONDS)

    def leave(self) -> None:
        """Finish the round under way, hand the state over, tell the swarm, and end the background processes.

        Samples that are not part of a round yet are lost. A second call does nothing.
        """
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._background is not None:
            self._background.join()
        if self._error is not None:
            self.rounds.call_off()
        elif (complete := self.rounds.leave()) is not None:
            self._apply(complete)
        if self.tracker.is_alive() and self._error is None:
            self._hand_over()
            self.branch.leave()
        self._conversation.end()
        self.tracker.leave()
        self._exchange.host.stop()

    def _hand_over(self) -> None:
        """Wait a moment until another peer holds this state too, so that the last step is not lost with this peer.

        A coordinator if there is one: the others may be about to leave as well.
        """
        if not self._profile.holds_state:
            return
        deadline = time.monotonic() + HAND_OVER_SECONDS
        while time.monotonic() < deadline:
            others, organizer = self.tracker.others(), self.tracker.belief.organizer
            staying = [others[organizer]] if organizer in others else others.values()
            if not others or any(progress.step >= self.step and progress.holds_state for progress in staying):
                return
            time.sleep(0.1)

    # What the training loop sees

    @property
    def step(self) -> int:
        """The global step whose parameters this peer holds."""
        return self.state.step

    @property
    def last_step(self) -> int:
        """No round is begun after it."""
        decay = self.state.decay
        return self._last_step if decay is None else min(self._last_step, decay.end)

    def end_after(self, step: int) -> None:
        """Begin no round after this global step."""
        self._last_step = step

    def instruct(self, instructions: Instructions) -> None:
        """Tell the others; volunteers do what the coordinator says here."""
        self._instructions = instructions
        self.rounds.heed(instructions)

    def fills(self, wanted: Callable[[], float], beside: Callable[[], int] = lambda: 0) -> None:
        """Let somebody else say how many samples the next global step has in all (infinity while that is not known
        yet), no fewer than a global batch.

        :param beside: how many of this peer's are not among them; they go into the step with the others
        """
        self.rounds.batch.holds(wanted, beside)

    def confirms(self, answered: Callable[[int], dict[str, int]]) -> None:
        """Let this peer's contributions say what hosts of experts have done for it; see `Contribution.answered`.

        :param answered: gives that for a global step, in any thread
        """
        self.rounds.confirms(answered)

    @property
    def closed(self) -> bool:
        """Is this peer's part of the next global step fixed? In exact training what comes then is for no step."""
        return self.rounds.batch.fixed or self.rounds.begun

    def leaves_out(self, count: Callable[[], tuple[int, int, int]]) -> None:
        """Tell the others of how many files of the training data how many cannot be read, and how many rows are bad.

        :param count: gives the three numbers at any time, in any thread
        """
        self._left_out = count

    def stopped_before(self, reason: str) -> None:
        """Tell the organizer why this peer's training stopped before."""
        self._restarted = reason

    @property
    def samples_per_second(self) -> float:
        """How fast this peer computes; 0 before its first microbatch."""
        return float(self._speed.samples_per_second) if self._speed.num_updates else 0.0

    @property
    def samples(self) -> int:
        """This peer's samples toward the next global step; what accumulates during a round is for the one after."""
        return self.rounds.samples

    @property
    def seconds_left(self) -> float:
        """Until the batch is full, or 0 until it is averaged."""
        return 0.0 if self.rounds.batch.fixed else self.rounds.seconds_left()

    @property
    def averaging(self) -> bool:
        """Is what this peer gives to a round on its way?"""
        return self.rounds.begun

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known."""
        return self.rounds.swarm_samples()

    def count(self, computed: Sequence[Computed]) -> list[Computed]:
        """Hear what became of microbatches, whose replicas have added them up; returns those that are not finite."""
        taken, left_out = list[int](), list[Computed]()
        for each in computed:
            if each.finite:
                taken.append(each.samples)
                self._skipped = 0
            else:
                left_out.append(each)
                self._skipped += 1
        if taken:
            self._speed.update(task_size=sum(taken))
            self._boundary_seconds = sum(taken) / self._speed.samples_per_second
            self._computed = float(get_dht_time())
        return left_out

    def forget(self) -> bool:
        """Drop what was accumulated and has not counted: others compute it. False, and nothing is dropped, if it is on
        its way to a round."""
        if self.rounds.begun:
            return False
        self.rounds.batch.open()
        self._accumulator.forget()
        return True

    def refresh(self, replica: int) -> None:
        """Let a replica take over the newest parameters, between two of its microbatches."""
        self._replicas[replica].refresh(
            lambda newer: self._accumulator.rebase(newer, replica), self._forget, replica == self._at_work[0]
        )

    def leave_out_replica(self, replica: int) -> bool:
        """Its device has failed; returns whether the others can go on without it."""
        self._at_work.remove(replica)
        left = [self._replicas[number].device for number in self._at_work]
        self._profile = replace(self._profile, device=describe_devices(left))
        return self._accumulator.leave_out(replica)

    def boundary(self) -> None:
        """When what was computed is taken: wait while this peer is ahead, at most for a moment.

        Raises RuntimeError if the background has failed: without it this peer would go on alone for ever.
        """
        self._accumulator.boundary()
        if self._error is not None:
            raise self._error
        with self._speed.pause():
            began = time.monotonic()
            if self._background is None:
                self._advance()
            while self.ahead and self._error is None and time.monotonic() < began + AHEAD_SECONDS:
                if self._stop.wait(BUSY_SECONDS):
                    break
                if self._background is None:
                    self._advance()
            if self._overlap and self._idling.limited(time.monotonic(), since=began):
                _log.warning(IDLING)

    @property
    def ahead(self) -> bool:
        """Would more samples be of no use now? Then go from boundary to boundary and compute nothing.

        At the latest that is so where others would not believe them.
        """
        return self.rounds.batch.ahead or 2 * self.counter.samples > MAX_BATCHES * self.run.global_batch

    def give_up(self, reason: Exception) -> None:
        """Take part no more: the training loop raises this at its next boundary."""
        self._error = self._error or reason

    def check(self) -> None:
        """For whoever is not in the training loop: raises what went wrong in the background."""
        if self._error is not None:
            raise self._error

    def go_back(self, found: Found, rate: float, after: int, agree: Agree | None = None) -> None:
        """For the organizer's peer: as soon as no round is under way and it is where the others are, let the next step
        take over an earlier state. Until then nothing else is ordered.

        Nobody has to agree: the others are behind then and fetch the state, as whoever is behind does, and of two
        states of one step the organizer's is taken. Steps of before go on being counted.

        :param rate: a factor of the learning rate
        :param after: the step has a higher number than this
        :param agree: of a part of a run, which goes back with the others
        """
        self._going_back = found, rate, after, agree or partial(Together(after, lambda: self.step).agree, 0)

    def decay_order(self, steps: int) -> str:
        """Of the organizer's peer, for its instructions: the order that the learning rate falls over so many global
        steps and the run ends with that, signed for the state of now; empty if it falls already.

        Whoever hears of it brings it to the next round. All members see all that was brought, and take the order with
        that step; so it needs this peer no more once anybody has heard of it.
        """
        if self.state.decay is not None:
            return ""
        if self._signed_decay[:2] != (steps, self.state.rewound):
            order = decay_order(self._signer, self.run.run_id, steps, self.state.rewound)
            self._signed_decay = steps, self.state.rewound, order
        return self._signed_decay[2]

    @property
    def goes_back(self) -> bool:
        """Is such an order not done yet?"""
        return self._going_back is not None

    # Rounds

    def _run(self) -> None:
        try:
            while not self._leaving.wait(self._pause()):
                self._advance()
        except BaseException as error:  # the training loop raises it at its next boundary
            self._error = error

    def _pause(self) -> float:
        """Seconds until something may be due again."""
        if self.rounds.under_way:
            return BUSY_SECONDS
        return max(IDLE_SECONDS, self.rounds.look_period() / IDLES_PER_LOOK)

    def _advance(self) -> None:
        """Do what is due: gather, begin, finish a round, or catch up with the swarm."""
        if not (self._exchange.host.is_alive() and self.tracker.has_node()):
            raise RuntimeError("a background process of the swarm has died")
        self._report()
        complete: RoundResult | None = None
        if self._going_back is not None and self._went_back(*self._going_back):
            pass
        elif not self.rounds.begun and self._catch_up.behind():
            self.rounds.call_off()
            self._follow_the_swarm()
        elif self.rounds.begun or (self.rounds.stands and self.step < self.last_step):
            complete = self.rounds.advance()
            if complete is None and not self.rounds.under_way:
                self._report()  # the round came to nothing: its samples count toward the next one
        elif self._looks_for_voters() and self.branch.look(self.tracker.others()):
            self._report()
        elif self.step < self.last_step:
            self.rounds.gather_if_due()
        else:
            self.rounds.call_off()
        if complete is not None:
            self._apply(complete)

    def _looks_for_voters(self) -> bool:
        """Is it time for the organizer's peer to look whether they are gone?"""
        now = time.monotonic()
        if self._signer.peer != self.tracker.belief.organizer or now < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _apply(self, outcome: RoundResult) -> None:
        """Take the optimizer step with the averaged gradient, the same on every member."""
        commit = outcome.commit
        assert commit is not None
        try:
            head = self.branch.take(commit)
        except ValueError as error:
            _log.warning("global step %d is not taken: %s", commit.value.step, error)
            return
        receipt = receipt_of(commit, get_dht_time(), outcome.seconds)
        pieces = {piece.hash for entry in commit.value.counted for piece in entry.pieces}
        began, counts = time.monotonic(), not outcome.offered or outcome.offered in pieces
        if outcome.offered and counts:  # before a device can take over the parameters that this is in
            self._accumulator.mark_applied()
        with self._exchange.averager.vector.held() as average:
            self.state.apply(average, receipt, self.branch.decay_in(outcome.contributions))
        done = time.monotonic()
        self.branch.moved(head)
        parts = {"gather": self.rounds.gather_seconds, "average": outcome.seconds, "apply": done - began}
        if self._stepped:
            parts["compute"] = max(0.0, done - self._stepped - sum(parts.values()))
        self._stepped = done
        if not counts:
            _log.warning("global step %d was taken without this peer's samples, which came too late", receipt.step)
            self._exchange.averager.put_back()
            self._accumulator.confirm(pieces)
            self.rounds.batch.drop_stale()
        self.rounds.stepped(outcome.weights)  # before it tells: what it computed since is open
        self._report()
        self._tell(receipt, outcome.contributions, parts, self.rounds.left_out, outcome.carried)

    def _newest_known(self) -> bool:
        """Is nobody further, as far as this peer has had the time to hear?"""
        heard = self.tracker.belief.hears(self.tracker.others().keys(), float(get_dht_time()))
        settled = time.monotonic() - self._began > SETTLING_SECONDS
        return heard and settled and not self._catch_up.behind() and self.step < self.last_step

    def _went_back(self, found: Found, rate: float, after: int, agree: Agree) -> bool:
        """Go back, if it is time to; not again if that was done before a restart, as the others have proven."""
        if self.state.rewound > after:
            agree(True, self.state.rewound)
            self._going_back = None
            return False
        step = None if self.rounds.begun else agree(self._newest_known(), 0)
        if step is None:
            return False
        self.rounds.call_off()  # a group that gathers for a batch may do so for ever
        (tensors, info), now = found, float(get_dht_time())
        try:
            head = self.branch.take_over(step, info, rate)
        except (ValueError, OSError) as error:
            _log.warning("the run does not go back yet: %s", error)
            return False
        reset = files.decode(head.anchor, Anchored).anchor.reset
        receipt = receipt_of(reset, now)
        self.state.go_back(tensors, info, receipt, rate)
        self.branch.moved(head)
        self._going_back = None
        self._stepped = 0.0
        self._exchange.averager.forget_feedback()
        self.rounds.stepped({})
        self._report()
        _log.warning(told(step, f"the state of step {info.step}", rate))
        self._tell(receipt, {}, {})
        return True

    def _forget(self) -> None:
        """What this peer computed with parameters from before a rewind leads nowhere."""
        dropped = self._accumulator.forget()
        if dropped:
            _log.warning("%d samples were under way when the organizer let the run go back; dropped", dropped)

    def _tell(
        self,
        receipt: Receipt,
        contributions: dict[str, Contribution],
        parts: Mapping[str, float],
        left_out: LeftOut | None = None,
        carried: Mapping[str, Carried] | None = None,
    ) -> None:
        """:param parts: seconds of the parts of the step, as far as this peer took part in them"""
        decay = self.state.decay
        if decay is not None and decay != self._told_decay:
            _log.warning(falling(decay))
        self._told_decay = decay
        self._on_step(global_step(receipt, contributions, parts, left_out, carried), contributions)

    # Keeping up with the swarm

    def _follow_the_swarm(self) -> None:
        """Take the steps that the others have taken without us; what of ours was in them has counted."""
        rewound = self.state.rewound
        for missed in self._catch_up.follow():
            self._accumulator.confirm(missed.pieces)
            self._learn(missed)
            if missed.rollback is not None:
                _log.warning(told(missed.receipt.step, "an earlier state", missed.rollback.rate))
            if missed.is_step:
                self._tell(missed.receipt, missed.contributions, {})
        self._stepped = 0.0
        if self.state.rewound > rewound:
            self._forget()
        self.rounds.batch.open()
        self.rounds.batch.drop_stale()
        self._report()

    def _learn(self, missed: MissedStep) -> None:
        """This peer holds the parameters that a step led to which it did not take itself."""
        self.rounds.counting.saw(missed.contributions)
        self.rounds.stepped(missed.weights)

    def _report(self) -> None:
        self.tracker.report(self._progress(), self.rounds.look_period())

    def _progress(self) -> Progress:
        """What this peer says of itself."""
        files, unreadable_files, bad_rows = self._left_out()
        return Progress(
            **vars(self._profile),
            run_id=self.run.run_id,
            step=self.step,
            round=self.state.round,
            term=self.branch.term,
            incarnation=self.branch.incarnation,
            samples=self.samples,
            samples_per_second=min(1e9, self.samples_per_second),
            boundary_seconds=min(3600.0, self._boundary_seconds),
            sketch=self.state.sketch,
            instructions=self._instructions,
            upload=self.rounds.upload,
            files=files,
            unreadable_files=unreadable_files,
            bad_rows=bad_rows,
            since=self.tracker.twin.since,
            restarted=self._restarted,
            skipped=self._skipped,
            fixed=self.rounds.batch.fixed,
            computed=self._computed,
            time=get_dht_time(),
        )
