"""The pictures that other pages embed: right, well-formed, and nearly free however many pages do."""

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests
from PIL import Image

from dedloc_kit.dashboard.http.caching import Recent
from dedloc_kit.dashboard.render.badge import badge
from dedloc_kit.dashboard.render.sharing import sharing_tags
from dedloc_kit.dashboard.routes import pictures
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.evaluation import Drawing, Evaluation, Neighbour, Neighbours, Picture
from tests.dashboard.runs import HOSTILE_NAMES, RUN, fill
from tests.hang import HANG

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE_ADDRESS = "http://x'\"<script>alert(1)</script>&amp;/"
PATHS = (
    "/badge.svg",
    "/loss.svg",
    "/card.png",
    "/feed.atom",
    "/people/p0/certificate.svg",
)


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    served.start()
    yield served
    served.stop()


def get(dashboard: Dashboard, path: str, **headers: str) -> requests.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(dashboard.url + path, headers=names, timeout=HANG)


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_a_badge_is_well_formed_whatever_it_says(name: str) -> None:
    root = ElementTree.fromstring(badge("demo", name.replace("\ufffe", "").replace("\uffff", ""), 5))
    assert {element.tag for element in root.iter()} <= {
        f"{SVG}{tag}" for tag in ["svg", "title", "clipPath", "rect", "g", "text"]
    }


def test_pictures_of_samples_are_drawn_from_their_pixels_and_kept_by_caches(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    red, green, blue = (Picture(pixels=bytes(colour) * 16) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200)))
    near = Neighbour(picture=blue.digest, label="b", similarity=-0.5)
    similar = Neighbours(picture=red.digest, label="a", nearest=(near,))
    drawn = Drawing(caption="a green square", picture=blue.digest, real=green.digest)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_evaluation(1, Evaluation(loss=2.0, samples=(similar,), pictures=(red,)), 1)
    ledger.record_evaluation(2, Evaluation(loss=2.0, samples=(drawn,), pictures=(green,)), 1)
    told = get(dashboard, "/api/samples").json()
    assert told["moments"] == [
        {"step": 1, "samples": [similar.model_dump(mode="json")]},
        {"step": 2, "samples": [drawn.model_dump(mode="json")]},
    ]
    assert told["pictures"] == sorted([red.digest, green.digest]), "a page need not ask for what is not here"
    found = get(dashboard, f"/api/pictures/{red.digest}.webp")
    assert (found.status_code, found.headers["content-type"]) == (200, "image/webp")
    assert "max-age=31536000" in found.headers["cache-control"]
    with Image.open(io.BytesIO(found.content)) as picture:
        assert (picture.format, picture.size) == ("WEBP", (4, 4))
        assert picture.convert("RGB").tobytes() == red.pixels
    again = get(dashboard, f"/api/pictures/{red.digest}.webp", If_None_Match=found.headers["etag"])
    assert again.status_code == 304
    assert get(dashboard, f"/api/pictures/{blue.digest}.webp").status_code == 404
    assert get(dashboard, "/api/pictures/..%2F..%2Fledger.webp").status_code in (404, 422)


def test_a_badge_tells_status_and_step(dashboard: Dashboard, tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite")
    root = ElementTree.fromstring(get(dashboard, "/badge.svg").content)
    assert [text.text for text in root.iter(f"{SVG}text")] == ["demo", "starting · step 3"]
    ends = [float(text.get("x", 0)) + float(text.get("textLength", 0)) for text in root.iter(f"{SVG}text")]
    assert ends[1] < float(root.get("width", 0))
    assert ends[0] < float(list(root.iter(f"{SVG}text"))[1].get("x", 0))


def test_the_loss_chart_keeps_its_colours_under_the_policy_it_comes_with(dashboard: Dashboard, tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite")
    answer = get(dashboard, "/loss.svg")
    root = ElementTree.fromstring(answer.content)
    assert [len((line.get("points") or "").split()) for line in root.iter(f"{SVG}polyline")] == [3, 3]
    (style,) = root.iter(f"{SVG}style")
    digest = base64.b64encode(hashlib.sha256((style.text or "").encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert not [element for element in root.iter() if element.get("style")]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_shared_picture_has_the_size_that_its_tags_promise(
    dashboard: Dashboard, tmp_path: Path, steps: int
) -> None:
    fill(tmp_path / "ledger.sqlite", steps=steps)
    picture = Image.open(io.BytesIO(get(dashboard, "/card.png").content))
    page = get(dashboard, "/").text
    tags = dict(re.findall(r'<meta property="(og:\S+)" content="([^"]*)">', page))
    assert (tags["og:image:width"], tags["og:image:height"]) == tuple(str(size) for size in picture.size)
    assert tags["og:image"] == f"{dashboard.url}/card.png"
    assert tags["og:description"].endswith(
        f"Global step {steps} of 100, by {min(steps, 1)} volunteer{'s' * (not steps)} so far."
    )


def test_shared_links_lead_to_the_address_at_which_the_page_was_reached(dashboard: Dashboard) -> None:
    page = get(dashboard, "/", Host="tunnel.example.org", X_Forwarded_Proto="https").text
    assert '<meta property="og:image" content="https://tunnel.example.org/card.png">' in page


def test_no_address_is_more_than_a_text(dashboard: Dashboard) -> None:
    assert "<script>alert" not in get(dashboard, "/", Host='x"><script>alert(1)</script>').text
    tags = ElementTree.fromstring(
        f"<head>{sharing_tags(dashboard._state(), HOSTILE_ADDRESS)}</head>".replace('">', '"/>')
    )
    assert {tag.tag for tag in tags} == {"meta", "link"}
    assert f"{HOSTILE_ADDRESS}card.png" in [tag.get("content") for tag in tags]


@pytest.mark.parametrize("path", PATHS)
def test_who_has_a_picture_already_gets_it_from_a_cache(dashboard: Dashboard, tmp_path: Path, path: str) -> None:
    fill(tmp_path / "ledger.sqlite")
    answer = get(dashboard, path)
    # Where the page's address stands in it others must not be given what somebody else asked for.
    whose = "private" if answer.text.count("http://127.0.0.1") or path.endswith(".pdf") else "public"
    assert re.fullmatch(rf"{whose}, max-age=\d+", answer.headers["cache-control"])
    tag = answer.headers["etag"]
    for header in (tag, f'"other", W/{tag}'):  # a proxy that compresses makes it a weak one
        again = get(dashboard, path, If_None_Match=header)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert get(dashboard, path, If_None_Match='"other"').status_code == 200


def test_a_picture_is_drawn_once_however_many_ask(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = (f"picture {number}".encode() for number in range(10))
    monkeypatch.setattr(pictures, "card", lambda *_: next(drawn))
    assert [get(dashboard, "/card.png").content for _ in range(3)] == [b"picture 0"] * 3


def test_a_fault_of_ours_is_answered_with_the_security_headers_too(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "card", None)
    answer = get(dashboard, "/card.png")
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_what_is_too_old_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(10))
    kept = Recent(lambda: next(numbers), 0.0)
    assert (kept(), kept()) == (0, 1)
    kept = Recent(lambda: next(numbers), 60.0)
    assert (kept(), kept()) == (2, 2)


def test_nobody_has_a_certificate_who_gave_nothing(dashboard: Dashboard, tmp_path: Path) -> None:
    answer = get(dashboard, "/people/QmNobody/certificate.svg")
    assert (answer.status_code, list(answer.json())) == (404, ["message"])
    fill(tmp_path / "ledger.sqlite", ["Asha", "Olena"])
    assert "Olena" in get(dashboard, "/people/p1/certificate.svg").text


def test_losses_of_any_size_are_drawn(dashboard: Dashboard, tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite", steps=2, loss=1e300)
    for path in ("/loss.svg", "/card.png"):
        assert get(dashboard, path).status_code == 200
    assert b"nan" not in get(dashboard, "/loss.svg").content
