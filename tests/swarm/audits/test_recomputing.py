"""What a volunteer has computed has a name, by which others find its gradient again."""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.data.sampler import DECAY
from dedloc_kit.learning.data.sources.blocks import Blocks, Unread
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import Batches, Feed, seed_for
from dedloc_kit.learning.train.computing.cards import Callbacks, Cards
from dedloc_kit.learning.train.computing.recomputing import on_cpu
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.projections import TOLERANCE, difference, project
from dedloc_kit.swarm.audits.questions import MAX_ASKED, Found, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer, line_of
from dedloc_kit.swarm.trust.pledge import Work
from tests.text_runs import text_run, write_text

pytestmark = pytest.mark.usefixtures("one_thread")

AUTHOR, SESSION, SEED = "QmAuthor", "0123456789abcdef", bytes(range(32))
ALBERT = {"embedding_size": 16, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunConfig]:
    folder = tmp_path_factory.mktemp("data")
    write_text(folder)

    def made(name: str) -> RunConfig:
        run = text_run(folder, name, model=ALBERT if name == "albert" else {})
        data = run.data.model_copy(update={"cooldown": run.data.train})
        return run.model_copy(update={"trust": TrustConfig(checks="on"), "data": data})

    return made


class Line(NamedTuple):
    """A microbatch that was computed, and its gradient."""

    work: bytes
    gradient: Tensor
    weight: float


class Volunteer:
    """One with data of its own; its global steps are any that lead to other parameters."""

    def __init__(self, run: RunConfig, folder: Path, peer: str, half: torch.dtype | None = None) -> None:
        task = create_task(run)
        self.run, self.loss, self.prepare, self.half = run, task.loss, task.prepare, half
        self.state = TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, task.groups(m)), run)
        self.parameters = KeptParameters(self.state, folder / peer, 3)
        self.parameters.keep()
        self.state.listen(self.parameters.keep)
        self.replica = Replica(self.state, torch.device("cpu"))
        self.gradients = Gradients([self.replica])
        self.falls = False
        self._feed = Feed(Batches(run, task, seed_for(run, peer), pytest.fail))

    @contextmanager
    def at_work(self, microbatch: int) -> Iterator[None]:
        with self._feed.batches(microbatch, lambda: self.falls, ahead=2) as batches:
            caller = Callbacks(self._refresh, self.gradients.leave_out, line_of)
            options: Any = {"in_step": False, "prepare": self.prepare, "half": lambda _: self.half}
            self.cards = Cards([self.replica], [self.loss], batches, caller, **options)
            yield
            self.cards.close()

    def compute(self) -> Line:
        (computed,) = self.cards.compute()
        assert computed.finite
        mean = torch.zeros(self.state.layout.size)
        self.gradients.load_in_flight(mean)
        (work,) = self.gradients.counter.work
        weight = self.gradients.counter.in_flight_loss.weight
        self.gradients.mark_applied()
        return Line(work, mean, weight)

    def step(self) -> None:
        """The same for all, and far."""
        generator = torch.Generator().manual_seed(self.state.step)
        average = torch.randn(self.state.layout.size, generator=generator)
        step = self.state.step + 1
        self.state.apply(average, Receipt(step=step, round=f"{step:02x}", time=0.0, seconds=0.0, record=b""))

    def recomputer(self) -> Recomputer:
        return Recomputer(self.run, None, self.parameters, self.cards.recompute)

    def held(self) -> list[Tensor]:
        return [each.detach().clone() for each in (*self.replica.model.parameters(), *self.replica.model.buffers())]

    def _refresh(self, number: int) -> None:
        self.replica.refresh(lambda newer: self.gradients.rebase(newer, number), lambda: None)


def question(work: bytes, **changes: Any) -> Recompute:
    asked = {"author": AUTHOR, "session": SESSION, "work": work, "begin": 7, "end": 9000, "seed": SEED}
    return Recompute(**{**asked, **changes})


def projected(line: Line, begin: int = 7, end: int = 9000) -> tuple[float, ...]:
    return tuple(project(line.gradient[begin:end], SEED).tolist())


@pytest.mark.parametrize("name", ["albert", "causal"])
def test_what_a_volunteer_has_computed_another_one_and_the_coordinator_find_again(
    name: str, run_of: Callable[[str], RunConfig], tmp_path: Path
) -> None:
    run = run_of(name)
    author, checker = Volunteer(run, tmp_path, AUTHOR), Volunteer(run, tmp_path, "QmChecker")
    with author.at_work(4), checker.at_work(2):
        lines = [author.compute(), author.compute()]
        author.step()
        author.falls = True
        lines += [author.compute(), author.compute()]
        assert [Work.read(line.work).step for line in lines] == [0, 0, 1, 1]
        assert [Work.read(line.work).block >= DECAY for line in lines] == [False, False, True, True]
        checker.step()
        checker.step()
        checker.compute()
        held = checker.held()
        found = checker.recomputer().answer(question(b"".join(line.work for line in lines)))
        assert [list(each) for each in found.projections] == [
            pytest.approx(projected(line), rel=1e-5) for line in lines
        ]
        assert list(found.weights) == [line.weight for line in lines]
        assert found.norms == pytest.approx([float(line.gradient.norm()) for line in lines], rel=1e-5)
        assert all(map(torch.equal, held, checker.held()))
        assert checker.replica.step == 2
        assert len({*found.norms}) == 4
    task = create_task(run)
    coordinator = Recomputer(run, None, checker.parameters, on_cpu(checker.state, task.loss, task.prepare))
    assert coordinator.answer(question(b"".join(line.work for line in lines))) == found
    other = coordinator.answer(question(lines[0].work, author="QmOther"))
    assert other.projections != found.projections[:1], "another's data are others"


def test_a_gradient_in_bfloat16_is_within_the_tolerance_of_one_in_float32_and_another_is_not(
    run_of: Callable[[str], RunConfig], tmp_path: Path
) -> None:
    run = run_of("albert")
    author = Volunteer(run, tmp_path, AUTHOR, torch.bfloat16)
    with author.at_work(8):
        lines = [author.compute(), author.compute()]
        weights = [line.weight for line in lines]
        claimed = np.average([projected(line) for line in lines], axis=0, weights=weights)
        for again in (author.cards.recompute, on_cpu(author.state, author.loss, author.prepare)):
            found = Recomputer(run, None, author.parameters, again).answer(
                question(b"".join(line.work for line in lines))
            )
            work = found.recomputed()
            assert [each.weight for each in work] == weights
            off = difference(claimed, work)
            assert off < TOLERANCE
            assert (off > 1e-6) is (again != author.cards.recompute)
            assert difference(-claimed, work) > 1


def test_what_is_not_to_be_had_is_answered_with_nothing_at_once(
    run_of: Callable[[str], RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("causal")
    author = Volunteer(run, tmp_path, AUTHOR)
    with author.at_work(4):
        line = author.compute().work
        right, recomputer = Work.read(line), author.recomputer()
        size = author.state.layout.size
        assert recomputer.answer(question(line)) != Found()
        began = time.monotonic()
        wrong = [
            right._replace(step=1),
            right._replace(step=2**64 - 1),
            right._replace(block=2**60),
            right._replace(block=2**64 - 1),
            right._replace(missing=8),
            right._replace(missing=127),
            right._replace(samples=10**9),
            right._replace(samples=65),
            right._replace(samples=40),
            right._replace(position=10**12),
            right._replace(position=2**64 - 1),
            right._replace(position=10**9),
            right._replace(position=62),
        ]
        for work in wrong:
            assert recomputer.answer(question(work.content)) == Found(), work
            assert recomputer.answer(question(line + work.content)) == Found(), "nothing of the others either"
        for nonsense in (b"\0", line[:-1], line * (MAX_ASKED + 1), struct.pack(">QbQIQ", 0, -2, 0, 4, 0)):
            assert recomputer.answer(question(nonsense)) == Found()
        for begin, end in ((5, 5), (6, 5), (0, size + 1), (size, size + 1), (2**53 - 1, 2**53)):
            assert recomputer.answer(question(line, begin=begin, end=end)) == Found()
        assert len(recomputer.answer(question(line * MAX_ASKED, begin=0, end=min(size, CHUNK))).norms) == MAX_ASKED
        assert time.monotonic() - began < 30

        def unread(*_: object) -> None:
            raise Unread("too many files cannot be read")

        monkeypatch.setattr(Blocks, "again", unread)
        assert author.recomputer().answer(question(line)) == Found()


def test_a_chunk_is_the_most_that_is_projected(run_of: Callable[[str], RunConfig], tmp_path: Path) -> None:
    run = run_of("causal")
    state = Volunteer(run, tmp_path, AUTHOR)
    with state.at_work(4):
        line = state.compute().work
    large: Any = type("Large", (), {"size": 2 * CHUNK, "read": staticmethod(lambda _: pytest.fail("it was read"))})
    recomputer = Recomputer(run, None, large, lambda _: pytest.fail("it was computed"))
    assert recomputer.answer(question(line, begin=0, end=CHUNK + 1)) == Found()


def test_each_device_can_be_tried_before_its_first_microbatch(
    run_of: Callable[[str], RunConfig], tmp_path: Path
) -> None:
    run = run_of("causal")
    author, newcomer = Volunteer(run, tmp_path, AUTHOR), Volunteer(run, tmp_path, "QmNewcomer")
    with author.at_work(4), newcomer.at_work(2):
        line = author.compute()
        recomputer = newcomer.recomputer()
        assert recomputer.answer(question(line.work)) == Found(), "it has not seen yet how much the device takes"
        ((name, again),) = newcomer.cards.each()
        assert "(cpu)" in name
        recomputer.prepare(question(line.work))
        recomputer.prepare(question(b"nonsense"))
        assert recomputer.answer(question(line.work), again).projections == (projected(line),)


def test_a_run_without_data_for_its_end_has_no_work_on_it(run_of: Callable[[str], RunConfig], tmp_path: Path) -> None:
    run = run_of("causal")
    run = run.model_copy(update={"data": run.data.model_copy(update={"cooldown": ()})})
    author = Volunteer(run, tmp_path, AUTHOR)
    with author.at_work(4):
        line = Work.read(author.compute().work)
        assert author.recomputer().answer(question(line.content)) != Found()
        assert author.recomputer().answer(question(line._replace(block=DECAY).content)) == Found()


def test_where_checks_are_off_a_microbatch_has_no_name() -> None:
    assert line_of({"input_ids": torch.zeros(2, 3)}, 5) == b""
