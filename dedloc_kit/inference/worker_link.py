"""The user's process's end of the network: a worker that has the sessions, asked through a pipe."""

import itertools
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.client import find_invitation
from dedloc_kit.config.machine import PeerConfig, parsed
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Failed, Joined, Left, Loading, State, Warned
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.pipe import Pipe
from dedloc_kit.serving.config import ServingConfig, served_by_swarm
from dedloc_kit.worker import Worker, user_job

JOIN_SECONDS = 180.0
Activations = Literal["float16", "bfloat16", "float32", "8bit"]


class Lost(UserError):
    """The connection to the swarm is gone."""


class Network:
    """Starts the worker and waits until it has joined. It ends with `close`, or with this process.

    Raises UserError with what is wrong and what to do.

    :param where: the page's URL, an invitation's file, or the model's repository on the Hub
    :param folder: keeps this user's identity and what was fetched; without one, a free one in the home folder
    :param code: what lets this user into a swarm that is not open to all
    :param told: what goes on, in words
    """

    def __init__(
        self,
        where: str,
        *,
        folder: Path | None = None,
        code: str = "",
        settings: Mapping[str, Any] | None = None,
        activations: Activations = "float16",
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        if activations not in get_args(Activations):
            known = ", ".join(get_args(Activations))
            raise UserError(f"activations={activations!r:.80} is not known here; choose one of: {known}")
        self._told = told
        self._numbers = itertools.count()
        self._asked: dict[int, Future[tuple[dict[str, Any], list[Tensor | None]]]] = {}
        self._lock = threading.Lock()
        self._joined = threading.Event()
        with ExitStack() as stack:
            own = stack.enter_context(peer_folder(folder))
            invitation, _ = find_invitation(where, own, watch=True)
            self.swarm: SwarmConfig = served_by_swarm(invitation)
            self.model = self.swarm.model if isinstance(self.swarm, ServingConfig) else self.swarm.name
            """What it is called."""
            near, far = socket.socketpair()
            with far:
                peer = parsed(PeerConfig, {"name": "user", "client_mode": True, **(settings or {}), "folder": own})
                self._worker = Worker(
                    "user",
                    user_job(invitation, peer, far.fileno(), code, activations),
                    folder=own,
                    on_event=self._hear,
                    handles=(far.fileno(),),
                )
            stack.callback(self._worker.stop)
            self._pipe = Pipe(near.detach())
            threading.Thread(target=self._read, name="answers", daemon=True).start()
            if not self._joined.wait(JOIN_SECONDS) or self._worker.failure:
                raise UserError(self._worker.failure or f"nobody of {self.swarm.run_id} answers; try again later")
            self._stack = stack.pop_all()

    def ask(
        self, what: str, values: Mapping[str, Any], tensors: Sequence[Tensor | None] = ()
    ) -> tuple[dict[str, Any], list[Tensor | None]]:
        """What the worker answers; raises NoRoute if nobody serves some layers, and UserError."""
        said, back = self.begin(what, values, tensors).result()
        if "missing" in said:
            raise NoRoute(tuple(LayerRange(*span) for span in said["missing"]))
        if "error" in said:
            raise UserError(said["error"])
        return said, back

    def begin(
        self, what: str, values: Mapping[str, Any], tensors: Sequence[Tensor | None] = ()
    ) -> "Future[tuple[dict[str, Any], list[Tensor | None]]]":
        """The same without waiting; also after the connection is lost, which its result then says."""
        future: Future[tuple[dict[str, Any], list[Tensor | None]]] = Future()
        number = next(self._numbers)
        with self._lock:
            self._asked[number] = future
        try:
            self._pipe.send({**values, "number": number, "do": what}, tensors)
        except OSError:
            self._lose()
        return future

    def close(self) -> None:
        """Leave; a second call does nothing."""
        self._stack.close()

    def _hear(self, event: AnyEvent) -> None:
        if isinstance(event, State | Warned):
            self._told(event.text)
        if isinstance(event, Loading):
            self._told(f"downloading the model's ends: {event.text}")
        if isinstance(event, Joined | Failed | Left):
            self._joined.set()

    def _read(self) -> None:
        while True:
            try:
                values, tensors = self._pipe.receive()
            except (OSError, EOFError):
                self._lose()
                return
            with self._lock:
                future = self._asked.pop(values.pop("number"))
            with suppress(Exception):  # nobody waits for it any more
                future.set_result((values, tensors))

    def _lose(self) -> None:
        with self._lock:
            lost, self._asked = list(self._asked.values()), {}
        for future in lost:
            with suppress(Exception):
                future.set_exception(Lost(self._worker.failure or "the connection to the swarm is gone; load it again"))
