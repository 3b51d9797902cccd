"""A real swarm on loopback for tests: every peer is a process, every wait has a deadline."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from hivemind.p2p import P2P
from hivemind.utils.crypto import RSAPublicKey
from hivemind.utils.timed_storage import ValueWithExpiration
from safetensors.torch import load_file

from dedloc_kit.config.machine import CoordinatorConfig, JoinOptions, PeerConfig
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import AnyEvent, Failed, Joined, StepDone
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.gathering.messages import Join
from dedloc_kit.swarm.network.bootstrap import look_around, start_node
from dedloc_kit.swarm.network.bounds import BoundedP2P
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Identity, Signer, author
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.worker import Role, Worker, collector_job, coordinator_job, volunteer_job
from tests.fork_server import Forked
from tests.hang import HANG

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
        defaults = {"swarm_host": "127.0.0.1", "devices": "cpu", "threads": 1, "task_module": "tests.tiny"}
        export = folder / f"{name}.safetensors"
        config = CoordinatorConfig if role == "coordinator" else JoinOptions
        self.config: PeerConfig = config(folder=folder / name, name=name, export=export, **{**defaults, **settings})
        self.worker = Worker(
            role,
            job(self.config),
            folder=self.config.folder,
            on_event=self._heard,
            environment={"PYTHONPATH": _CHECKOUT, **(environment or {})},
        )

    @property
    def microbatch(self) -> int:
        """Of a volunteer."""
        assert isinstance(self.config, JoinOptions)
        return self.config.microbatch

    def _heard(self, event: AnyEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def wait_for(self, kind: type[E], that: Callable[[E], bool] = lambda _: True, deadline: float = HANG) -> E:
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

        own = {"data": local_copies(self.run), **settings}
        peer = Peer("volunteer", name, self.folder, job, environment, **own)
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


class Puppet:
    """A process of the tests that does what it is told, and answers, in lines of JSON.

    :param module: what `python -m` runs
    :param folder: is made, and takes its log
    """

    def __init__(self, module: str, folder: Path) -> None:
        folder.mkdir()
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = Forked([module], os.environ, log)

    def say(self, values: Mapping[str, Any]) -> None:
        self.process.stdin.write(json.dumps(values).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, self._log.read_text(errors="replace")[-3000:]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not processes_of(self.process.pid), f"a process is left; its log is {self._log}")


class Stranger(P2P):
    """hivemind's, as an attacker has it; but without the relay that takes half a second of a core to begin with."""

    _make_process_args = staticmethod(BoundedP2P._make_process_args)


Attack = Callable[[P2P], Coroutine[Any, Any, Any]]


def outside(swarm: Swarm, attack: Attack, identity: Path | None = None) -> Any:
    """Connect to the coordinator by libp2p, which it cannot prevent, and do something."""

    async def come() -> Any:
        p2p = await Stranger.create(
            initial_peers=swarm.invitation.peers,
            identity_path=None if identity is None else str(identity),
            check_if_identity_free=False,
            dht_mode="client",
            no_listen=True,
            startup_timeout=60.0,
        )
        try:
            return await attack(p2p)
        finally:
            await p2p.shutdown()

    return in_own_loop(come())


def ledger_of(coordinator: Peer) -> Ledger:
    return Ledger(coordinator.config.folder / "ledger.sqlite", read_only=True)


def assert_ledger_sums(coordinator: Peer, global_batch: int) -> None:
    ledger = ledger_of(coordinator)
    steps = ledger.steps()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1)), "no step is lost"
    assert all(step.samples >= global_batch for step in steps), "no step is under-filled"
    for step in steps:
        assert sum(ledger.contributions_of(step.step).values()) == step.samples
    assert sum(c.samples for c in ledger.contributors()) == sum(step.samples for step in steps)
    ledger.close()


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


def processes_with(text: str) -> list[str]:
    """Processes whose environment holds this text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue  # it has just ended, or is not ours
    return found


def wait_until(condition: Callable[[], bool], otherwise: str, deadline: float = HANG) -> None:
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


def gate_of_all() -> Any:
    """Of a run in which every address counts."""
    return SimpleNamespace(vouched=lambda _peer, addresses, _word: addresses)


def open_node(
    config: PeerConfig,
    identity: Identity,
    peers: Sequence[str] = (),
    gate: Gate | None = None,
    *,
    may_start_alone: bool = False,
    preferred_port: int = 0,
) -> Node:
    """A node that takes part in a run, an open one if no gate says otherwise; it joins through its organizer."""
    gate = gate or gate_of(identity, organizer=peers[0].rpartition("/p2p/")[2] if peers else "")
    around = look_around(
        config, identity, peers, gate=gate, may_start_alone=may_start_alone, preferred_port=preferred_port
    )
    return start_node(config, identity, around, gate=gate, may_start_alone=may_start_alone)


def belief(me: str = "me", organizer: str = "organizer", **said: Any) -> Belief:
    """What a peer believes that has heard nothing, or this in a notice."""
    return Belief(me, organizer, lambda: Notice(run_id=RUN_ID, time=0.0, **said))


def run_of(run_id: str = RUN_ID, global_batch: int = 10) -> Any:
    """What a tracker needs of a run."""
    return SimpleNamespace(run_id=run_id, global_batch=global_batch)


def profile() -> Profile:
    """Of a volunteer that others can reach."""
    return Profile("ab", "x", "", "CPU", follower=False, client_mode=False, addresses=(), reached="", listed=False)


def progress(**values: Any) -> Progress:
    """What some peer says of itself, with these values."""
    defaults = {"run_id": RUN_ID, "step": 4, "round": "ab", "samples": 3, "samples_per_second": 1.0}
    defaults |= {"boundary_seconds": 0.1, "sketch": (1.0,), "follower": False, "client_mode": False, "addresses": ()}
    return Progress(**{**defaults, "device": "CPU", "name": "x", "time": time.time(), **values})


def join(run_id: str = RUN_ID, **values: Any) -> Join:
    """A peer at the beginning of a run asks another one to lead it."""
    told = progress(**{"run_id": run_id, "step": 0, "round": "", "client_mode": True, **values})
    return Join(position=told.position)


class PlainDHT:
    """As hivemind.DHT, and what is stored is there at once."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[bytes, ValueWithExpiration[Any]]] = {}
        self.gate = gate_of_all()
        self.asked = 0

    def store(self, key: str, subkey: bytes, value: object, expiration_time: float, **_how: object) -> Any:
        self.keys.setdefault(key, {})[subkey] = ValueWithExpiration(value, expiration_time)
        return SimpleNamespace(result=lambda timeout: None)

    def get(self, key: str, **_how: object) -> Any:
        self.asked += 1
        found = self.keys.get(key)
        value = None if found is None else ValueWithExpiration(dict(found), 0.0)
        return SimpleNamespace(result=lambda timeout: value)

    def refused(self, _timeout: float) -> Counter[str]:
        return Counter()

    def run_coroutine(self, *_what: object, **_how: object) -> None:
        """Whom to avoid: there is nobody here who could be asked."""


def a_signer(number: int) -> Any:
    """One that never signs: its key is no product of primes, for those take long to find."""
    modulus = random.Random(number).getrandbits(2046) | 2**2047 | 1
    subkey = b"[owner:" + RSAPublicKey(RSAPublicNumbers(65537, modulus).public_key()).to_bytes() + b"]"
    return SimpleNamespace(peer=author(subkey), subkey=subkey)
