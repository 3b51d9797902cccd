"""A volunteer's certificate: what it says, and that no name breaks it."""

import re
import shutil
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import ImageFont

from dedloc_kit.dashboard import certificate_pdf as pdf
from dedloc_kit.dashboard.certificate import HEIGHT, WIDTH, Certificate, certificate_svg, rosettes
from dedloc_kit.display.human import visible
from dedloc_kit.errors import UserError
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


def drawn(document: bytes) -> bytes:
    """The page's own stream of a PDF, in which each text stands as it was written."""
    streams = re.findall(rb"stream\n(.*?)\nendstream", document, re.DOTALL)
    return max((zlib.decompress(stream) for stream in streams if stream.startswith(b"x")), key=len)


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
    page = drawn(pdf.certificate_pdf(certificate()))
    for written in (b"(Asha Rahman)", b"(sahajbert)", b"(1,234,567)", b"(run sahajbert-0123456789abcdef)"):
        assert written in page
    assert b"/URI (https://tunnel.example.org/people/QmPeer)" in pdf.certificate_pdf(certificate())


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
        assert pdf.certificate_pdf(certificate(**changes)).startswith(b"%PDF-")


def test_every_volunteer_has_a_rosette_of_their_own_inside_the_frame() -> None:
    curves = [rosettes(certificate(peer=f"p{number}")) for number in range(20)]
    assert len({tuple(green[:100]) for (green, _), _ in curves}) == 20
    for points, _ in curves[0]:
        assert points[0] == pytest.approx(points[-1], abs=1e-6), "the curve is closed"
        assert all(12 < x < WIDTH - 12 and 12 < y < HEIGHT - 12 for x, y in points)


def test_without_a_font_for_a_name_there_is_no_pdf_and_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_fonts_with", lambda letters: ())
    with pytest.raises(UserError, match=r"open certificate\.svg and let the browser print it"):
        pdf.certificate_pdf(certificate("আশা"))
    assert pdf.certificate_pdf(certificate("José Müller")), "every reader has the letters of Western Europe"


@pytest.fixture
def only_font(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only font that the machine has: Pillow's own, with the letters of English and a few signs."""
    if shutil.which("fc-list") is None:
        pytest.skip("this machine has no fontconfig")
    font = tmp_path / "Only-Regular.ttf"
    default = ImageFont.load_default(20)
    assert isinstance(default, ImageFont.FreeTypeFont)
    font.write_bytes(default.font_bytes)
    (tmp_path / "fonts.conf").write_text(
        f"<fontconfig><dir>{tmp_path}</dir><cachedir>{tmp_path}/c</cachedir></fontconfig>"
    )
    monkeypatch.setenv("FONTCONFIG_FILE", str(tmp_path / "fonts.conf"))
    pdf._fonts_with.cache_clear()
    return font


def test_a_font_of_the_machine_writes_a_name_in_another_script(only_font: Path) -> None:
    assert pdf.font_for("™va\u200d") == (only_font, 0), "a joiner is no letter"
    assert b"/FontFile2" in pdf.certificate_pdf(certificate("™va"))
    with pytest.raises(UserError, match="no font for this name"):
        pdf.font_for("™va আশা")
