"""The milestones of a run as an Atom feed (RFC 4287), for those who follow it in a feed reader."""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from fastapi import APIRouter, Request
from starlette.responses import Response

from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.http.base_url import page_address
from dedloc_kit.dashboard.http.caching import Recent, cached_answer
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.live.milestones import Milestone

_SECONDS = 300
_ATOM = "application/atom+xml"


def feed(run: RunConfig, milestones: Sequence[Milestone], address: str) -> bytes:
    """The feed as XML, newest entry first.

    :param address: of the page, as the reader reached it
    """
    root = ElementTree.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _add(root, "id", _identifier(run, ""))
    _add(root, "title", f"{run.name}: a model that volunteers train together")
    _add(root, "updated", _date(milestones[-1].time if milestones else 0.0))
    _add(root, "link", rel="self", href=f"{address}feed.atom")
    _add(root, "link", rel="alternate", href=address)
    _add(_add(root, "author"), "name", run.name)
    for milestone in reversed(milestones):
        entry = _add(root, "entry")
        _add(entry, "id", _identifier(run, milestone.key))
        _add(entry, "title", milestone.title)
        _add(entry, "updated", _date(milestone.time))
        _add(entry, "link", rel="alternate", href=address)
        _add(entry, "content", f"{milestone.title}.", type="text")
    document: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return document


def routes(run: RunConfig, milestones: Callable[[], Sequence[Milestone]]) -> APIRouter:
    router = APIRouter()
    recent = Recent(milestones, _SECONDS)

    @router.get(
        "/feed.atom", tags=["pictures"], summary="Milestones as an Atom feed", responses=answering(_ATOM, cached=True)
    )
    def atom(request: Request) -> Response:
        document = feed(run, recent(), page_address(request))
        return cached_answer(request, document, _ATOM, _SECONDS, shared=False)

    return router


def _add(parent: ElementTree.Element, tag: str, text: str = "", **attributes: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, attributes)
    element.text = text or None
    return element


def _identifier(run: RunConfig, key: str) -> str:
    """The same wherever the feed is read."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{run.run_id}/{key}").urn


def _date(time: float) -> str:
    return datetime.fromtimestamp(min(time, 2**35), UTC).isoformat(timespec="seconds")  # 2**35: in the year 3058
