"""A volunteer's certificate: what it says, and that no name breaks it."""

from typing import Any
from xml.etree import ElementTree

import pytest

from dedloc_kit.dashboard.render.certificate import Certificate, certificate_svg
from dedloc_kit.display.human import visible
from tests.dashboard.runs import HOSTILE_NAMES

SVG = "{http://www.w3.org/2000/svg}"


def certificate(name: str = "Asha Rahman", **changes: Any) -> Certificate:
    values: dict[str, Any] = {
        "run": "sahajbert",
        "run_id": "sahajbert-0123456789abcdef",
        "peer": "QmPeer",
        "samples": 1_234_567,
        "part": 0.0432,
        "steps": 871,
        "seconds": 271_800.0,
        "since": 1_762_000_000.0,
        "until": 1_763_800_000.0,
        "address": "https://tunnel.example.org/people/QmPeer",
    }
    return Certificate(name=visible(name), **{**values, **changes})


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_it_says_who_gave_what_to_which_run_and_where_to_check_it() -> None:
    said = words(certificate_svg(certificate()))
    for text in (
        "Asha Rahman",
        "sahajbert",
        "1,234,567",
        "4.3\u00a0%",
        "3 days 3 h",
        "871",
        "run sahajbert-0123456789abcdef",
        "peer QmPeer",
        "to be checked at https://tunnel.example.org/people/QmPeer",
        "a model that volunteers made together over the Internet, from 1 November 2025 to 22 November 2025",
    ):
        assert text in said
    (link,) = ElementTree.fromstring(certificate_svg(certificate())).iter(f"{SVG}a")
    assert link.get("href") == "https://tunnel.example.org/people/QmPeer"


def test_what_is_not_known_is_left_out() -> None:
    said = words(certificate_svg(certificate(seconds=None, until=1_762_000_060.0)))
    assert "of computing time" not in said
    assert "a model that volunteers made together over the Internet, on 1 November 2025" in said


def test_who_is_anonymous_stays_so() -> None:
    assert "anonymous" in words(certificate_svg(certificate("\u200b")))


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_no_name_is_more_than_a_text(name: str) -> None:
    root = ElementTree.fromstring(certificate_svg(certificate(name)))
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "rect", "path", "text", "a")
    }
    assert visible(name) in words(certificate_svg(certificate(name)))
    attributes = {key for element in root.iter() for key in element.attrib}
    assert not [key for key in attributes if key.startswith("on") or key == "style"]


def test_absurd_numbers_make_a_certificate_too() -> None:
    absurd = {"samples": 2**60, "steps": 2**53, "seconds": 1e12, "since": 0.0, "until": 1e12, "part": 1e-9}
    long = {"run": "x" * 64, "run_id": "x" * 81, "peer": "Q" * 128, "address": "https://" + "h" * 2_000}
    for changes in (absurd, long):
        ElementTree.fromstring(certificate_svg(certificate(**changes)))
