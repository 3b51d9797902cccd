"""What the coordinator does with its auditor: it asks in the swarm, and makes an order of a verdict."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.learning.train.computing.recomputing import on_cpu
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.record import MAX_REASON
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.steering.evidence import EVIDENCE_FOLDER
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode, read_part
from dedloc_kit.swarm.audits.answering import RecomputeService
from dedloc_kit.swarm.audits.auditor import SPARED_STEPS, Auditor
from dedloc_kit.swarm.audits.equivocation import EquivocationService
from dedloc_kit.swarm.audits.known_answer import Knowing, known_question
from dedloc_kit.swarm.audits.probation import Probation, StandingService
from dedloc_kit.swarm.audits.proofs import ProofService, Proven, Shown
from dedloc_kit.swarm.audits.questions import Found, Prove, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.audits.verdicts import Verdict, keep_evidence
from dedloc_kit.swarm.averaging.pledges.proving import part_of, proven, work_of
from dedloc_kit.swarm.averaging.service import Averaged, AveragingService
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.trust.pledge import Pledged, Work, nothing_lost
from dedloc_kit.swarm.trust.standing import Standing, signed
from dedloc_kit.swarm.trust.weight import weighing

MAX_STEPS_AGO = SPARED_STEPS // 2
"""Of what convicts: while it may be shown, nobody is convicted by it a second time."""

_log = logging.getLogger(__name__)


class Auditing:
    """From the first step to the last; only where checks are on."""

    def __init__(
        self, run: RunConfig, folder: Path, module: str | None, me: SwarmPeer, emit: Callable[[AnyEvent], None]
    ) -> None:
        """:param module: as for `create_task`"""
        self._folder, self._book, self._emit = folder, OrderBook(folder), emit
        self._tracker = me.optimizer.tracker
        probation = Probation(run.probation, weighing(run))
        nothing = nothing_lost(me.optimizer.state.layout.size)
        self._auditor = Auditor(run.trust, probation, nothing, Inquiries(run, module, me), self._send_away)
        assert me.parameters is not None
        question = partial(known_question, run, me.signer.peer, me.parameters.size)
        # Its own, so that the data stay open.
        own = on_cpu(me.optimizer.state, me.task.loss, me.task.prepare)
        recomputer = Recomputer(run, module, me.parameters, own)
        Knowing(me.exchange.host, question, recomputer, me.parameters)
        self._optimizer, self._host = me.optimizer, me.exchange.host
        threading.Thread(target=self._hear_of_equivocations, name="equivocations", daemon=True).start()

    def stepped(self, step: GlobalStep, contributions: Mapping[str, Contribution]) -> None:
        self._auditor.stepped(step.step, contributions)

    def checks(self) -> Checks:
        """What has come of it."""
        return self._auditor.checks

    def close(self) -> None:
        self._auditor.close()

    def _hear_of_equivocations(self) -> None:
        """As long as there is a host that hears of them."""
        with suppress(RuntimeError):
            while True:
                found = self._host.call(EquivocationService.next).result()
                # What is old may be shown again and again, by anybody, of somebody whom the organizer has let back in.
                if abs(found.step - self._optimizer.step) < MAX_STEPS_AGO:
                    self._auditor.convict(found.verdict)

    def _send_away(self, verdict: Verdict) -> None:
        progress = self._tracker.others().get(verdict.peer)
        name = "" if progress is None else progress.name
        why = "".join(letter if letter.isprintable() else " " for letter in verdict.why)[:MAX_REASON]
        keep_evidence(self._folder / EVIDENCE_FOLDER, verdict)
        try:
            self._book.kick(verdict.peer, name, why, verdict.last_passed)
        except UserError as error:
            _log.warning("%s cannot be sent away: %s", verdict.peer, error)
        else:
            self._emit(Warned(text=f"{name or 'a volunteer'} (...{verdict.peer[-4:]}) is sent away: {why}"))


class Inquiries:
    """Asks in the swarm, as `trust.audit.Inquiry`."""

    def __init__(self, run: RunConfig, module: str | None, me: SwarmPeer) -> None:
        assert me.parameters is not None
        state = me.optimizer.state
        self._layout, self._codec = state.layout, codec_of(run.averaging.compression)
        self._again = Recomputer(run, module, me.parameters, on_cpu(state, me.task.loss, me.task.prepare))
        self._host, self._tracker = me.exchange.host, me.optimizer.tracker
        self._run_id, self._signer = run.run_id, me.signer
        self._asking = defaultdict[str, threading.Lock](threading.Lock)
        self._computing = threading.Lock()

    def here(self) -> Mapping[str, float]:
        others = self._tracker.others()
        return {peer: progress.samples_per_second for peer, progress in others.items() if not progress.follower}

    def prove(self, peer: str, question: Prove) -> Shown:
        return self._host.call(ProofService.ask, peer, question).result()

    def recompute(self, peer: str, question: Recompute) -> Found:
        with self._asking[peer]:  # it computes one at a time, and takes the newest
            return self._host.call(RecomputeService.ask, peer, question).result()

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        return proven(pledged, question, shown, self._layout, self._codec)

    def reducers(self, group: str) -> tuple[str, ...]:
        averaged = self._averaged(group)
        return () if averaged is None else averaged.makers

    def made(self, group: str, number: int) -> Tensor:
        averaged = self._averaged(group)
        if averaged is None:
            raise ValueError("it is too long ago")
        begin, end = averaged.chunks[number]
        return decode(read_part(averaged.messages[number]), end - begin)

    def sent(self, peer: str, pledged: Pledged, number: int) -> Tensor:
        averaged = self._averaged(pledged.group)
        if averaged is None:
            raise ValueError("it is too long ago")
        shown = self.prove(peer, Prove(group=pledged.group, part=number, only="part"))
        return part_of(pledged, number, averaged.chunks[number], shown)

    def work(self, peer: str, pledged: Pledged) -> list[Work]:
        return work_of(pledged, self._host.call(ProofService.ask_work, peer, pledged.group).result())

    def confirm(self, peer: str, samples: int) -> None:
        standing = Standing(run_id=self._run_id, peer=peer, confirmed=samples)
        with suppress(NoAnswer):  # it is told again after its next contribution
            self._host.call(StandingService.give, peer, signed(self._signer, standing)).result()

    def _averaged(self, group: str) -> Averaged | None:
        return self._host.call(AveragingService.averaged, group).result()

    def own(self, question: Recompute) -> Found:
        with self._computing:
            return self._again.answer(question)
