"""A model served by real processes on loopback."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from dedloc_kit.events import AnyEvent, Began, Joined, Served
from dedloc_kit.inference.model import AutoDistributedModelForCausalLM
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.serving.config import ServerConfig, parse_serving
from dedloc_kit.worker import Worker, beginning_job, server_job
from tests.hang import HANG

_CHECKOUT = str(Path(__file__).parents[1])
E = TypeVar("E")


class Server:
    """One server's process and the events that it has sent so far."""

    def __init__(
        self, folder: Path, job: Callable[[ServerConfig], Mapping[str, Any]], code: str = "", **settings: Any
    ) -> None:
        self.events = list[AnyEvent]()
        self._news = threading.Condition()
        defaults = {
            **{"swarm_host": "127.0.0.1", "client_mode": False, "devices": "cpu", "threads": 1},
            **{"weights": "float32", "name": folder.name},
        }
        config = ServerConfig(folder=folder, **{**defaults, **settings})
        environment = {"PYTHONPATH": _CHECKOUT, CODE: code}
        self.worker = Worker("server", job(config), folder=folder, on_event=self._hear, environment=environment)

    def wait_for(self, kind: type[E], that: Callable[[E], bool] = lambda _: True, deadline: float = HANG) -> E:
        """The newest event of this kind for which `that` holds, past or to come."""

        def found() -> E | None:
            return next((event for event in reversed(self.events) if isinstance(event, kind) and that(event)), None)

        with self._news:
            ended = self._news.wait_for(lambda: found() or self.worker.failure, deadline)
            event = found()
            assert event is not None, self.worker.failure or f"no such {kind.__name__} in {deadline:.0f} s: {ended}"
            return event

    @property
    def now(self) -> Served:
        """How it stands."""
        return self.wait_for(Served)

    @property
    def peer(self) -> str:
        return self.wait_for(Joined).peer

    @property
    def addresses(self) -> tuple[str, ...]:
        """None as long as it has not joined."""
        return next((tuple(event.addresses) for event in self.events if isinstance(event, Joined)), ())

    def kill(self) -> None:
        """As a power cut would."""
        self.worker.kill()
        self.worker.wait(HANG)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes stand still."""
        os.killpg(self.worker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.worker.pid, signal.SIGCONT)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing passes its line, and nobody is told: what it sends and what is sent to it waits."""
        lines = [each for each in psutil.Process(self.worker.pid).children(recursive=True) if each.name() == "p2pd"]
        assert lines
        for each in lines:
            each.suspend()
        try:
            yield
        finally:
            for each in lines:
                each.resume()

    def _hear(self, event: AnyEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()


class ServedModel:
    """A swarm on this machine; a context manager that leaves no process behind.

    :param model: a folder
    :param first: settings of the server that begins it
    """

    def __init__(self, folder: Path, model: Path, access: str = "open", **first: Any) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.servers: list[Server] = []
        begin = {"model": str(model), "name": "toy", "who": access}
        self._add(lambda config: beginning_job(begin, config), **{"span": "0:2", **first})

    def __enter__(self) -> "ServedModel":
        first = self.servers[0]
        try:
            self._serving = parse_serving(first.wait_for(Began).serving)
            first.wait_for(Joined)
        except BaseException:
            self._stack.close()
            raise
        self.founder = first.worker.log.parents[1]
        """The folder of whoever began it."""
        self.invitation = self._invitation()
        self.where = str(self.folder / "invitation.json")
        for path in (Path(self.where), self.founder / INVITATION_FILE):
            path.write_text(self.invitation.model_dump_json(), encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, wait: bool = True, **settings: Any) -> Server:
        """One more server, once it serves; whoever is there now lets it in."""
        self.invitation = self._invitation()
        server = self._add(lambda config: server_job(self.invitation, config), **settings)
        if wait:
            server.wait_for(Joined)
        return server

    def model(self, **settings: Any) -> Any:
        """As a user has it; activations travel exactly."""
        name = f"user{sum(1 for path in self.folder.glob('user*'))}"
        model = AutoDistributedModelForCausalLM.from_pretrained(
            self.where, folder=self.folder / name, **{"activations": "float32", **settings}
        )
        self._stack.callback(model.network.close)
        return model

    def wait_until_served(self, layers: int, by: int = 1) -> None:
        """Until each layer has so many servers, as the newest server sees it."""

        def enough(event: Served) -> bool:
            there = [s for s in event.servers if s.state == "online"]
            return all(sum(s.begin <= layer < s.end for s in there) >= by for layer in range(layers))

        deadline = time.monotonic() + HANG
        while not enough(self.servers[-1].now):
            assert time.monotonic() < deadline, self.servers[-1].now
            time.sleep(0.1)

    def wait_until_known(self) -> None:
        """Until all servers that are running know of each other."""
        running = [server for server in self.servers if server.worker.running]
        peers = {server.peer for server in running}
        for server in running:
            server.wait_for(
                Served, lambda seen: peers <= {each.peer for each in seen.servers if each.state == "online"}
            )

    def by_peer(self, peer: str) -> Server:
        return next(server for server in self.servers if server.worker.running and server.peer == peer)

    def _invitation(self) -> Invitation:
        """To those who have joined and are still running."""
        there = [server.addresses for server in self.servers if server.worker.running]
        addresses = tuple(each[0] for each in there if each)
        return Invitation.of(self._serving, addresses).signed(read_key(self.founder / IDENTITY_FILE))

    def _add(self, job: Callable[[ServerConfig], Mapping[str, Any]], **settings: Any) -> Server:
        server = Server(self.folder / f"server{len(self.servers)}", job, **settings)
        self._stack.callback(_end, server)
        self.servers.append(server)
        return server


def _end(server: Server) -> None:
    server.worker.kill()
    server.worker.wait(HANG)
