"""A model that servers on hosts of a network serve, and its users on others."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks.lib.network import Line, Loopback, Network, open_network
from benchmarks.lib.peers import Event, Peer
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ServerConfig, parse_serving
from dedloc_kit.worker import beginning_job, server_job

START_SECONDS = 180.0
ANSWER_SECONDS = 600.0


class User:
    """One user's process."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._asked = 0

    def ask(self, text: Sequence[int], new: int, **how: Any) -> None:
        """Begin to write so many tokens."""
        self._before = len(self.peer.events)
        self.peer.send({"text": list(text), "new": new, "how": how})

    def answer(self) -> Event:
        """What was written: `text`, `waits` for each token, `seconds` and `recoveries`."""
        self._asked += 1
        return self.peer.wait_for("answer", deadline=ANSWER_SECONDS, number=self._asked - 1)

    def written(self, text: Sequence[int], new: int, **how: Any) -> Event:
        self.ask(text, new, **how)
        return self.answer()

    def route(self) -> list[tuple[str, str, int, int]]:
        """Who writes what was asked for last, once the first token has come."""
        return list(self._next("route")["hops"])

    def wait_for_token(self, number: int) -> None:
        self._next("token", number)

    def _next(self, kind: str, number: int | None = None) -> Event:
        def it(event: Event) -> bool:
            return event in self.peer.events[self._before :] and number in (None, event.get("number"))

        return self.peer.wait_for(kind, it, deadline=ANSWER_SECONDS)


class ServedOn:
    """A context manager that leaves nothing behind.

    :param line: of each host; none: loopback
    :param spans: of the servers, such as `0:15`
    """

    def __init__(
        self, line: Line | None, folder: Path, model: Path, spans: Sequence[str], users: int = 1, **settings: Any
    ) -> None:
        self._folder, self._model, self._settings = folder, model, settings
        self._line, self._spans, self._users = line, spans, users
        self._started = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.network: Network | Loopback = open_network(self._line, len(self._spans) + self._users)
            stack.enter_context(self.network)
            self._stack = stack
            self.servers: list[Peer] = []
            begin = {"model": str(self._model), "name": "bench"}
            config = self._config(0)
            first = self._start("server", beginning_job(begin, config), 0)
            serving = parse_serving(first.wait_for("began", deadline=START_SECONDS)["serving"])
            addresses = first.wait_for("joined", deadline=START_SECONDS)["addresses"]
            key = read_key(config.folder / IDENTITY_FILE)
            self.invitation = Invitation.of(serving, tuple(addresses)).signed(key)
            (self._folder / "invitation.json").write_text(self.invitation.model_dump_json())
            self.servers = [first, *(self.start(host) for host in range(1, len(self._spans)))]
            self.wait_until_served()
            self.users = [self._user(len(self._spans) + number) for number in range(self._users)]
            for user in self.users:
                user.peer.wait_for("joined", deadline=START_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, host: int) -> Peer:
        """Let the server on a host begin anew, as somebody else."""
        return self._start("server", server_job(self.invitation, self._config(host)), host)

    def wait_until_served(self) -> None:
        """Until all servers know of each other."""
        peers = {server.wait_for("joined", deadline=START_SECONDS)["peer"] for server in self.servers}

        def complete(event: Event) -> bool:
            return peers <= {each["peer"] for each in event["servers"] if each["state"] == "online"}

        for server in self.servers:
            server.wait_for("served", complete, START_SECONDS)

    def host_of(self, peer: str) -> int:
        """On which this server is."""
        return next(host for host, server in enumerate(self.servers) if server.wait_for("joined")["peer"] == peer)

    def _config(self, host: int) -> ServerConfig:
        self._started += 1
        return ServerConfig(
            folder=self._folder / f"server{self._started}",
            swarm_host=self.network.address(host),
            span=self._spans[host],
            source=str(self._model),
            **{"client_mode": False, "devices": "cpu", "threads": 1, "weights": "float32", **self._settings},
        )

    def _start(self, role: str, job: dict[str, Any], host: int) -> Peer:
        name = f"server{self._started}"
        peer = Peer(f"dedloc_kit.worker {role}", job, name=name, folder=self._folder, prefix=self.network.run_in(host))
        return self._stack.enter_context(peer)

    def _user(self, host: int) -> User:
        name = f"user{host}"
        job = {
            "invitation": str(self._folder / "invitation.json"),
            "folder": str(self._folder / name),
            "source": str(self._model),
            "host": self.network.address(host),
            "activations": "float16",
        }
        peer = Peer(
            *("benchmarks.lib.serving_user", job),
            name=name,
            folder=self._folder,
            prefix=self.network.run_in(host),
            environment={"DEDLOC_HOME": str(self._folder / "home")},
        )
        return User(self._stack.enter_context(peer))
