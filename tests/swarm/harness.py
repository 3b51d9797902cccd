"""A real swarm on loopback for tests: every peer is a process, every wait has a deadline."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from safetensors.torch import load_file

from dedloc_kit.events import AnyEvent, Failed, Joined, StepDone
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.records import Invitation, Notice, Progress
from dedloc_kit.run import CoordinatorConfig, PeerConfig, RunConfig
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Identity
from dedloc_kit.swarm.network.signing import Signer
from dedloc_kit.worker import Role, Worker, collector_job, coordinator_job, volunteer_job

DEADLINE = 120.0
_CHECKOUT = str(Path(__file__).parents[2])
E = TypeVar("E")


class Peer:
    """One worker and the events that it has sent so far."""

    def __init__(
        self,
        role: Role,
        name: str,
        folder: Path,
        job: Callable[[PeerConfig], Mapping[str, Any]],
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.name, self.events = name, list[AnyEvent]()
        self._news = threading.Condition()
        defaults = {"host": "127.0.0.1", "device": "cpu", "threads": 1, "task_module": "tests.tiny"}
        export = folder / f"{name}.safetensors"
        config = CoordinatorConfig if role == "coordinator" else PeerConfig
        self.config = config(folder=folder / name, name=name, export=export, **{**defaults, **settings})
        self.worker = Worker(
            role,
            job(self.config),
            folder=self.config.folder,
            on_event=self._heard,
            environment={"PYTHONPATH": _CHECKOUT, **(environment or {})},
        )

    def _heard(self, event: AnyEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def wait_for(self, kind: type[E], that: Callable[[E], bool] = lambda _: True, deadline: float = DEADLINE) -> E:
        """The first event of this kind for which `that` holds, past or to come."""

        def found() -> E | None:
            return next((event for event in self.events if isinstance(event, kind) and that(event)), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._failed(kind), timeout=deadline)
            event = found()
        assert event is not None, f"{self.name} sent no such {kind.__name__}; last: {self.events[-5:]}\n{self.log()}"
        return event

    def _failed(self, kind: type[Any]) -> bool:
        return kind is not Failed and any(isinstance(event, Failed) for event in self.events)

    def wait_for_step(self, step: int) -> StepDone:
        return self.wait_for(StepDone, lambda event: event.step.step >= step)

    @property
    def steps(self) -> list[StepDone]:
        return [event for event in self.events if isinstance(event, StepDone)]

    @property
    def joined(self) -> Joined:
        return self.wait_for(Joined)

    def parameters(self) -> dict[str, torch.Tensor]:
        """As it exported them on leaving."""
        assert self.config.export is not None
        return load_file(self.config.export)

    def log(self) -> str:
        return self.worker.log.read_text(errors="replace")[-3000:]


class Swarm:
    """A coordinator and volunteers; leaving the context stops them all and checks that nothing is left."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.peers: list[Peer] = []

    def __enter__(self) -> Self:
        return self

    def start_coordinator(self, environment: Mapping[str, str] | None = None, **settings: Any) -> Peer:
        def job(config: PeerConfig) -> Mapping[str, Any]:
            return coordinator_job(self.run, config)

        peer = Peer("coordinator", "coordinator", self.folder, job, environment, **settings)
        self.peers.append(peer)
        return peer

    def coordinator(self, environment: Mapping[str, str] | None = None, **settings: Any) -> Peer:
        """Start a coordinator and wait until volunteers can join."""
        peer = self.start_coordinator(environment, **settings)
        invitation = Invitation.of(self.run, peer.joined.addresses)
        self.invitation = invitation.signed(read_key(peer.config.folder / IDENTITY_FILE))
        return peer

    def volunteer(self, name: str, environment: Mapping[str, str] | None = None, **settings: Any) -> Peer:
        def job(config: PeerConfig) -> Mapping[str, Any]:
            return volunteer_job(self.invitation, config)

        peer = Peer("volunteer", name, self.folder, job, environment, **settings)
        self.peers.append(peer)
        return peer

    def collector(self, name: str, code: str = "", **settings: Any) -> Peer:
        def job(config: PeerConfig) -> Mapping[str, Any]:
            return collector_job(self.invitation, config, None, code)

        peer = Peer("collector", name, self.folder, job, client_mode=True, **settings)
        self.peers.append(peer)
        return peer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for peer in reversed(self.peers):  # the coordinator last: it saves what the others did
            peer.worker.leave()
        for peer in reversed(self.peers):
            peer.worker.stop()
        for peer in self.peers:
            wait_until(lambda peer=peer: not processes_of(peer.worker.pid), f"a process of {peer.name} is left")  # type: ignore[misc]


def processes_of(session: int, besides: str = "Z") -> list[int]:
    """The processes of a session (a worker starts one of its own) that are not in one of these states of /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            state, its_session = fields[0], int(fields[3])
            if its_session == session and state not in besides:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], otherwise: str, deadline: float = 30.0) -> None:
    """Poll a condition that sends no event."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


def difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest absolute difference of any parameter."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)


RUN_ID = "tiny-0123456789abcdef"


def gate_of(identity: Identity, run_id: str = RUN_ID, organizer: str = "") -> Gate:
    """Of an open run."""
    return Gate(run_id, organizer, Signer(identity), restricted=False)


def belief(me: str = "me", organizer: str = "organizer", **said: Any) -> Belief:
    """What a peer believes that has heard nothing, or this in a notice."""
    return Belief(me, organizer, lambda: Notice(run_id=RUN_ID, time=0.0, **said))


def profile() -> Profile:
    """Of a volunteer that others can reach."""
    return Profile("ab", "x", "", "CPU", follower=False, client_mode=False, addresses=(), reached="", listed=False)


def progress(**values: Any) -> Progress:
    """What some peer says of itself, with these values."""
    defaults = {"run_id": RUN_ID, "step": 4, "round": "ab", "samples": 3, "samples_per_second": 1.0}
    defaults |= {"boundary_seconds": 0.1, "sketch": (1.0,), "follower": False, "client_mode": False, "addresses": ()}
    return Progress(**{**defaults, "device": "CPU", "name": "x", "time": time.time(), **values})
