"""A volunteer's session in a run: this machine trains, or carries data for the machines that do."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from dedloc_kit.client import fetch_standing, find_invitation
from dedloc_kit.config.machine import JoinOptions, parsed
from dedloc_kit.errors import UserError
from dedloc_kit.known_peers import initial_peers
from dedloc_kit.machine.hardware import check, check_clock, check_connections, clock_skew, machine_at, tpu
from dedloc_kit.machine.home import known_copies, next_session
from dedloc_kit.machine.meters import Meters
from dedloc_kit.machine.proxies import proxy_obstacle
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.session.session import Session
from dedloc_kit.session.supervisor import Notice, Resting
from dedloc_kit.session.training import TrainingState
from dedloc_kit.worker import Role, volunteer_job

STANDING_SECONDS = 10.0


class TrainingSession(Session[TrainingState]):
    """Takes part in a run; `settings` are keys of JoinOptions."""

    role: ClassVar[Role] = "volunteer"
    begin = TrainingState
    _last_stop = ""  # why a worker of this session ended: the organizer is told
    _looked = float("-inf")

    def heard(self, notice: Notice) -> None:
        if isinstance(notice, Resting):
            self._last_stop = notice.why
        super().heard(notice)

    def _job(self) -> Mapping[str, Any]:
        self._doing("reading the invitation", "this machine is checked")
        invitation, new = find_invitation(self._where, self._folder)
        if not new:
            self._warn(f"no coordinator answers at {self._where}; trying the peers known from the last time")
        run = invitation.run_config()
        self._change(
            **{"run_id": run.run_id, "about": run.about, "url": invitation.url},
            **{"total_steps": run.optimizer.total_steps, "global_batch": run.global_batch},
        )
        account = self._who()
        self._doing("checking this machine", "the libraries are loaded")
        copies = known_copies(run.run_id, invitation.organizer) | dict(self._settings.get("data", {}))
        settings = {**self._settings, "data": copies, "folder": self._folder.resolve(), "name": account.name}
        peer = parsed(JoinOptions, settings)
        self._change(auxiliary=peer.auxiliary)
        if not self.state().peer:  # what stops it later may pass, such as a line that is down
            self._check_machine(invitation, peer)
        self._doing("loading the libraries", "this machine connects to the others")
        return {**volunteer_job(invitation, peer, self._last_stop), "environment": self._secrets(account)}

    def _check_machine(self, invitation: Invitation, peer: JoinOptions) -> None:
        """Warn of what may be a problem; raises UserError if this machine cannot take part."""
        from huggingface_hub.constants import ENDPOINT

        machine, state = machine_at(self._folder), invitation.run_config().optimizer.state_dtype
        parameters, lends, gives = invitation.held_parameters, peer.auxiliary, peer.give_state
        for text in check(machine, parameters, devices=peer.devices, state=state, lends=lends, gives_state=gives):
            self._warn(text)
        if not peer.auxiliary and (no_use := tpu()):
            self._warn(no_use)
        if told := proxy_obstacle(ENDPOINT):  # much data is there, not all
            self._warn(told)
        skew = clock_skew(invitation.url) if invitation.url else None
        if skew is not None and (told := check_clock(skew)):
            self._warn(told)
        check_connections(initial_peers(invitation, self._folder), page_answers=skew is not None)

    def _look(self, meters: Meters) -> None:
        worker = self.worker
        self._change(reading=meters.read(worker.pid if worker is not None and worker.running else None))
        standing = self.state().standing
        if standing is None or not standing.rank or time.monotonic() - self._looked > STANDING_SECONDS:
            self._look_up_standing()
            self._looked = time.monotonic()

    def _close(self) -> None:
        self._look_up_standing()
        if self.state().session_samples:
            self._change(next_session=next_session(self._folder))

    def _look_up_standing(self) -> None:
        """Ask the coordinator how much we have given in all; while it does not answer, what is known stays."""
        now = self.state()
        if not now.peer or now.url is None:
            return
        after = now.losses[-1].step if len(now.losses) > 1 else 0
        try:
            standing = fetch_standing(now.url, now.peer, after)
        except UserError:
            return
        self._update(lambda state: state.stands(standing))
