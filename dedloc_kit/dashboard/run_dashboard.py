"""The page of a run: its views, JSON for programs, and what happens as a stream of events."""

import asyncio
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI

from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard import schemas
from dedloc_kit.dashboard.http.caching import Recent
from dedloc_kit.dashboard.http.openapi import DESCRIPTION
from dedloc_kit.dashboard.http.sockets import Certificate
from dedloc_kit.dashboard.live.view import RunView
from dedloc_kit.dashboard.routes import api, certificates, feed, metrics, pages, pictures
from dedloc_kit.dashboard.routes.exports import Exports
from dedloc_kit.dashboard.routes.join_routes import Entrance
from dedloc_kit.dashboard.routes.organizer import Denied, denial
from dedloc_kit.dashboard.web_server import Page, event
from dedloc_kit.events import AnyEvent

_FACTS_SECONDS = 1.0
"""How old the state may be that programs are told."""


class Dashboard(Page):
    """The page of one run, served by a background thread of this process."""

    description = DESCRIPTION

    def __init__(
        self,
        run: RunConfig,
        ledger: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public: str | None = None,
        certificate: Certificate | None = None,
        most_volunteers: int | None = None,
        organizer: APIRouter | None = None,
    ) -> None:
        """`ledger` need not exist yet; port 0 takes a free one; others reach this machine as `public`: a host or,
        where a proxy stands before the page, a URL. With a certificate the page is served over TLS.

        With `most_volunteers` newcomers are asked to come later; whoever has a peer's address can join all the same.
        Without `organizer`, the routes by which the run is steered, nobody can steer it from here.
        """
        super().__init__(host, port, public, certificate)
        self._run = run
        self._view = RunView(run, ledger)
        self._exports = Exports(ledger)
        self._most_volunteers = most_volunteers
        self.entrance = Entrance(self._view.state, self._is_full)
        """Its invitation is set by the launcher once the coordinator has joined, and renewed as volunteers come."""
        self._organizer = organizer
        self._pushed_step, self._pushed_evaluation = 0, -1

    def publish(self, event: AnyEvent) -> None:
        """Show an event of the coordinator; any thread may call this at any time, also after the end."""
        self._view.hear(event)
        self._tell()

    def count_to(self, steps: int) -> None:
        """As `RunView.count_to`."""
        self._view.count_to(steps)

    def stop(self) -> None:
        """End all streams and stop serving; a second time does nothing."""
        super().stop()
        self._view.close()

    def _add_routes(self, app: FastAPI) -> None:
        app.add_exception_handler(Denied, denial)
        state = Recent(self._state, _FACTS_SECONDS)
        app.include_router(pages.routes(state))
        if self._organizer is not None:
            app.include_router(self._organizer)
        app.include_router(self.entrance.routes())
        app.include_router(api.routes(self._run, self._view, self._state, self._version))
        app.include_router(self._exports.routes())
        app.include_router(metrics.routes(self._view, state, lambda: self._viewers.count))
        app.include_router(pictures.routes(self._view, state))
        app.include_router(feed.routes(self._run, self._view.milestones))
        app.include_router(certificates.routes(self._run, self._view))

    async def _push(self) -> dict[str, Any]:
        state = await super()._push()
        # A page that finds a gap before `after`, or itself ahead of `last_step`, fetches the whole history.
        after = min(self._pushed_step, state["step"])
        found = await asyncio.to_thread(self._view.history, after, self._pushed_evaluation)
        history = found.model_dump(mode="json")
        if history["steps"] or history["evaluations"] or history["last_step"] < self._pushed_step:
            self._viewers.push(event("history", history))
        self._pushed_step = history["last_step"]
        evaluated = (point["step"] for point in history["evaluations"])
        self._pushed_evaluation = max([min(self._pushed_evaluation, self._pushed_step), *evaluated])
        return state

    def _is_full(self, peer: str) -> bool:
        return self._most_volunteers is not None and self._view.volunteers(without=peer) >= self._most_volunteers

    def _state(self) -> schemas.RunState:
        state = self._view.state()
        refusal = self.entrance.refusal(state)
        reason = refusal.reason if refusal is not None else None
        known = {"organizer": self.entrance.organizer, "wheel": self.entrance.wheel}
        return state.model_copy(update={"refusal": reason, **known})

    def _version(self) -> Hashable:
        return self._view.version(), self.entrance.invitation is None
