"""The organizer's view: how the run is steered and what went wrong, for whoever is logged in."""

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Cookie, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dedloc_kit.dashboard.http.limits import address_of
from dedloc_kit.dashboard.http.login import COOKIE_SECONDS, Attempts, Keys
from dedloc_kit.dashboard.schemas import Answer, Message, json_answer
from dedloc_kit.errors import UserError
from dedloc_kit.events import PeerSeen
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.records.orders import Announcement, AnnouncementText
from dedloc_kit.records.record import PeerId
from dedloc_kit.steering.alerts import Alert, raised_alerts
from dedloc_kit.steering.commands import cooldown, give, held_out_losses, pending_rollback, rollback
from dedloc_kit.steering.evidence import newest_files
from dedloc_kit.steering.orders import Decaying, GivenOrder, Kicked, OrderBook, Rewinding

_NEW_LINK = "log in with the link that 'dedloc run admin-link RUN' prints on the coordinator's machine"
_MAX_SHOWN = 100


class KeptCheckpoint(Answer):
    """A state of the run on the coordinator's disk."""

    step: int
    time: float
    bytes: int
    best: bool
    """It has the lowest held-out loss."""
    loss: float | None
    """The held-out loss, if it was measured."""
    ruined: bool
    """Its training had diverged: the run cannot go back to it."""


class Restart(Answer):
    """Why a volunteer's training stopped before it was started again, by its own word."""

    peer: str
    name: str
    reason: str


class Away(Kicked):
    """A peer that was sent away."""

    evidence: str | None
    """The file in the run's folder that shows why; null if it was the organizer in person, or there is none."""


class OrganizerState(Answer):
    """What only the organizer sees; of everything the newest comes first."""

    paused: bool
    finishing: bool
    """The run ends, or has ended, by the organizer's order."""
    decays: bool
    """The learning rate waits for an order to fall."""
    decay: Decaying | None
    """That order, whether it has begun or not."""
    announcement: Announcement | None
    kicked: list[Away]
    alerts: list[Alert]
    orders: list[GivenOrder]
    checkpoints: list[KeptCheckpoint]
    rewind: Rewinding | None
    """What the next global step is to take over, if that is ordered and not done yet."""
    restarts: list[Restart]
    """Of the volunteers that are here now."""


class OnePeer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    peer: Annotated[PeerId, Field(min_length=1)]


class Words(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: AnnouncementText
    """Empty to remove the announcement."""


class Earlier(BaseModel):
    model_config = ConfigDict(extra="forbid")

    step: Annotated[int, Field(ge=0, le=2**53)]
    """Of the checkpoint."""
    rate: Annotated[float, Field(gt=0, le=10)] = 1.0
    """A factor of the learning rate."""


class Fall(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int, Field(ge=1, le=2**53)]
    """Over how many global steps the learning rate falls."""


class Denied(Exception):
    """This request is not the organizer's, or asks for what cannot be done."""

    def __init__(self, status: int, message: str, forget: str = "") -> None:
        """:param forget: a cookie that is worth nothing any more"""
        super().__init__(message)
        self.status, self.message, self.forget = status, message, forget


def denial(_request: Request, denied: Exception) -> Response:
    """The answer to a request that was denied."""
    assert isinstance(denied, Denied)
    answer = json_answer({"message": denied.message}, denied.status)
    if denied.forget:
        answer.delete_cookie(denied.forget)
    return answer


def routes(
    folder: Path, fingerprint: str, peers: Callable[[], Sequence[PeerSeen]] = tuple, *, decays: bool = False
) -> APIRouter:
    """Raises UserError if the secret in the folder cannot be used.

    :param folder: the coordinator's
    :param fingerprint: of the run; browsers send a cookie to every port of a machine, which may host several runs
    :param peers: gives who is here now
    :param decays: the run's learning rate waits for an order to fall
    """
    keys, attempts, book = Keys(folder), Attempts(), OrderBook(folder)
    name = f"organizer-{fingerprint}"

    def organizer_only(request: Request, cookie: Annotated[str, Cookie(alias=name, max_length=200)] = "") -> None:
        if not keys.knows(cookie):
            if cookie and attempts.too_many(address_of(request.scope)):
                raise Denied(429, "too many wrong keys came from this address; try again in a minute")
            raise Denied(401, f"only the organizer sees this; {_NEW_LINK}", forget=name if cookie else "")
        origin = request.headers.get("Origin")
        if request.method != "GET" and origin and origin.partition("://")[2] != request.headers.get("Host"):
            raise Denied(403, "this order came from the page of another site")

    router = APIRouter()
    denials: dict[int | str, dict[str, Any]] = {status: {"model": Message} for status in (400, 401, 403, 409, 429)}
    protected = APIRouter(
        prefix="/api/organizer", tags=["organizer"], dependencies=[Depends(organizer_only)], responses=denials
    )

    @router.get("/organizer/login", include_in_schema=False)
    async def login(request: Request, key: Annotated[str, Query(max_length=200)] = "") -> Response:
        if not keys.opens(key):
            if attempts.too_many(address_of(request.scope)):
                return PlainTextResponse("Too many wrong keys came from this address; try again in a minute.", 429)
            return PlainTextResponse(f"This link is not right or has expired; {_NEW_LINK}.", 401)
        answer = RedirectResponse("../organizer", 303, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            name,
            keys.cookie(),
            max_age=int(COOKIE_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def state() -> OrganizerState:
        try:
            orders, rewinding = book.read(), pending_rollback(folder)
            checkpoints = kept_checkpoints(folder)
        except UserError as error:
            raise Denied(409, str(error)) from None
        return OrganizerState(
            paused=orders.paused,
            finishing=orders.finish,
            decays=decays,
            decay=orders.decay,
            announcement=orders.announcement,
            kicked=_away(folder, orders.kicked),
            alerts=raised_alerts(folder, _MAX_SHOWN),
            orders=book.given(_MAX_SHOWN),
            checkpoints=checkpoints,
            rewind=rewinding,
            restarts=[
                Restart(peer=peer.peer, name=peer.name, reason=peer.restarted) for peer in peers() if peer.restarted
            ][:_MAX_SHOWN],
        )

    def give_order(order: str, what: str = "") -> OrganizerState:
        try:
            give(order, folder, what)
        except UserError as error:
            raise Denied(409, str(error)) from None
        return state()

    @protected.get("")
    def organizer() -> OrganizerState:
        """How the run is steered, and what went wrong; for whoever is logged in, as everything here."""
        return state()

    @protected.post("/announce")
    def announce(body: Words) -> OrganizerState:
        """Show a message to all volunteers and viewers."""
        return give_order("announce", body.text)

    @protected.post("/kick")
    def kick(body: OnePeer) -> OrganizerState:
        """Send a volunteer away."""
        return give_order("kick", body.peer)

    @protected.post("/unban")
    def unban(body: OnePeer) -> OrganizerState:
        """Let one come back."""
        return give_order("unban", body.peer)

    @protected.post("/rollback")
    def go_back(body: Earlier) -> OrganizerState:
        """Let the next global step take over an earlier checkpoint."""
        try:
            rollback(folder, str(body.step), str(body.rate))
        except UserError as error:
            raise Denied(409, str(error)) from None
        return state()

    @protected.post("/cooldown")
    def fall(body: Fall) -> OrganizerState:
        """Let the learning rate fall, and the run end with that."""
        try:
            cooldown(folder, str(body.steps))
        except UserError as error:
            raise Denied(409, str(error)) from None
        return state()

    @protected.post("/{order}")
    def order(order: Literal["pause", "resume", "finish", "checkpoint"]) -> OrganizerState:
        """An order that needs no more words."""
        return give_order(order)

    router.include_router(protected)
    return router


def _away(folder: Path, kicked: Sequence[Kicked]) -> list[Away]:
    """The newest first."""
    files = newest_files(folder)
    return [Away(**dict(one), evidence=files.get(one.peer) if one.why else None) for one in reversed(kicked)]


def kept_checkpoints(folder: Path) -> list[KeptCheckpoint]:
    """The checkpoints in a run's folder (see training.state), newest first. Raises UserError if its ledger cannot
    be read."""
    checkpoints = folder / "checkpoints"
    try:
        best = int(json.loads((checkpoints / "best.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, LookupError, TypeError):
        best = -1
    files: dict[int, os.stat_result] = {}
    for path in checkpoints.glob("step-*.safetensors"):
        if named := re.fullmatch(r"step-(\d{1,15})", path.stem):
            with suppress(OSError):  # a newer one has just pushed it out
                files[int(named[1])] = path.stat()
    losses, ruined = held_out_losses(folder, list(files)), Ruined(checkpoints)
    return [
        KeptCheckpoint(
            step=step,
            time=file.st_mtime,
            bytes=file.st_size,
            best=step == best,
            loss=losses.get(step),
            ruined=step in ruined,
        )
        for step, file in sorted(files.items(), reverse=True)
    ]
