"""Measures the coordinator's model beside the training, and judges by the losses whether the run is lost."""

import copy
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.coordinator.baseline_eval import measure_start
from dedloc_kit.coordinator.durability import LastingRecord, despite_a_full_disk
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Evaluated, Peers
from dedloc_kit.experts.state import MixedState
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.tasks.measuring import training_loss
from dedloc_kit.learning.train.computing.device import free_cached
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import Position, TrainingState
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.steering.divergence import Divergence, far_above

Measured = Evaluation | tuple[float, float]
"""On held-out data; without any the loss on data to train on, and that of the untrained model."""

Driven = Callable[[int], Evaluation | None]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_CPU = torch.device("cpu")


class Evaluator:
    """Told what happens in the run; records what it measures and marks the checkpoints that are lost.

    :param state: measured on a copy, in a thread: a round must not wait for it
    :param driven: what others make of the held-out data at a step; none if they cannot. They may say anything: it is
        shown, but no state is lost or sound by it
    :param device: computes; what it cannot, such as what its memory does not hold, the processor does
    """

    def __init__(
        self,
        run: RunConfig,
        task: Task,
        state: TrainingState | StagedState,
        lasting: LastingRecord,
        emit: Callable[[AnyEvent], None],
        driven: Driven | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self._run, self._task, self._state, self._lasting, self._emit = run, task, state, lasting, emit
        self._driven = driven
        # Experts that stand beside the model stay where they are, and it with them.
        self._device = _CPU if isinstance(state, MixedState) else device
        # What the losses are compared with: where those of the run began.
        evaluations = lasting.ledger.first_and_last_evaluation()
        training = next((step.loss for step in lasting.ledger.steps(limit=1)), None)
        self._divergence = Divergence(run.global_batch, evaluations[0].loss if evaluations else None, training)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[Measured] | None = None
        self._position = Position(-1, "")  # of what is measured, or was last
        self._claimed = False  # is that what others say?

    @property
    def under_way(self) -> int | None:
        """The step whose state is being measured."""
        return None if self._running is None else self._position.step

    def start(self, suspected: bool = False) -> None:
        """Measure the current state, unless that was begun before or the last measurement is still running.

        :param suspected: something may be wrong; a run without held-out data is then measured on data to train on, for
            what volunteers claim of their losses must not ruin a checkpoint
        """
        held_out = self._run.data.evaluation is not None
        if self._running is not None or self._position == self._state.position or not (held_out or suspected):
            return
        self._claimed = False
        if not held_out:
            model, self._position = self._state.snapshot()
            self._running = self._thread.submit(self._losses, model)
        elif self._driven is not None and not (suspected or self._suspicious):
            self._position = self._state.position
            self._running = self._thread.submit(self._measure_there, self._driven)
        elif isinstance(self._state, MixedState):  # nobody waits until what others have of it is here
            self._position = self._state.position
            self._running = self._thread.submit(self._measure_here)
        else:
            model, self._position = self._state.snapshot()
            self._running = self._thread.submit(self._evaluate, model)

    def measure_start(self) -> None:
        """Measure what the run goes on from, unless that is known, after what is measured now."""
        self._thread.submit(measure_start, self._run, self._task, self._lasting.ledger).add_done_callback(_report)

    def finish(self, wait: bool = False) -> None:
        """Take what has been measured, if that is done.

        :param wait: until it is
        """
        if self._running is None or not (wait or self._running.done()):
            return
        running, self._running = self._running, None
        try:
            measured = running.result()
        except UserError as error:
            _log.warning("no evaluation of step %d: %s", self._position.step, error)
            return
        step = self._position.step
        anew = isinstance(measured, Evaluation) and self._lasting.ledger.measured_on_other(measured)
        if anew:
            self._divergence.held_out_anew()
        if not self._claimed:
            with despite_a_full_disk():
                self._judge(step, measured)
        if not isinstance(measured, Evaluation):
            return
        if not math.isfinite(measured.loss):
            _log.warning("the held-out loss of step %d is not a finite number", step)
            return
        with despite_a_full_disk():
            self._lasting.evaluation(step, measured, time.time())
            self._lasting.checkpoints.rate(step, measured.loss)
            if anew:
                self.measure_start()
        self._emit(Evaluated(step=step, loss=measured.loss, metrics=measured.metrics))

    def stepped(self, step: GlobalStep) -> None:
        """A global step is done; one without peers has taken over an earlier state, of which nothing bad is known."""
        self._divergence.stepped(step.step, step.loss)
        if not step.peers:
            self._divergence.went_back()
            self._lasting.checkpoints.ruined.judge(step.step, True)

    def watch(self, peers: Peers, over: bool) -> Peers:
        """The same with what is wrong; then the state is measured, so that nobody starts from it unawares.

        :param over: the last step is done
        """
        self._divergence.seen(self._state.step, peers.peers, peers.paused or over)
        problem = self._divergence.problem
        if self._suspicious:
            self.start(suspected=True)
        return peers.model_copy(update={"problem": problem})

    @property
    def _suspicious(self) -> bool:
        """Is something wrong, or not known to be right again?"""
        return bool(self._divergence.problem or self._lasting.checkpoints.ruined.go_on)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _measure_there(self, driven: Driven) -> Measured:
        """Let others measure; what they cannot, or what would be bad news, is measured here, of the moment."""
        told = driven(self._position.step)
        if told is not None and not self._divergence.doubts(told.loss):
            self._claimed = True
            return told.model_copy(update={"held_out": ""})  # nor does a curve begin anew by what others say
        return self._measure_here()

    def _measure_here(self) -> Measured:
        """Of the moment."""
        model, self._position = self._state.snapshot()
        return self._evaluate(model)

    def _evaluate(self, model: torch.nn.Module) -> Evaluation:
        return self._computed(self._task.evaluate, model)

    def _computed(self, measure: Callable[[torch.nn.Module], T], model: torch.nn.Module) -> T:
        device = self._device
        if device != _CPU:
            try:
                return measure(_copy_on(device, model))
            except UserError:
                raise
            except Exception as error:  # whatever a device, or what was never made for one, fails with
                reason = (str(error) or type(error).__name__).splitlines()[0]
                _log.warning("evaluations are on the processor from now on, for on %s: %.200s", device, reason)
                self._device = _CPU
            finally:
                with suppress(RuntimeError):  # of a device that has failed
                    free_cached(device)
        return measure(model)

    def _losses(self, model: torch.nn.Module) -> tuple[float, float]:
        """Its loss on data to train on, and that of the untrained model."""
        seed = seed_of(self._run.run_id, "check")
        loss = partial(training_loss, self._run, self._task, seed=seed, warn=_log.warning)
        untrained = self._computed(loss, self._task.model())
        return self._computed(loss, model), untrained

    def _judge(self, step: int, measured: Measured) -> None:
        """Mark which states are lost. Raises UserError or OSError if that cannot be written down."""
        rewound = self._state.rewound
        sound = math.isfinite(measured.loss) if isinstance(measured, Evaluation) else not far_above(*measured)
        if step >= rewound:
            if isinstance(measured, Evaluation):
                self._divergence.evaluated(step, measured.loss)
            else:
                self._divergence.measured(step, *measured)
        ruined = self._lasting.checkpoints.ruined
        ruined.judge(step if sound else self._divergence.first_lost(step), sound)
        if step < rewound:  # it was still measured when the run went back
            ruined.judge(rewound, True)


def _copy_on(device: torch.device, model: torch.nn.Module) -> torch.nn.Module:
    """The same model there; this one stays, for a device that fails gives nothing back."""
    own: dict[int, Any] = {
        id(each): torch.nn.Parameter(each.detach().to(device), each.requires_grad) for each in model.parameters()
    }
    own |= {id(each): each.to(device) for each in model.buffers()}
    return copy.deepcopy(model, own)  # which takes these for its copies


def _report(start: Future[None]) -> None:
    """Nobody waits for it, but what went wrong is not to be lost."""
    if not start.cancelled() and (error := start.exception()) is not None:
        _log.error("the model that the run goes on from could not be measured", exc_info=error)
