"""A volunteer's session as a server: some layers of a model, until the volunteer leaves."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.client import find_invitation
from dedloc_kit.config.machine import parsed
from dedloc_kit.display import human
from dedloc_kit.events import Joined, Loading, Served, ServerSeen, State, Warned
from dedloc_kit.machine.account import CODE, who_am_i
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.serving.config import ServerConfig, ServingConfig, served_by_swarm
from dedloc_kit.serving.coverage import coverage, named, served_by
from dedloc_kit.session.supervisor import Notice, Paused, Resting, Supervisor
from dedloc_kit.worker import server_job

MAX_WARNINGS = 3


@dataclass(frozen=True)
class ServingSnapshot:
    """What is shown; without values, that nothing is known yet. Texts may hold what others wrote: a view escapes
    them."""

    phase: Literal["starting", "serving", "restarting", "paused", "leaving", "left", "failed"] = "starting"
    text: str = "starting"
    run_id: str = ""
    about: str = ""
    url: str | None = None
    name: str = ""
    version: str = ""
    """Of the weights."""
    layers: int = 0
    """Of the model."""
    mine: ServerSeen | None = None
    servers: tuple[ServerSeen, ...] = ()
    earlier: int = 0
    """Tokens times layers of this session's workers before the one that runs."""
    warnings: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def served(self) -> int:
        """Tokens times layers in this session."""
        return self.earlier + (self.mine.served if self.mine else 0)

    @property
    def over(self) -> bool:
        return self.phase in ("left", "failed")

    @property
    def gaps(self) -> tuple[str, ...]:
        """Layers that nobody serves, as people read them."""
        return served_by(0, coverage(self.layers, self.servers, self.version))


def lines(now: ServingSnapshot) -> list[tuple[str, str]]:
    """The facts of a snapshot, each with its name."""
    found = [("I am", now.name or "…")]
    if now.mine is not None:
        mine = now.mine
        found.append(("layers", f"{mine.begin} to {mine.end - 1} of {now.layers}, as {mine.form}"))
        found.append(
            ("speed", f"{human.rate(mine.decoding)} tokens/s one by one, {human.rate(mine.prompts)} in prompts")
        )
        used = mine.cache_tokens - mine.free_tokens
        found.append(("answering", f"{mine.sessions} now, with {used:,} of {mine.cache_tokens:,} tokens to remember"))
    found.append(("given", f"{now.served:,} tokens x layers"))
    if now.servers:
        bare = f"; nobody serves {named(now.gaps)}" if now.gaps else ""
        found.append(("servers", f"{len(now.servers)}{bare}"))
    if now.url:
        found.append(("live page", now.url))
    return found


class ServingSession:
    """Starts at once, in the background. Raises UserError if the folder cannot be had.

    :param where: the page's URL, an invitation's file, or a repository of the Hub
    :param settings: keys of ServerConfig that the volunteer has chosen
    :param code: what lets this volunteer into a swarm that is not open to all
    """

    def __init__(
        self, where: str, *, folder: Path | None = None, settings: Mapping[str, Any] | None = None, code: str = ""
    ) -> None:
        self.ended = threading.Event()
        self._where, self._settings, self._code = where, dict(settings or {}), code
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(peer_folder(folder))
        self._lock = threading.Lock()
        self._now = ServingSnapshot()
        self._wish = "serve"
        self._supervisor = Supervisor(self._job, folder=self._folder, on_notice=self._take, role="server")
        threading.Thread(target=self._wait, name="session", daemon=True).start()

    def snapshot(self) -> ServingSnapshot:
        with self._lock:
            return self._now

    def pause(self) -> None:
        """Free this machine; whoever is served goes on elsewhere. Returns at once; does nothing after `leave`."""
        if self._wish == "leave":
            return
        self._wish = "pause"
        self._set(text="pausing: those who are served go on elsewhere")
        self._supervisor.pause()

    def resume(self) -> None:
        """Serve again after a pause; nothing after `leave`."""
        if self._wish == "leave":
            return
        self._wish = "serve"
        self._set(phase="starting", text="starting again")
        self._supervisor.resume()

    def leave(self) -> None:
        """Leave for good; returns at once, `ended` is set when nothing runs any more."""
        self._wish = "leave"
        self._set(phase="leaving", text="leaving: those who are served go on elsewhere")
        self._supervisor.leave()

    def _job(self) -> Mapping[str, Any]:
        self._set(phase="starting", text="reading the invitation", problem=None)
        invitation, new = find_invitation(self._where, self._folder)
        if not new:
            self._warn(f"nobody answers at {self._where}; trying the servers known from the last time")
        swarm = served_by_swarm(invitation)
        account = who_am_i(self._settings.get("name"), self._folder)
        if account.warning:
            self._warn(account.warning)
        version = swarm.manifest if isinstance(swarm, ServingConfig) else ""
        about = {"run_id": swarm.run_id, "about": swarm.about, "version": version}
        self._set(**about, url=invitation.url, name=account.name)
        peer = parsed(ServerConfig, {**self._settings, "folder": self._folder.resolve(), "name": account.name})
        secrets = {**account.environment(), **({CODE: self._code} if self._code else {})}
        return {**server_job(invitation, peer), "environment": secrets}

    def _take(self, notice: Notice) -> None:
        match notice:
            case State(text=text) if self._wish == "serve":
                self._set(text=text)
            case Loading():
                self._set(text=f"getting the weights: {notice.text}")
            case Joined():
                self._set(phase="serving")
            case Served(layers=layers, mine=mine, servers=servers, version=version):
                self._set(layers=layers, mine=mine, servers=servers, version=version or self._now.version)
            case Warned(text=text):
                self._warn(text)
            case Resting(why=why, seconds=seconds):
                self._forget(phase="restarting", text=f"it stopped and starts again in {seconds:.0f} s: {why}")
            case Paused():
                self._forget(phase="paused", text="paused: nothing runs on this machine")

    def _forget(self, **changes: Any) -> None:
        """The worker has ended: what it gave stays."""
        self._set(earlier=self._now.served, mine=None, servers=(), **changes)

    def _warn(self, text: str) -> None:
        kept = [warning for warning in self._now.warnings if warning != text]
        self._set(warnings=(*kept, text)[-MAX_WARNINGS:])

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)

    def _wait(self) -> None:
        self._supervisor.wait()
        if self._supervisor.failure:
            self._set(phase="failed", text="this machine cannot take part now", problem=self._supervisor.failure)
        else:
            self._set(phase="left", text=f"you have left; thank you for {self._now.served:,} tokens x layers")
        self._stack.close()
        self.ended.set()
