"""What is known of a swarm that serves a model, from the events of whoever began it."""

import threading
import time
from collections.abc import Callable

from dedloc_kit.dashboard.serving import schemas
from dedloc_kit.dashboard.serving.tokens import Tokens
from dedloc_kit.display.human import without_hosts
from dedloc_kit.events import AnyEvent, Failed, Left, Served, ServerSeen, State
from dedloc_kit.serving.config import ServingConfig
from dedloc_kit.serving.coverage import coverage, speed

SILENCE_SECONDS = 60.0
"""A server that says nothing for so long is taken for lost."""
SHOWN = 200
"""Servers."""


class ServingView:
    """Takes events from one thread and answers questions from any other.

    :param clock: seconds since 1970
    """

    def __init__(self, serving: ServingConfig, clock: Callable[[], float] = time.time) -> None:
        self._serving, self._clock = serving, clock
        self._lock = threading.Lock()
        self._served: Served | None = None
        self._since: dict[tuple[str, int, int], float] = {}
        """When each server was first seen with the layers that it holds now, in seconds since 1970."""
        self._tokens = Tokens()
        self._heard = 0.0
        self._gone = False
        self._message = ""

    def hear(self, event: AnyEvent) -> None:
        """Learn from one event."""
        with self._lock:
            self._heard = time.monotonic()
            match event:
                case Served():
                    self._served, self._gone, self._message = event, False, ""
                    now = self._clock()
                    self._tokens.add(event.servers, now)
                    here = [(each.peer, each.begin, each.end) for each in event.servers]
                    self._since = {each: self._since.get(each, now) for each in here}
                case State(text=text):
                    self._message = without_hosts(text)
                case Failed(text=text):
                    self._gone, self._message = True, without_hosts(text)
                case Left():
                    self._gone, self._message = True, "it has left"

    def state(self) -> schemas.ServingState:
        """How the model is served."""
        with self._lock:
            served, serving = self._served, self._serving
            layers = served.layers if served is not None else serving.layers
            servers = served.servers if served is not None else ()
            stretches = coverage(layers, servers, serving.manifest)
            history = [
                schemas.ServedPoint(time=at, tokens=tokens / max(1, layers))
                for at, tokens in self._tokens.history(self._clock())
            ]
            bare = sum(len(stretch) for stretch in stretches if stretch.servers == 0)
            return schemas.ServingState(
                run_id=serving.run_id,
                name=serving.name,
                about=serving.about,
                access=serving.access.who,
                model=serving.model,
                version=serving.manifest,
                layers=layers,
                status=self._status(bare),
                message=self._message,
                stretches=[
                    schemas.Stretch(begin=each.begin, end=each.end, servers=each.servers, speed=each.speed)
                    for each in stretches
                ],
                bare_layers=bare,
                single_layers=sum(len(stretch) for stretch in stretches if stretch.servers == 1),
                speed=speed(stretches),
                sessions=sum(each.sessions for each in servers),
                cache_tokens=sum(each.cache_tokens for each in servers),
                free_tokens=sum(each.free_tokens for each in servers),
                served=round(self._tokens.total),
                tokens_per_second=history[-1].tokens if history else 0.0,
                servers=[self._row(each) for each in sorted(servers, key=_place)[:SHOWN]],
                server_count=len(servers),
                refused=dict(served.refused) if served is not None else {},
                history=history,
            )

    def _status(self, bare: int) -> schemas.Status:
        if self._gone or (self._served is not None and time.monotonic() - self._heard > SILENCE_SECONDS):
            return "lost"
        if self._served is None:
            return "starting"
        return "incomplete" if bare or not self._served.layers else "serving"

    def _row(self, server: ServerSeen) -> schemas.Server:
        return schemas.Server(
            **server.model_dump(include=schemas.Server.model_fields.keys() & ServerSeen.model_fields.keys()),
            current=server.version == self._serving.manifest,
            reachable=not server.client_mode,
            since=self._since[server.peer, server.begin, server.end],
        )


def _place(server: ServerSeen) -> tuple[int, int, str]:
    return server.begin, server.end, server.peer
