"""Honest volunteers of all kinds, checked in every step, with all real but the network: nobody is convicted."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import Batches, Feed, seed_for
from dedloc_kit.learning.train.computing.cards import Callbacks, Cards
from dedloc_kit.learning.train.computing.recomputing import on_cpu
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode_all
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.audits.auditor import Auditor
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.audits.proofs import Proven, Shown
from dedloc_kit.swarm.audits.questions import Found, Prove, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer, line_of
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.pledges.proving import proven, work_of
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.trust.pledge import Pledged, Work, nothing_lost
from dedloc_kit.swarm.trust.weight import claimed
from tests.text_runs import text_run, write_text

AUDIT_SECONDS = 120.0


class Kind(NamedTuple):
    """How a volunteer computes, and what befalls it."""

    microbatch: int
    threads: int = 1
    half: torch.dtype | None = None
    microbatches: int = 2
    """In a step."""
    rejoins: bool = False
    """In mid-run, with a new session."""
    fails: bool = False
    """Every other round fails here and counts for the others; every third one goes on without it."""
    slow: bool = False
    """Every other answer comes too late."""
    factor: float = 1.0
    """What it sends, of its gradient."""


HONEST = {
    "QmOne": Kind(3),
    "QmTwo": Kind(8, threads=2),
    "QmThree": Kind(1, microbatches=9),
    "QmFour": Kind(8, half=torch.bfloat16),
    "QmFive": Kind(1, half=torch.bfloat16, threads=2),
    "QmSix": Kind(3, half=torch.float16),
    "QmSeven": Kind(3, rejoins=True),
    "QmEight": Kind(3, fails=True),
    "QmNine": Kind(8, half=torch.bfloat16, fails=True, rejoins=True),
    "QmTen": Kind(3, slow=True),
}


class Volunteer:
    """One session of one."""

    def __init__(self, world: "World", peer: str, kind: Kind, session: str) -> None:
        self.peer, self.kind, self.session = peer, kind, session
        self.lock = threading.Lock()  # it computes one thing at a time
        self._state, self._answers = world.state, Counter[str]()
        self._replica = Replica(world.state, torch.device("cpu"))
        self._gradients = Gradients([self._replica])
        self._flat = torch.zeros(world.state.layout.size)
        feedbacks = Feedback(world.state.layout.size), Feedback(world.state.layout.size)
        self._coding = Coding(codec_of(world.run.averaging.compression), *feedbacks)
        self.pledges = pledges = Pledges(
            Kept(world.folder / f"{peer} {session}", LOTS), IntroducedRounds(world.folder / f"rounds of {peer}")
        )
        self.work_of = pledges.work_of
        self._unlearned = list[str]()
        task = create_task(world.run)
        feed = Feed(Batches(world.run, task, seed_for(world.run, peer), pytest.fail))
        batches = world.stack.enter_context(feed.batches(kind.microbatch, lambda: False, ahead=2))
        caller = Callbacks(self._refresh, self._gradients.leave_out, line_of)
        options: Any = {"in_step": False, "prepare": task.prepare, "half": lambda _: kind.half}
        self._cards = Cards([self._replica], [task.loss], batches, caller, **options)
        world.stack.callback(self._cards.close)
        self._recomputer = Recomputer(world.run, None, world.parameters, self._cards.recompute)

    def compute(self, microbatches: int) -> None:
        torch.set_num_threads(self.kind.threads)
        for _ in range(microbatches):
            assert all(each.finite or each.rescaled for each in self._cards.compute())

    def pledge(self, step: int, group: str, plan: Plan) -> tuple[Pledged, Tensor]:
        """What it brings to a round, and that as reducers decode it."""
        self._gradients.confirm(self._unlearned)  # it has learned by now that they counted
        self._unlearned.clear()
        self._gradients.load_in_flight(self._flat)
        counter = self._gradients.counter
        mine = Contribution(
            run_id=self._state.run_id,
            step=step,
            session=self.session,
            samples=counter.in_flight,
            session_samples=counter.applied + counter.in_flight,
            loss=counter.loss,
            name=self.peer,
            time=1.0,
        )
        self._coding.sent.begin(float(mine.samples))
        sent = self._flat * self.kind.factor
        pledged, sealed = self.pledges.seal(group, mine, counter.work, plan, sent, self._coding)
        assert sealed is not None
        return pledged, decode_all(sealed.parts, len(sent))

    def counted(self) -> None:
        self._coding.sent.commit()
        self.pledges.counted()
        self._gradients.mark_applied()

    def failed(self, group: str, counts: bool) -> None:
        """The round came to nothing here, and maybe to something elsewhere."""
        self._coding.sent.discard()
        self._gradients.mark_unconfirmed(group)
        if counts:
            self._unlearned.append(group)

    def prove(self, question: Prove) -> Shown:
        shown = None if self._too_slow("prove") else self.pledges.prove(question)
        if shown is None:
            raise NoAnswer(self.peer)
        return shown

    def recompute(self, question: Recompute) -> Found:
        with self.lock:
            return Found() if self._too_slow("recompute") else self._recomputer.answer(question)

    def _too_slow(self, to: str) -> bool:
        """Of each kind every other one: what others ask for meanwhile must not decide how often in a row it is late."""
        self._answers[to] += 1
        return self.kind.slow and self._answers[to] % 2 == 1

    def _refresh(self, number: int) -> None:
        self._replica.refresh(lambda newer: self._gradients.rebase(newer, number), lambda: None)


class World:
    """A swarm without a network; as an `Inquiry` it answers its auditor."""

    def __init__(self, run: RunConfig, folder: Path, kinds: Mapping[str, Kind], stack: ExitStack) -> None:
        self.run, self.folder, self.stack = run, folder, stack
        task = create_task(run)
        self.state = TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, task.groups(m)), run)
        self.parameters = KeptParameters(self.state, folder / "parameters", MAX_STALENESS + 4)
        self.parameters.keep()
        self.state.listen(self.parameters.keep)
        own = on_cpu(self.state, task.loss, task.prepare)
        self._own, self._lock = Recomputer(run, None, self.parameters, own), threading.Lock()
        self.convicted = defaultdict[str, list[str]](list)
        self.auditor = Auditor(
            run.trust, Probation(3, claimed), nothing_lost(self.state.layout.size), self, self._convict, Random(5)
        )
        stack.callback(self.auditor.close)
        self.volunteers: dict[str, Volunteer] = {}
        self.kinds = kinds

    def run_for(self, steps: int) -> None:
        self.volunteers = {peer: Volunteer(self, peer, kind, "ab") for peer, kind in self.kinds.items()}
        layout, count = self.state.layout, len(self.kinds)
        plan = Plan(tuple(self.kinds), layout, (1,) * count)
        for step in range(1, steps + 1):
            if step == steps // 2:
                self.volunteers |= {p: Volunteer(self, p, k, "cd") for p, k in self.kinds.items() if k.rejoins}
            self._step(step, f"{step:040x}", plan)
            end = time.monotonic() + AUDIT_SECONDS
            while not self.auditor.idle:
                assert time.monotonic() < end
                time.sleep(0.002)

    def _step(self, step: int, group: str, plan: Plan) -> None:
        contributions = dict[str, Contribution]()
        total, average = 0, torch.zeros(self.state.layout.size)
        for peer, each in self.volunteers.items():
            each.compute(each.kind.microbatches)
            if each.kind.fails and step % 4 == 0:  # a round of all that comes to nothing
                each.pledge(step, f"{step + 2**32:040x}", plan)
                each.failed(f"{step + 2**32:040x}", counts=False)
                each.compute(1)
            pledged, sent = each.pledge(step, group, plan)
            each.compute(1)  # of the parameters of before: it goes into the next round
            if each.kind.fails and step % 3 == 0:
                each.failed(group, counts=False)
                continue
            contributions[peer] = pledged
            total += pledged.samples
            average.add_(sent, alpha=pledged.samples)
            if each.kind.fails and step % 2 == 0:
                each.failed(group, counts=True)
            else:
                each.counted()
        self.state.apply(average / total, Receipt(step=step, round=group, time=0.0, seconds=0.0, record=b""))
        self.auditor.stepped(step, contributions)

    # As an Inquiry

    def confirm(self, peer: str, samples: int) -> None:
        self.volunteers[peer].pledges.stand(samples, "")

    def here(self) -> Mapping[str, float]:
        return dict.fromkeys(self.volunteers, 1.0)

    def prove(self, peer: str, question: Prove) -> Shown:
        return self.volunteers[peer].prove(question)

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        return proven(pledged, question, shown, self.state.layout, codec_of(self.run.averaging.compression))

    def work(self, peer: str, pledged: Pledged) -> list[Work]:
        shown = self.volunteers[peer].work_of(pledged.group)
        if shown is None:
            raise NoAnswer(peer)
        return work_of(pledged, shown)

    def reducers(self, group: str) -> tuple[str, ...]:
        return ()  # here nobody reduces

    def made(self, group: str, number: int) -> Tensor:
        raise ValueError(group)

    def sent(self, peer: str, pledged: Pledged, number: int) -> Tensor:
        raise ValueError(peer)

    def recompute(self, peer: str, question: Recompute) -> Found:
        return self.volunteers[peer].recompute(question)

    def own(self, question: Recompute) -> Found:
        with self._lock:
            return self._own.answer(question)

    def _convict(self, verdict: Verdict) -> None:
        self.convicted[verdict.peer].append(verdict.why)


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Callable[..., World]]:
    write_text(tmp_path)
    threads = torch.get_num_threads()
    with ExitStack() as stack:

        def made(task: str, compression: str, kinds: Mapping[str, Kind]) -> World:
            model = {"embedding_size": 16, "max_position_embeddings": 64} if task == "albert" else {}
            run = text_run(tmp_path, task, model=model)
            update = {
                "trust": TrustConfig(checks="on", share=1.0),
                "averaging": run.averaging.model_copy(update={"compression": compression}),
                "optimizer": OptimizerConfig(learning_rate=0.01, warmup_steps=1, total_steps=1000),
            }
            return World(run.model_copy(update=update), tmp_path, kinds, stack)

        yield made
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("task", "compression", "steps"),
    [("albert", "4bit", 4), pytest.param("causal", "8bit", 16, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
def test_nobody_honest_is_convicted_whatever_it_computes_with_and_whatever_befalls_it(
    task: str, compression: str, steps: int, world_of: Callable[..., World]
) -> None:
    world = world_of(task, compression, HONEST)
    world.run_for(steps)
    assert not world.convicted
    tally = world.auditor.tally
    assert tally.given_up <= steps, "of the slow one"
    assert tally.passed + tally.given_up > 0.8 * steps * len(HONEST)


def test_who_sends_a_fifth_more_is_convicted_among_them_and_nobody_else(world_of: Callable[..., World]) -> None:
    world = world_of("causal", "4bit", {**HONEST, "QmLiar": Kind(3, factor=1.2)})
    world.run_for(1)
    assert world.convicted.keys() == {"QmLiar"}
