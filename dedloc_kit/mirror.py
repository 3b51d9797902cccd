"""A mirror of a run's live page that anyone may run: a collector as a worker, and the organizer's dashboard.

It goes on while the coordinator is down, and while nobody of the run answers it shows what it knows.
"""

import re
import threading
from pathlib import Path

from dedloc_kit.client import NoAnswer, find_invitation, repository_of
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.display.terminal import RunDisplay
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Failed, Joined
from dedloc_kit.machine.home import home, peer_folder
from dedloc_kit.machine.private import make_private
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.worker import Worker, collector_job

FIRST_PAUSE, MAX_PAUSE = 10.0, 300.0
"""Seconds between two looks for a swarm of which nobody answers: twice as long each time."""


def mirror(where: str, *, host: str, port: int, folder: Path | None, code: str = "") -> None:
    """Serve a run's page from a ledger of one's own until interrupted.

    :param where: the run's invitation, see `fetch_invitation`
    :param folder: keeps what is collected
    :param code: what lets a volunteer into a run that is not open; this machine needs it once
    Raises UserError if there is no such invitation, or the folder or the port cannot be used.
    """
    with peer_folder(folder or home() / "mirrors" / re.sub(r"\W+", "-", where)) as base:
        invitation, _ = find_invitation(where, base, watch=True)
        run = invitation.run_config()
        place = base / run.run_id
        make_private(place)
        dashboard = Dashboard(run, place / "ledger.sqlite", host=host, port=port)
        dashboard.start()
        try:
            with RunDisplay(run.global_batch) as display:
                display.line(f"mirror of {run.run_id}: {dashboard.url}", "bold")
                display.line(f"what it collects is in {place}")
                _Mirror(where, base, dashboard, display, code).collect(invitation)
        except KeyboardInterrupt:
            pass
        finally:
            dashboard.stop()


class _Mirror:
    def __init__(self, where: str, base: Path, dashboard: Dashboard, display: RunDisplay, code: str) -> None:
        self._code = code
        self._where, self._base, self._dashboard, self._display = where, base, dashboard, display
        self._found = threading.Event()

    def collect(self, invitation: Invitation) -> None:
        """Collect for ever: from the swarm, or else now and then what the coordinator or the Hub hands out."""
        pause = FIRST_PAUSE
        while True:
            if self._work(invitation):
                pause = FIRST_PAUSE
            self._display.line(f"looking again in {pause:.0f} s", "dim")
            threading.Event().wait(pause)
            pause = min(2 * pause, MAX_PAUSE)
            invitation = self._renewed(invitation)

    def _work(self, invitation: Invitation) -> bool:
        """Let a collector work until it cannot go on; whether it had found the swarm."""
        self._found.clear()
        # Whoever finds the mirror can join the run through it. It knows more peers than the invitation names, but
        # where they are is not for everybody.
        self._dashboard.entrance.give_out(invitation)
        peer = PeerConfig(folder=self._base / invitation.run_id, name="mirror", devices="cpu", client_mode=True)
        job = collector_job(invitation, peer, repository_of(self._where), self._code)
        worker = Worker("collector", job, folder=peer.folder, on_event=self._heard)
        try:
            worker.wait()
        finally:
            worker.stop()
        self._display.line(worker.failure or "the collector has ended", "yellow")
        return self._found.is_set()

    def _heard(self, event: AnyEvent) -> None:
        if isinstance(event, Joined):
            self._found.set()
        # What is wrong on this machine is for the eyes of whoever runs it.
        shown = (
            Failed(text="this mirror does not reach the swarm; it shows what it knows")
            if isinstance(event, Failed)
            else event
        )
        self._dashboard.publish(shown)
        self._display.show(event)

    def _renewed(self, invitation: Invitation) -> Invitation:
        """As it is now: the coordinator may have moved. Raises UserError if there is another run in its place."""
        try:
            newer, _ = find_invitation(self._where, self._base, watch=True)
        except NoAnswer:
            return invitation
        if newer.run_id != invitation.run_id:
            raise UserError(
                f"{self._where} leads to another run now, {newer.run_id}; start the mirror again to show it"
            )
        return newer
