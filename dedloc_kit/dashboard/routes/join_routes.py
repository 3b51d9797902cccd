"""What a volunteer fetches: the invitation, and the very kit that the coordinator runs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import PlainTextResponse, Response

from dedloc_kit.dashboard.http.base_url import page_address
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.schemas import json_answer
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation, Refusal
from dedloc_kit.records.record import PeerId

Made = TypeVar("Made")


class Standing(Protocol):
    """How what one may join stands."""

    @property
    def status(self) -> str: ...


class Entrance:
    """Decides who is given the invitation."""

    def __init__(self, state: Callable[[], Standing], is_full: Callable[[str], bool] = lambda peer: False) -> None:
        """
        :param is_full: whether there is no room for the volunteer with this peer id
        """
        self.invitation: Invitation | None = None
        """None until whoever gives it out has joined its own swarm."""
        self._state, self._is_full = state, is_full
        # The threads that make the page's answers may all be busy, with viewers in line for them.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="entrance")

    @property
    def wheel(self) -> str | None:
        """The file of the kit that is given away here, with its digest; none if there is no such file."""
        try:
            return running_wheel().pinned
        except UserError:
            return None

    @property
    def organizer(self) -> str | None:
        """Who signed the invitation that is given out; none before the first one."""
        return None if self.invitation is None else self.invitation.organizer

    def give_out(self, invitation: Invitation) -> None:
        """From now on this one is given to whoever may join."""
        self.invitation = invitation

    def refusal(self, state: Standing, peer: str = "") -> Refusal | None:
        """Why a volunteer with this peer id cannot join now; its own ghost after a crash is no reason."""
        if state.status == "finished":
            return Refusal(reason="over")
        if self.invitation is None:
            return Refusal(reason="starting")
        return Refusal(reason="full") if self._is_full(peer) else None

    def routes(self) -> APIRouter:
        router = APIRouter(tags=["entrance"])
        refused: dict[int | str, dict[str, Any]] = {code: {"model": Refusal} for code in (410, 503)}

        @router.get("/api/invitation", summary="What it takes to join", response_model=Invitation, responses=refused)
        async def invitation(peer: Annotated[PeerId, Query()] = "", watch: bool = False) -> Response:
            refusal = self.refusal(await self._at_once(self._state), peer)
            if refusal is not None and not (watch and self.invitation):
                return json_answer(refusal.model_dump(), 410 if refusal.reason == "over" else 503)
            assert self.invitation is not None
            return Response(self.invitation.model_dump_json(), media_type="application/json")

        @router.get(
            "/requirements.txt", summary="For pip: the dedloc_kit of this run", response_class=PlainTextResponse
        )
        async def requirements(request: Request) -> Response:
            # As the one who asks reached us: behind a tunnel that is not the address that we know of ourselves.
            wheel = await self._at_once(running_wheel)
            return PlainTextResponse(f"dedloc_kit @ {page_address(request)}wheel/{wheel.pinned}\n")

        @router.get("/wheel/{name}", summary="That dedloc_kit", responses=answering("application/octet-stream"))
        async def wheel(name: str) -> Response:
            wheel = await self._at_once(running_wheel)
            if name != wheel.name:
                raise HTTPException(404)
            return Response(wheel.content, media_type="application/octet-stream")

        return router

    async def _at_once(self, make: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._threads, make)
