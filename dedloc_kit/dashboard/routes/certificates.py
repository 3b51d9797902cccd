"""Where volunteers find their certificates."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.http.base_url import page_address
from dedloc_kit.dashboard.http.caching import cached_answer
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.live.view import RunView
from dedloc_kit.dashboard.render.certificate import Certificate, certificate_svg
from dedloc_kit.dashboard.routes.pictures import SVG
from dedloc_kit.display.human import visible
from dedloc_kit.records.record import PeerId

_SECONDS = 60


def routes(run: RunConfig, view: RunView) -> APIRouter:
    router = APIRouter(prefix="/people/{peer}", tags=["certificates"])

    def certificate(request: Request, peer: str) -> Certificate:
        person = view.person(peer).person
        return Certificate(
            run=run.name,
            run_id=run.run_id,
            peer=person.peer,
            name=visible(person.name),
            samples=person.samples,
            part=person.share,
            steps=person.steps,
            seconds=person.seconds,
            since=person.first_seen,
            until=person.last_seen,
            carried=person.carried,
            answered=person.answered,
            address=f"{page_address(request)}people/{person.peer}",
        )

    @router.get("/certificate.svg", summary="A certificate as a picture", responses=answering(SVG, cached=True))
    def picture(request: Request, peer: Annotated[PeerId, Path()]) -> Response:
        drawn = certificate_svg(certificate(request, peer)).encode()
        return cached_answer(request, drawn, SVG, _SECONDS, shared=False)

    return router
