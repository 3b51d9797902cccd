"""Begins a swarm that serves a model: the first server as a worker, its page and its invitation."""

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from dedloc_kit.dashboard.serving.dashboard import ServingDashboard
from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Began, Failed, Joined, Left, Loading, Served, ServerSeen, State, Warned
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.known_peers import of_first_peers
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.machine.ports import advice
from dedloc_kit.organizer.launch import write_invitation
from dedloc_kit.organizer.page import PageSettings
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ServerConfig, ServingConfig, parse_serving
from dedloc_kit.serving.coverage import coverage, named, served_by
from dedloc_kit.steering.alerts import Alert
from dedloc_kit.steering.serving_alerts import ServingAlerts
from dedloc_kit.steering.webhook import Webhook
from dedloc_kit.worker import Worker, beginning_job

LISTED = 8
"""Servers beside the first whose addresses stand in the invitation: through them others join while it is away."""
RENEWAL_SECONDS = 10.0


class FirstServer:
    """The first server with the page; a context manager that ends both.

    :param begin: what is served; see `swarm.serving.beginning.Beginning`
    :param say: told what goes on, in words, with a style
    """

    def __init__(
        self, begin: dict[str, str], peer: ServerConfig, page: PageSettings, say: Callable[[str, str], None]
    ) -> None:
        self._begin, self._peer, self._page, self._say = begin, peer, page, say
        self.ended, self._settled = threading.Event(), threading.Event()
        self.dashboard: ServingDashboard | None = None
        self._serving: ServingConfig | None = None
        self._alerts: ServingAlerts | None = None
        self._addresses: tuple[str, ...] = ()
        self._listed: tuple[str, ...] = ()
        self._gaps: tuple[str, ...] | None = None
        self._post = Webhook(page.webhook, lambda text: say(text, "yellow")) if page.webhook else None

    def __enter__(self) -> "FirstServer":
        job = beginning_job(self._begin, self._peer)
        self._worker = Worker("server", job, folder=self._peer.folder, on_event=self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        if self.dashboard is not None:
            self.dashboard.stop()
        if self._post is not None:
            self._post.close()

    @property
    def failure(self) -> str | None:
        return self._worker.failure

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def invitation(self) -> Invitation:
        """Wait until others can join; raises UserError with the reason if it does not come to that."""
        self._settled.wait()
        if self._serving is None or not self._addresses or self.ended.is_set():
            raise UserError(self.failure or "the server left before it had started")
        if self.dashboard is None:
            self._open_page(self._serving)
        assert self.dashboard is not None
        peers = of_first_peers((*self._addresses, *self._listed), 1 + LISTED)
        wheel = self.dashboard.wheel
        invitation = Invitation.of(self._serving, peers, self.dashboard.url, wheel=wheel)
        signed = invitation.signed(read_key(self._peer.folder / IDENTITY_FILE))
        self.dashboard.give_out(signed)
        return signed

    def stop(self) -> int:
        """Let it leave; returns its exit code."""
        return self._worker.stop()

    def _open_page(self, serving: ServingConfig) -> None:
        page = self._page
        dashboard = ServingDashboard(
            serving,
            host=page.host,
            port=page.port,
            public=page.url or self._peer.announce_host,
            certificate=page.certificate,
        )
        dashboard.start()
        self.dashboard = dashboard
        self._alerts = ServingAlerts(self._peer.folder, serving.manifest, self._alert)

    def _alert(self, alert: Alert) -> None:
        self._say(f"alert: {alert.text}", "bold yellow")
        if self._post is not None and self._serving is not None:
            self._post.send(f"{self._serving.name}: {alert.text}")

    def _hear(self, event: AnyEvent) -> None:
        match event:
            case Began(serving=serving):
                self._serving = parse_serving(serving)
            case Joined(addresses=addresses):
                self._addresses = addresses
                self._settled.set()
            case State(text=text):
                self._say(text, "")
            case Warned(text=text):
                self._say(text, "yellow")
            case Served(layers=layers, servers=servers):
                self._listed = tuple(address for each in servers for address in each.addresses)
                self._tell_gaps(layers, servers)
            case Failed() | Left():
                self.ended.set()
                self._settled.set()
            case Loading():
                pass
        if self._alerts is not None:
            self._alerts.hear(event)
        if self.dashboard is not None and isinstance(event, Served | State | Failed):
            # The page is public: what goes wrong on this machine is for the organizer's eyes.
            self.dashboard.publish(Failed(text="the first server stopped") if isinstance(event, Failed) else event)

    def _tell_gaps(self, layers: int, servers: tuple[ServerSeen, ...]) -> None:
        assert self._serving is not None
        now = served_by(0, coverage(layers, servers, self._serving.manifest))
        if now != self._gaps:
            self._gaps = now
            bare = f"nobody serves {named(now)} of {layers}"
            self._say(bare if now else f"all {layers} layers are served", "yellow" if now else "green")


def serve_model(begin: dict[str, str], peer: ServerConfig, page: PageSettings) -> int:
    """Begin to serve a model until it is stopped; returns the exit code."""
    console = Console(highlight=False)

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    with peer_folder(peer.folder, "start of this swarm"), FirstServer(begin, peer, page, say) as first:
        try:
            invitation = first.invitation()
            path = write_invitation(invitation, peer.folder)
            assert first.dashboard is not None
            url = first.dashboard.url
            say(f"live page:   {url}", "bold")
            say(f"to serve:    dedloc serve {url}#{invitation.organizer}", "bold")
            say(f"invitation:  {path} (for those who cannot reach the live page)")
            there = urlsplit(url)
            if hint := advice(first.addresses, there.port or (443 if there.scheme == "https" else 80)):
                say(hint, "yellow")
            while not first.ended.wait(RENEWAL_SECONDS):
                if (newer := first.invitation()) != invitation:
                    invitation = newer
                    try:
                        write_invitation(invitation, peer.folder)
                    except UserError as error:  # a full disk must not end it
                        say(str(error), "yellow")
            if first.failure:
                raise UserError(first.failure)
        except KeyboardInterrupt:
            say("leaving; start it again to go on")
        return first.stop()
