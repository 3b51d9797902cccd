"""The run in JSON, for the page and for programs. Everybody may read it."""

from collections.abc import Callable, Hashable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from dedloc_kit.config.places import published
from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard import schemas
from dedloc_kit.dashboard.experts.schemas import Experts
from dedloc_kit.dashboard.http.caching import Answers
from dedloc_kit.dashboard.http.openapi import UNCHANGED
from dedloc_kit.dashboard.live.view import MAX_PEERS, RunView
from dedloc_kit.dashboard.pipeline.schemas import Pipeline
from dedloc_kit.records.contributors import Standing
from dedloc_kit.records.record import PeerId

Step = Annotated[int, Query(ge=0, le=2**53)]
Search = Annotated[str, Query(max_length=64)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=500)]
PeersLimit = Annotated[int, Query(ge=1, le=MAX_PEERS)]


def routes(
    run: RunConfig, view: RunView, current: Callable[[], schemas.RunState], version: Callable[[], Hashable]
) -> APIRouter:
    """The routes.

    :param current: says how the run stands now, as it is pushed to the page too
    :param version: something else than before as soon as an answer may differ
    """
    router = APIRouter(prefix="/api", tags=["run"], responses=UNCHANGED)
    kept = Answers(version)

    @router.get("/run", response_model=schemas.Run)
    def configuration(request: Request) -> Response:
        """The configuration of the run."""
        values = published(run)
        return kept.answer(request, lambda: schemas.Run(run_id=run.run_id, fingerprint=run.fingerprint, run=values))

    @router.get("/state", response_model=schemas.RunState)
    def state(request: Request) -> Response:
        """The run in a glance."""
        return kept.answer(request, current)

    @router.get("/history", response_model=schemas.History)
    def history(request: Request, after: Step = 0) -> Response:
        """The curves after a global step."""
        return kept.answer(request, lambda: view.history(after))

    @router.get("/samples", response_model=schemas.Samples)
    def samples(request: Request) -> Response:
        """What the model did with a few held-out samples on its way, beside what it does now."""
        return kept.answer(request, view.samples)

    @router.get("/people", response_model=schemas.People)
    def people(
        request: Request, sort: schemas.Sort = "total", search: Search = "", offset: Offset = 0, limit: Limit = 100
    ) -> Response:
        """Everyone who gave something; `search` looks in names, teams and peer ids."""
        return kept.answer(request, lambda: view.people(sort, search, offset, limit))

    @router.get("/people/{peer}", response_model=schemas.PersonPage, responses={404: {"model": schemas.Message}})
    def person(request: Request, peer: Annotated[PeerId, Path()]) -> Response:
        """One of them."""
        return kept.answer(request, lambda: view.person(peer))

    @router.get("/teams", response_model=schemas.Teams)
    def teams(request: Request) -> Response:
        """All teams, most samples first."""
        return kept.answer(request, view.teams)

    @router.get("/lenders", response_model=schemas.Lenders)
    def lenders(request: Request) -> Response:
        """Who lent a line, the most bytes first."""
        return kept.answer(request, view.lenders)

    @router.get("/hosts", response_model=schemas.Hosts)
    def hosts(request: Request) -> Response:
        """Who hosted experts, the most tokens first."""
        return kept.answer(request, view.hosts)

    @router.get("/peers", response_model=schemas.Peers)
    def peers(request: Request, offset: Offset = 0, limit: PeersLimit = MAX_PEERS) -> Response:
        """Who is in the swarm now, volunteers first."""
        return kept.answer(request, lambda: view.peers(offset, limit))

    @router.get("/regions", response_model=schemas.Regions)
    def regions(request: Request) -> Response:
        """How many volunteers are in which country, if the organizer has turned it on."""
        return kept.answer(request, view.regions)

    @router.get("/pipeline", response_model=Pipeline, responses={404: {"model": schemas.Message}})
    def pipeline(request: Request) -> Response:
        """The stages that the model is cut into, who holds them and what limits the run; 404 where it is whole."""
        return kept.answer(request, view.pipeline)

    @router.get("/experts", response_model=Experts, responses={404: {"model": schemas.Message}})
    def experts(request: Request) -> Response:
        """The experts that volunteers host: who has each, how many tokens it gets; 404 where there are none."""
        return kept.answer(request, view.experts)

    @router.get("/rounds", response_model=schemas.Rounds)
    def rounds(request: Request, after: Step = 0) -> Response:
        """The rounds after a global step, where their time went, and what went wrong."""
        return kept.answer(request, lambda: view.rounds(after))

    @router.get("/timeline", response_model=schemas.Timeline)
    def timeline(request: Request, limit: Limit = 200) -> Response:
        """Who came and went."""
        return kept.answer(request, lambda: view.timeline(limit))

    @router.get("/standing", response_model=Standing)
    def standing(request: Request, peer: Annotated[PeerId, Query()], after: Step = 0) -> Response:
        """Where a peer stands, for its own view."""
        return kept.answer(request, lambda: view.standing(peer, after))

    return router
