"""Sessions of a volunteer with real peers, for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.organizer.launch import Coordinator
from dedloc_kit.session.session import Session
from dedloc_kit.session.snapshot import Snapshot
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
) -> Iterator[Session]:
    """A session with the tiny task; at the end nothing of it may be left."""
    given = {
        "task_module": "tests.tiny",
        "swarm_host": "127.0.0.1",
        "devices": "cpu",
        "threads": 1,
        "microbatch": 8,
        **settings,
    }
    session = Session(
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


def assert_nothing_runs(session: Session) -> None:
    worker = session.worker
    if worker is not None:
        wait_until(lambda: not processes_of(worker.pid), "a process of the volunteer is left")


def wait_for(session: Session, that: Callable[[Snapshot], bool], deadline: float = 120.0) -> Snapshot:
    """The first snapshot for which this holds."""
    seen: list[Snapshot] = []

    def found() -> bool:
        seen[:] = [session.snapshot()]
        return that(seen[0])

    try:
        wait_until(found, "no such snapshot", deadline)
    except AssertionError:
        raise AssertionError(f"no such snapshot; last: {session.snapshot()}") from None
    return seen[0]
