"""Sessions of a volunteer with real peers, for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Joined, LocalProgress, StepDone
from dedloc_kit.organizer.launch import Coordinator
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.session.training import TrainingState
from dedloc_kit.session.training_session import TrainingSession
from tests.swarm.harness import processes_of, wait_until

CHECKOUT = str(Path(__file__).parents[2])


@contextmanager
def coordinator_of(run: RunConfig, folder: Path) -> Iterator[Coordinator]:
    """A coordinator with its dashboard; volunteers join through its address."""
    peer = CoordinatorConfig(
        folder=folder / "coordinator", name="coordinator", swarm_host="127.0.0.1", task_module="tests.tiny"
    )
    with Coordinator(run, peer, host="127.0.0.1", port=0, on_event=lambda _: None) as coordinator:
        coordinator.invitation()
        yield coordinator


@contextmanager
def session_at(
    where: str, folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> Iterator[TrainingSession]:
    """A session with the tiny task; at the end nothing of it may be left."""
    given = {
        "task_module": "tests.tiny",
        "swarm_host": "127.0.0.1",
        "devices": "cpu",
        "threads": 1,
        "microbatch": 8,
        **settings,
    }
    session = TrainingSession(
        where,
        folder=folder,
        settings=given,
        environment={"PYTHONPATH": CHECKOUT, "TINY_PAUSE": "0.02"} | (environment or {}),
    )
    try:
        yield session
    finally:
        session.leave()
        assert session.ended.wait(90.0)
        assert_nothing_runs(session)


def assert_nothing_runs(session: TrainingSession) -> None:
    worker = session.worker
    if worker is not None:
        wait_until(lambda: not processes_of(worker.pid), "a process of the volunteer is left")


def wait_for(session: TrainingSession, that: Callable[[TrainingState], bool], deadline: float = 120.0) -> TrainingState:
    """The first state for which this holds."""
    seen: list[TrainingState] = []

    def found() -> bool:
        seen[:] = [session.state()]
        return that(seen[0])

    try:
        wait_until(found, "no such state", deadline)
    except AssertionError:
        raise AssertionError(f"no such state; last: {session.state()}") from None
    return seen[0]


# What a worker says


def joined(**changes: Any) -> Joined:
    values = {"run_id": "toy-0123", "peer": "Qm", "session": "s", "addresses": (), "step": 40, "device": "CPU"}
    return Joined(**{**values, "parameters": 1, **changes})


def progress(**changes: Any) -> LocalProgress:
    values = {"step": 40, "samples": 9, "swarm_samples": 64, "global_batch": 512, "session_samples": 9, "loss": 1.0}
    return LocalProgress(**{**values, "samples_per_second": 31.4, **changes})


def done(step: int, mine: int, samples: int = 512, me: str = "Qm") -> StepDone:
    """A global step, with so many of its samples by me."""
    made = GlobalStep(step=step, round="ab", time=0.0, samples=samples, loss=2.5, peers=2, seconds=1.0)
    return StepDone(step=made, contributions={me: mine, "other": samples - mine} if mine else {"other": samples})
