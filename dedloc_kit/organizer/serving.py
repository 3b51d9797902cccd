"""Begins a swarm that serves a model: the first server as a worker, its page and its invitation."""

import threading

from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Began, Failed, Joined, Left, Loading, Served, State, Warned
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.organizer.launch import write_invitation
from dedloc_kit.records import Invitation
from dedloc_kit.serving.config import ServerConfig, ServingConfig, parse_serving
from dedloc_kit.session.serving import gaps
from dedloc_kit.worker import Worker, beginning_job

LISTED = 8
"""Servers beside the first whose addresses stand in the invitation: through them others join while it is away."""
RENEWAL_SECONDS = 10.0


class ServingLaunch:
    """The first server; a context manager that ends it.

    :param begin: what is served; see `dedloc_kit.server.Beginning`
    """

    def __init__(self, begin: dict[str, str], peer: ServerConfig, console: Console) -> None:
        self._peer, self._console = peer, console
        self.ended, self._joined = threading.Event(), threading.Event()
        self._serving: ServingConfig | None = None
        self._addresses: tuple[str, ...] = ()
        self._gaps: tuple[tuple[int, int], ...] | None = None
        self._worker = Worker("server", beginning_job(begin, peer), folder=peer.folder, on_event=self._hear)

    @property
    def failure(self) -> str | None:
        return self._worker.failure

    def invitation(self, url: str | None = None) -> Invitation:
        """Wait until others can join; raises UserError with the reason if it does not come to that."""
        while not self._joined.wait(1.0):
            if self.ended.is_set():
                break
        if self._serving is None or not self._addresses:
            raise UserError(self.failure or "the server left before it had started")
        return Invitation.of(self._serving, self._addresses, url).signed(read_key(self._peer.folder / IDENTITY_FILE))

    def stop(self) -> int:
        return self._worker.stop()

    def _hear(self, event: AnyEvent) -> None:
        match event:
            case Began(serving=serving):
                self._serving = parse_serving(serving)
            case Joined(addresses=addresses):
                self._addresses = addresses
                self._joined.set()
            case State(text=text) | Warned(text=text):
                self._console.print(text, soft_wrap=True, markup=False)
            case Served(layers=layers, servers=servers):
                self._tell_gaps(gaps(layers, servers), layers)
            case Failed() | Left():
                self.ended.set()
                self._joined.set()
            case Loading():
                pass

    def _tell_gaps(self, now: tuple[tuple[int, int], ...], layers: int) -> None:
        if now != self._gaps:
            self._gaps = now
            bare = ", ".join(f"{begin} to {end - 1}" for begin, end in now)
            text = f"nobody serves the layers {bare} of {layers}" if now else f"all {layers} layers are served"
            self._console.print(text, style="yellow" if now else "green", markup=False)


def serve_model(begin: dict[str, str], peer: ServerConfig) -> int:
    """Begin to serve a model until it is stopped; returns the exit code."""
    console = Console(highlight=False)
    with peer_folder(peer.folder, "start of this swarm"):
        launch = ServingLaunch(begin, peer, console)
        try:
            invitation = launch.invitation()
            path = write_invitation(invitation, peer.folder)
            console.print(f"to serve it with others:  dedloc serve {path}", style="bold", markup=False, soft_wrap=True)
            while not launch.ended.wait(RENEWAL_SECONDS):
                pass
            if launch.failure:
                raise UserError(launch.failure)
        except KeyboardInterrupt:
            console.print("leaving; start it again to go on")
        finally:
            code = launch.stop()
    return code
