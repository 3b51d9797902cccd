"""The organizer's side of a run in one process tree: the coordinator as a worker, and the dashboard."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions
from dedloc_kit.config.places import local_copies, names_local_files
from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.http.login import Keys
from dedloc_kit.dashboard.http.sockets import Certificate
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.display.terminal import RunDisplay
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Failed, Joined, Left, Peers, PeerSeen, PushFailed, Warned
from dedloc_kit.hub import HubUnavailable, Repository, training_state
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.known_peers import of_first_peers, take_over
from dedloc_kit.machine.home import peer_folder, remember_copies
from dedloc_kit.machine.ports import advice
from dedloc_kit.machine.text_files import replace_text
from dedloc_kit.organizer.earlier_runs import earlier_run
from dedloc_kit.organizer.page import PageSettings
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.records.plan import Plan, write_plan
from dedloc_kit.regions import Countries
from dedloc_kit.steering.alerts import Alert, Alerts
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.steering.webhook import Webhook
from dedloc_kit.worker import Worker, coordinator_job

START_SECONDS = 180.0
LISTED_VOLUNTEERS = 8
"""Volunteers whose addresses are in the invitation, if they and the organizer agree to that: through them newcomers can
join while the coordinator is down."""
RENEWAL_SECONDS = 10.0
"""How often the invitation file is brought up to date."""


class Coordinator:
    """A coordinator worker whose events feed a dashboard; a context manager that stops both."""

    def __init__(
        self,
        run: RunConfig,
        peer: CoordinatorConfig,
        *,
        host: str,
        port: int,
        on_event: Callable[[AnyEvent], None],
        url: str | None = None,
        certificate: Certificate | None = None,
        most_volunteers: int | None = None,
    ) -> None:
        self.run, self._peer, self._on_event = run, peer, on_event
        self._peers: tuple[PeerSeen, ...] = ()
        self.dashboard = Dashboard(
            run,
            peer.folder / "ledger.sqlite",
            host=host,
            port=port,
            public=url or peer.announce_host,
            certificate=certificate,
            most_volunteers=most_volunteers,
            organizer=organizer.routes(
                peer.folder,
                run.fingerprint,
                lambda: self._peers,
                decays=run.optimizer.schedule == "warmup-stable-decay",
            ),
        )
        self.ended = threading.Event()
        self._joined = threading.Event()
        self.addresses: tuple[str, ...] = ()
        """Where the swarm reaches the coordinator; known once `invitation` has returned."""
        self._invitation: Invitation | None = None
        self._listed: tuple[str, ...] = ()
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        self.dashboard.start()
        try:
            self._worker = Worker(
                "coordinator", coordinator_job(self.run, self._peer), folder=self._peer.folder, on_event=self._heard
            )
        except BaseException:
            self.dashboard.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self.dashboard.stop()

    def invitation(self) -> Invitation:
        """Wait for the coordinator to be up; raises UserError with its reason if it does not come up."""
        if not self._joined.wait(START_SECONDS):
            raise UserError(f"the coordinator did not start within {START_SECONDS:.0f} seconds; see its log")
        if self.dashboard.entrance.invitation is None:
            raise UserError(self.failure or "the coordinator left before it had started")
        return self.dashboard.entrance.invitation

    @property
    def failure(self) -> str | None:
        """Why the coordinator could not go on, in one line."""
        return self._worker.failure if self._worker is not None else None

    def stop(self) -> int:
        """Let the coordinator save and leave; returns its exit code. The dashboard stays up."""
        return self._worker.stop(timeout=60.0 + self._peer.last_push_seconds) if self._worker is not None else 0

    def _heard(self, event: AnyEvent) -> None:
        if isinstance(event, Joined):
            self.addresses = event.addresses
            self._invitation = self._signed_invitation(event.parameters)
        if isinstance(event, Peers):
            self._listed, self._peers = event.listed, event.peers
        if isinstance(event, Joined | Peers):
            self._invite()
        if isinstance(event, Failed | Left):
            self.ended.set()
        if isinstance(event, Failed | Left | Joined):
            self._joined.set()
        # The page is public: what goes wrong on the organizer's machine is for the organizer's eyes.
        if isinstance(event, Failed):
            self.dashboard.publish(Failed(text="the coordinator stopped"))
        elif not isinstance(event, Warned | PushFailed):
            self.dashboard.publish(event)
        self._on_event(event)

    def _signed_invitation(self, parameters: int) -> Invitation:
        wheel = self.dashboard.entrance.wheel
        invitation = Invitation.of(self.run, self.addresses, self.dashboard.url, parameters, wheel)
        return invitation.signed(read_key(self._peer.folder / IDENTITY_FILE))

    def _invite(self) -> None:
        """Publish where to join. The coordinator knows where its volunteers are; everybody may read this."""
        if self._invitation is not None:
            peers = of_first_peers((*self.addresses, *self._listed), 1 + LISTED_VOLUNTEERS)
            self.dashboard.entrance.give_out(self._invitation.model_copy(update={"peers": peers}))


def launch(
    run: RunConfig, peer: CoordinatorConfig, page: PageSettings, options: LaunchOptions, plan: Plan | None = None
) -> int:
    """Start or resume a run and serve its dashboard until it is stopped; returns the exit code.

    :param plan: what the page compares the run with
    """
    resume = options.resume
    peer.check(run)
    local_copies(run)  # two things of one name are better refused now
    with (
        peer_folder(peer.folder, "launch of this run"),
        RunDisplay(run.global_batch) as display,
        _alerting(run, peer, 60.0 * options.stall_minutes, page.webhook, display) as alerts,
    ):
        if plan is not None:
            write_plan(plan, peer.folder)
        if OrderBook(peer.folder).read().finish:  # orders that cannot be read are better put right before it starts
            display.line(f"you have finished this run; to let it go on:  dedloc run resume {peer.folder}", "bold")
        if resume is None and (told := earlier_run(run, peer.folder)):
            display.line(told, "bold")
        if peer.regions is not None:
            Countries(peer.regions)  # better refused now than by the coordinator, which takes long to start
            display.line("the live page shows how many volunteers are in which country: tell them so")
        if resume is not None:
            display.line(f"getting the training state from {resume}", "dim")
            state = training_state(resume)
            take_over(peer.folder, run.run_id, state)
            peer = peer.model_copy(update={"resume": state})
        if peer.hub is not None:
            _claim(peer.hub, run, peer, display)

        reached = threading.Event()

        def on_event(event: AnyEvent) -> None:
            display.show(event)
            alerts.hear(event)
            if isinstance(event, Peers) and not reached.is_set() and any(not peer.follower for peer in event.peers):
                reached.set()
                display.line("the first volunteer is here: others can reach this machine", "green")

        with Coordinator(
            run,
            peer,
            host=page.host,
            port=page.port,
            on_event=on_event,
            url=page.url,
            certificate=page.certificate,
            most_volunteers=options.most_volunteers,
        ) as coordinator:
            return _serve(run, peer, coordinator, alerts, display)


@contextmanager
def _alerting(
    run: RunConfig, peer: CoordinatorConfig, stall_seconds: float, webhook: str | None, display: RunDisplay
) -> Iterator[Alerts]:
    """Alerts on the terminal and, if there is one, to the webhook."""

    def warn(text: str) -> None:
        display.line(text, "yellow")

    post = Webhook(webhook, warn) if webhook is not None else None

    def tell(alert: Alert) -> None:
        display.line(f"alert: {alert.text}", "bold yellow")
        if post is not None:
            post.send(f"{run.name}: {alert.text}")

    try:
        yield Alerts(peer.folder, peer.last_step(run), stall_seconds, tell)
    finally:
        if post is not None:
            post.close()


def _serve(
    run: RunConfig, peer: CoordinatorConfig, coordinator: Coordinator, alerts: Alerts, display: RunDisplay
) -> int:
    try:
        display.line(f"starting {run.run_id} in {peer.folder}")
        invitation = coordinator.invitation()
        path = write_invitation(invitation, peer.folder)
        if copies := local_copies(run):
            try:
                remember_copies(run.run_id, invitation.organizer, copies)
            except UserError as error:  # only who volunteers on this machine misses it
                display.line(f"to volunteer here, name the data with --data: {error}", "yellow")
        url = coordinator.dashboard.url
        display.line(f"live page:   {url}", "bold")
        display.line(f"to install:  {_how_to_install(url)}")
        display.line(f"to join:     dedloc join {url}#{invitation.organizer}", "bold")
        if peer.hub is not None and not names_local_files(run):
            display.line(f"or soon:     dedloc join {peer.hub} (once it is on the Hub)", "bold")
        display.line(f"invitation:  {path} (for those who cannot reach the live page)")
        display.line(f"to steer it: {_how_to_steer(url, peer.folder, display)}")
        there = urlsplit(url)
        if hint := advice(coordinator.addresses, there.port or (443 if there.scheme == "https" else 80)):
            display.line(hint, "yellow")
        while not coordinator.ended.wait(RENEWAL_SECONDS):
            alerts.check()
            if coordinator.invitation() != invitation:
                invitation = coordinator.invitation()
                try:
                    write_invitation(invitation, peer.folder)
                except UserError as error:  # a full disk must not end the run
                    display.line(str(error))
        if coordinator.failure:
            raise UserError(coordinator.failure)
    except KeyboardInterrupt:
        display.line("saving and leaving; start it again to go on")
    return coordinator.stop()


def _how_to_steer(url: str, folder: Path, display: RunDisplay) -> str:
    """The link that logs in the organizer, for the eyes at the terminal only: a log is read by others, too."""
    if display.console.is_terminal:
        return f"{Keys(folder).link(url)} (for you alone)"
    return f"open the link that 'dedloc run admin-link {folder}' prints"


def _how_to_install(url: str) -> str:
    """How volunteers get this dedloc_kit; it is packed now, before a file of it may change."""
    try:
        wheel = running_wheel()
    except UserError as error:
        return f"not from here: {error}"
    return f'pip install "{url}/wheel/{wheel.pinned}"'


def _claim(hub: str, run: RunConfig, peer: CoordinatorConfig, display: RunDisplay) -> None:
    """Find out now what the organizer has to put right; a Hub that is down is none of it."""
    try:
        Repository(hub, private=peer.private).claim(run)
    except HubUnavailable as error:
        display.line(f"{hub} cannot be reached now ({error}); pushes begin when it can", "yellow")


def write_invitation(invitation: Invitation, folder: Path) -> Path:
    path = folder / INVITATION_FILE
    try:
        replace_text(path, invitation.model_dump_json(indent=2))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder with --folder") from None
    return path
