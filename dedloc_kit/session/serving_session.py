"""A volunteer's session as a server: some layers of a model, until the volunteer leaves."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dedloc_kit.client import find_invitation
from dedloc_kit.config.machine import parsed
from dedloc_kit.serving.config import ServerConfig, ServingConfig, served_by_swarm
from dedloc_kit.session.serving import ServingState
from dedloc_kit.session.session import Session
from dedloc_kit.worker import Role, server_job


class ServingSession(Session[ServingState]):
    """Holds some layers of a served model; `settings` are keys of ServerConfig."""

    role: ClassVar[Role] = "server"
    begin = ServingState

    def _job(self) -> Mapping[str, Any]:
        self._doing("reading the invitation", "the model's parts are looked for")
        invitation, new = find_invitation(self._where, self._folder)
        if not new:
            self._warn(f"nobody answers at {self._where}; trying the servers known from the last time")
        swarm = served_by_swarm(invitation)
        version = swarm.manifest if isinstance(swarm, ServingConfig) else ""
        self._change(run_id=swarm.run_id, about=swarm.about, version=version, url=invitation.url)
        account = self._who()
        peer = parsed(ServerConfig, {**self._settings, "folder": self._folder.resolve(), "name": account.name})
        self._doing("loading the libraries", "it connects to the other servers")
        return {**server_job(invitation, peer), "environment": self._secrets(account)}
