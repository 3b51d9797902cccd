"""The collaborative optimizer: accumulate, and once the swarm has a global batch, average and take one step.

After DeDLOC (Diskin et al. 2021, section 3): the result is that of one machine with the same batch, however many
peers there are. Each peer is in one of two situations: it accumulates, or a round (group and all-reduce) of its
outgoing gradients is under way.
"""

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable

import torch
from hivemind import DHT
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.utils import get_dht_time
from hivemind.utils.performance_ema import PerformanceEMA

from dedloc_kit.errors import UserError
from dedloc_kit.records import Contribution, GlobalStep, Progress, Receipt, StateInfo
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.averaging import GradientAverager, Round
from dedloc_kit.swarm.gradients import Gradients
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.swarm.state import TrainingState
from dedloc_kit.swarm.tracker import Tracker
from dedloc_kit.training.lamb import Lamb
from dedloc_kit.training.schedule import learning_rate

LOAD_ATTEMPTS = 6
LOAD_PAUSE = 3.0
DOWNLOAD_TIMEOUT = 1800.0
HAND_OVER_SECONDS = 10.0

StepListener = Callable[[GlobalStep, dict[str, Contribution]], None]


class CollaborativeOptimizer:
    """One peer's part in the run. Use from one thread: `accumulate` after each backward pass, then `advance`.

    :param follower: contributes no samples, takes every step: how the coordinator holds the state
    :param session: hexadecimal name of this session; contributions of one session count up
    :param stop: set when this peer is to leave: it ends the waiting for a round or for a donor of the state
    :param on_step: told about every global step that this peer took
    :param warn: told in plain words about what went wrong and was dealt with
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Lamb,
        *,
        run: RunConfig,
        dht: DHT,
        signer: Signer,
        session: str,
        name: str,
        device: str,
        addresses: tuple[str, ...],
        follower: bool,
        stop: threading.Event,
        on_step: StepListener,
        warn: Callable[[str], None],
    ) -> None:
        self.run, self._signer, self._session = run, signer, session
        self._name, self._device, self._addresses = name, device, addresses
        self._follower, self._stop, self._on_step, self._warn = follower, stop, on_step, warn
        self._dht, self._client_mode = dht, dht.client_mode
        self.state = TrainingState(model, optimizer, run.run_id)
        self._parameters = list(model.parameters())
        self.gradients = Gradients(self._parameters)
        self._round: StepControl | None = None
        self._round_began = 0.0
        self._awaited: set[str] = set()
        self._slowest_round = 0.0
        self._failures = 0  # in a row
        self._not_before = 0.0  # when the next round may begin
        self._speed = PerformanceEMA()
        self._boundary_seconds = 0.0
        self.averager = GradientAverager(
            [torch.zeros(p.shape) for p in self._parameters],
            dht=dht,
            signer=signer,
            run=run,
            current_state=self.state.for_newcomer,
        )
        self.tracker = Tracker(dht, signer, run.run_id, warn)

    # Joining and leaving

    def join(self) -> None:
        """Load the current state from a peer, then take part. Nothing is contributed before.

        Raises UserError if nobody hands out the state.
        """
        if self._load_newest() is None and not self._stop.is_set():
            raise UserError("no peer of this run hands out the training state; is the coordinator running?")
        self.lead()

    def lead(self) -> None:
        """Take part with the state that this peer holds: the coordinator, when it starts or resumes a run."""
        self._share_state()
        self._report()
        self.tracker.start()

    def hand_over(self) -> None:
        """Wait a moment until another peer holds this state too, so that the last step is not lost with this peer."""
        deadline = time.monotonic() + HAND_OVER_SECONDS
        while self.tracker.anyone() and self._newest_step() < self.step and time.monotonic() < deadline:
            time.sleep(0.1)

    def leave(self) -> None:
        """Tell the swarm, and end the background processes. Samples of an unfinished global step are lost."""
        if self._round is not None and not self._round.done():
            self._round.cancel()
        self.tracker.leave()
        self.averager.shutdown()

    @property
    def step(self) -> int:
        """The global step whose parameters this peer holds."""
        return self.state.step

    @property
    def samples_per_second(self) -> float:
        """How fast this peer computes; 0 before its first microbatch."""
        return float(self._speed.samples_per_second) if self._speed.num_updates else 0.0

    @property
    def samples(self) -> int:
        """This peer's samples toward the next global step; what accumulates during a round is for the one after."""
        return self.gradients.samples if self._round is None else self.gradients.outgoing_samples

    def swarm_samples(self) -> int:
        """Everyone's samples toward the next global step, as far as known."""
        return self.samples + sum(progress.samples for progress in self._mates().values())

    # Accumulating

    def accumulate(self, loss: float, samples: int) -> bool:
        """Take the gradients of one microbatch; False if they were not finite and were left out."""
        taken = self.gradients.add(loss, samples)
        if taken:
            self._speed.update(task_size=samples)
            self._boundary_seconds = samples / self._speed.samples_per_second
        return taken

    def advance(self) -> None:
        """Do what is due at a microbatch boundary: begin a round, apply its average, or catch up with the swarm.

        In synchronous mode a volunteer waits here until its round is over. Raises RuntimeError if a process of
        hivemind has died: without it this peer would wait for ever.
        """
        if not (self.averager.is_alive() and self._dht.is_alive()):
            raise RuntimeError("a background process of the swarm has died")
        self._report()
        if self._round is None:
            if self._behind():
                self._catch_up()
            elif self._batch_is_full():
                self._begin_round()
        if self._round is not None and not self.run.averaging.overlap and not self._follower:
            with self._speed.pause():
                self._wait_for_round()
        if self._round is not None and (self._round.done() or self._round_is_stale()):
            self._finish_round()

    # Rounds

    def _batch_is_full(self) -> bool:
        return time.monotonic() >= self._not_before and self.swarm_samples() >= self.run.global_batch

    def _begin_round(self) -> None:
        expected = self._expected()
        if not expected and (self._client_mode or self.tracker.anyone()):
            return  # cut off, or the others are busy: a step on our own would part our ways
        with self.averager.get_tensors() as tensors:
            self.gradients.load_outgoing(tensors)
        mine = Contribution(
            run_id=self.run.run_id,
            step=self.step + 1,
            session=self._session,
            samples=self.gradients.outgoing_samples,
            session_samples=self.gradients.counted_samples + self.gradients.outgoing_samples,
            loss=self.gradients.outgoing_loss,
            name=self._name,
            time=get_dht_time(),
        )
        self._round_began = time.monotonic()
        if not expected:
            lone = hashlib.sha256(f"{self.run.run_id} {self._signer.peer} {self.step} {self.state.round}".encode())
            signed = (self._signer.sign(mine),)
            self._apply(Round("complete", lone.hexdigest()[:40], {self._signer.peer: mine}, signed))
            return
        slowest = max(progress.boundary_seconds for progress in expected.values())
        self._awaited = set(expected)
        self._round = self.averager.begin_round(
            mine,
            after=self.state.round,
            group_size=1 + len(expected),
            window=min(30.0, max(5.0, 2.0 + 2.0 * slowest)),
            timeout=max(60.0, 4.0 * self._slowest_round),
        )

    def _wait_for_round(self) -> None:
        assert self._round is not None
        while not (self._round.done() or self._round_is_stale() or self._stop.wait(0.02)):
            pass

    def _round_is_stale(self) -> bool:
        """Nobody will come to this group any more: the swarm has moved on without us."""
        assert self._round is not None
        searching = not self._round.done() and self._round.stage == AveragingStage.LOOKING_FOR_GROUP
        return searching and self._newest_step() > self.step

    def _finish_round(self) -> None:
        control, self._round = self._round, None
        assert control is not None
        if not control.done():
            control.cancel()
            return  # the next advance() catches up
        try:
            outcome: Round = control.result()
        except (Exception, asyncio.CancelledError) as error:  # hivemind found no group, or its process is gone
            outcome = Round("failed", detail=repr(error)[:200])
        seconds = time.monotonic() - self._round_began
        if outcome.contributions:
            self.tracker.suspect(self._awaited - outcome.contributions.keys())
        match outcome.outcome:
            case "complete":
                self._slowest_round = max(self._slowest_round, seconds)
                self._apply(outcome)
            case "poisoned":
                self._warn(f"a round was dropped by everyone: {outcome.detail}")
                self.gradients.drop_outgoing()
            case "refused":
                pass  # whoever did not come is not counted any more: the batch fills up again first
            case "failed":
                self._warn(f"a round failed and is tried again: {outcome.detail}")
                if outcome.id:
                    self.gradients.doubt(outcome.id)
                self._look()
                self._not_before = time.monotonic() + min(10.0, 0.25 * 2**self._failures)
                self._failures += 1

    def _apply(self, outcome: Round) -> None:
        """Take the optimizer step with the averaged gradient, the same on every member."""
        receipt = Receipt(
            step=self.step + 1,
            round=outcome.id,
            time=get_dht_time(),
            seconds=time.monotonic() - self._round_began,
            signed=outcome.signed,
        )
        rate = learning_rate(self.run.optimizer, self.step)
        optimizer = self.state.optimizer
        with self.averager.get_tensors() as tensors, self.state.lock:
            for parameter, average in zip(self._parameters, tensors, strict=True):
                parameter.grad = average.to(parameter.device, copy=True)
            torch.nn.utils.clip_grad_norm_(self._parameters, self.run.optimizer.max_gradient_norm)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            for parameter in self._parameters:
                parameter.grad = None
            self.state.advance(receipt)
        self._failures = 0
        self.gradients.count_outgoing()
        self._share_state()
        self._report()
        self._tell(receipt, outcome.contributions)

    def _tell(self, receipt: Receipt, contributions: dict[str, Contribution]) -> None:
        samples = sum(c.samples for c in contributions.values())
        losses = [(c.loss, c.samples) for c in contributions.values() if c.loss is not None and c.samples]
        self._on_step(
            GlobalStep(
                step=receipt.step,
                round=receipt.round,
                time=receipt.time,
                samples=samples,
                loss=sum(loss * n for loss, n in losses) / sum(n for _, n in losses) if losses else None,
                peers=len(contributions),
                seconds=receipt.seconds,
            ),
            contributions,
        )

    # Keeping up with the swarm

    def _mates(self) -> dict[str, Progress]:
        """The others who hold the same state as this peer: their samples fill the same batch."""
        return {
            peer: progress
            for peer, progress in self.tracker.others().items()
            if (progress.step, progress.round) == (self.step, self.state.round)
        }

    def _expected(self) -> dict[str, Progress]:
        """Who has to come to the next round: the mates, and those who are about to finish the last one.

        Without the latter a quick peer would begin with the few who were as quick, and the swarm would part.
        """
        late = {peer: progress for peer, progress in self.tracker.others().items() if progress.step == self.step - 1}
        return self._mates() | late

    def _newest_step(self) -> int:
        return max((progress.step for progress in self.tracker.others().values()), default=0)

    def _swarm_round(self) -> str:
        """The all-reduce that most peers at this step came from; it differs from ours if our ways parted."""
        rounds = Counter(p.round for p in self.tracker.others().values() if p.step == self.step)
        rounds[self.state.round] += 1
        return max(rounds, key=lambda round_id: (rounds[round_id], round_id))

    def _behind(self) -> bool:
        return self._newest_step() > self.step or self._swarm_round() != self.state.round

    def _catch_up(self) -> None:
        """Take the swarm's state, and learn from the receipts that come with it which steps were missed."""
        before = self.step
        receipts = self._load_newest()
        if receipts is None:
            if not self._stop.is_set():
                self._warn("the swarm is ahead, but nobody hands out its state; still trying")
            return
        for receipt in receipts:
            if before < receipt.step <= self.step:
                try:
                    self._tell(receipt, self._opened(receipt))
                except ValueError as error:
                    self._warn(f"the receipt of step {receipt.step} was ignored: {error}")

    def _opened(self, receipt: Receipt) -> dict[str, Contribution]:
        """The contributions in a receipt, by peer; raises ValueError if one is not what it should be."""
        contributions = dict(self._signer.open(Contribution, signed) for signed in receipt.signed)
        if any((c.run_id, c.step) != (self.run.run_id, receipt.step) for c in contributions.values()):
            raise ValueError("a contribution is of another step")
        return contributions

    def _load_newest(self) -> tuple[Receipt, ...] | None:
        """Download the newest state, from another donor if one fails; None if nobody has it.

        Returns the receipts of the latest steps, oldest first.
        """
        for attempt in range(LOAD_ATTEMPTS):
            if attempt and self._stop.wait(LOAD_PAUSE):
                break
            self._look()
            wanted = self._newest_step()
            try:
                found = self.averager.load_state_from_peers(timeout=DOWNLOAD_TIMEOUT)
                if found is None:
                    continue
                metadata, tensors = found
                info = StateInfo.parse(metadata["info"])
                receipts = tuple(Receipt.parse(values) for values in metadata["receipts"])
                if info.step < wanted:
                    continue  # a donor that is itself behind
                if info == self.state.info and self._behind():
                    continue  # a donor that took the same wrong turn as this peer
                before = self.step
                self.state.load(tensors, info)
            except (ValueError, TypeError, KeyError, TimeoutError) as error:
                self._warn(f"a downloaded state was refused: {error}")
                continue
            self.state.receipts = receipts
            self._settle(before, info)
            self._share_state()
            self._report()
            return receipts
        return None

    def _settle(self, before: int, loaded: StateInfo) -> None:
        """After a jump to the swarm's state: which of our samples have counted, which still can?"""
        self.gradients.settle(loaded.rounds)
        # A gradient may be as old as overlapping makes every gradient; exact training takes none that is old at all.
        allowed = 1 if self.run.averaging.overlap else 0
        if loaded.step - before > allowed and self.gradients.samples:
            self._warn(f"{self.gradients.samples} samples were computed on parameters that are too old; dropped")
            self.gradients.drop()

    def _share_state(self) -> None:
        if not self._client_mode:
            self.averager.state_sharing_priority = float(self.step)
            self.averager.allow_state_sharing = True

    def _look(self) -> None:
        try:
            self.tracker.look()
        except Exception as error:
            self._warn(f"the swarm's directory does not answer ({error!r:.100})")

    def _report(self) -> None:
        self.tracker.report(
            Progress(
                run_id=self.run.run_id,
                step=self.step,
                round=self.state.round,
                samples=self.samples,
                samples_per_second=min(1e9, self.samples_per_second),
                boundary_seconds=min(3600.0, self._boundary_seconds),
                follower=self._follower,
                client_mode=self._client_mode,
                addresses=self._addresses,
                device=self._device,
                name=self._name,
                time=get_dht_time(),
            )
        )
