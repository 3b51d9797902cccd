"""Every route, as its own description tells it, with whatever somebody may send it."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import fastjsonschema
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dedloc_kit.dashboard.http.login import Keys
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.records.invitation import INVITATION_FILE
from tests.dashboard.runs import HOSTILE_NAMES, RUN, fill
from tests.hang import HANG

ENDLESS = ("/api/events",)
EXAMPLES = 12
"""Requests to each operation."""
HOSTILE_TEXTS = (
    *HOSTILE_NAMES,
    *("", "0", "-1", "1", "1e400", "NaN", "Infinity", str(2**63), str(2**64), "9" * 400, "null", "true", "[]", "{}"),
    *("p0", "/", "//", "\\", "a/b", "..", "../../etc/passwd", "%00", "%2e%2e%2f", "?", "#", "&a=1", ";", "\x00", "\t"),
    *("'", '"', "' OR 1=1 --", "_%", "\r\nX-Injected: 1", "x" * 10_000, "İß😀"),
)
TEXTS = st.sampled_from(HOSTILE_TEXTS) | st.text(max_size=20)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
BODIES = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(TEXTS, PLAIN, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    (made / INVITATION_FILE).touch()  # a run was launched here
    return made


@pytest.fixture(scope="module")
def keys(folder: Path) -> Keys:
    return Keys(folder)


@pytest.fixture(scope="module")
def dashboard(folder: Path) -> Iterator[Dashboard]:
    ledger = folder / "ledger.sqlite"
    fill(ledger, HOSTILE_NAMES, samples=2**53 // 3)
    served = Dashboard(RUN, ledger, organizer=organizer.routes(folder, RUN.fingerprint))
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def description(dashboard: Dashboard) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(dashboard.url + "/api/openapi.json", timeout=HANG).json()
    return found


def operations(description: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if path not in ENDLESS
    ]


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """What the schema allows and what it does not, as text."""
    match schema:
        case {"anyOf": choices}:
            return st.one_of(*(values_of(choice) for choice in choices))
        case {"enum": choices}:
            return st.sampled_from([str(choice) for choice in choices]) | TEXTS
        case {"type": "integer"}:
            return st.integers(0, 300).map(str) | st.integers(-(2**70), 2**70).map(str) | TEXTS
    return TEXTS


def bodies_of(operation: dict[str, Any], description: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Anything, and what has the right keys and any values."""
    if "requestBody" not in operation:
        return st.none()
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    keys = description["components"]["schemas"][name]["properties"]
    return st.fixed_dictionaries(dict.fromkeys(keys, TEXTS)) | BODIES


@st.composite
def requests_to(
    draw: st.DrawFn, path: str, operation: dict[str, Any], bodies: st.SearchStrategy[Any]
) -> dict[str, Any]:
    """What `requests` is told; a parameter may be missing or come twice, or be one that nobody knows."""
    query = []
    for parameter in operation.get("parameters", []):
        value = draw(values_of(parameter["schema"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
        elif parameter["in"] == "query":
            query += [(parameter["name"], value)] * draw(st.sampled_from((0, 1, 1, 1, 1, 2)))
    query += draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=1))
    return {"url": path, "params": query, "json": draw(bodies)}


@cache
def validator(shape: str) -> Callable[[Any], Any]:
    # Python's regular expressions have no word for some of what JSON schemas have one for.
    schema = json.loads(shape, object_hook=lambda values: {key: values[key] for key in values if key != "pattern"})
    compiled: Callable[[Any], Any] = fastjsonschema.compile(schema)
    return compiled


def check(answer: requests.Response, operation: dict[str, Any], description: dict[str, Any]) -> None:
    """As the description says, and safe."""
    assert answer.status_code < 500 or str(answer.status_code) in operation["responses"], answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "x-injected" not in answer.headers
    if answer.status_code in (405, 307):
        return  # such a path is none of ours
    told = operation["responses"].get(str(answer.status_code))
    assert told is not None, f"{answer.status_code} is not in the description: {answer.text[:200]}"
    if answer.status_code == 304:
        return
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in told["content"], f"{kind} is not in the description"
    if kind == "application/json":
        assert not re.search(r"\b(NaN|Infinity)\b", re.sub(r'"(\\.|[^"\\])*"', "", answer.text))
        shape = json.dumps({**told["content"][kind]["schema"], "components": description["components"]})
        validator(shape)(json.loads(answer.text))
    elif kind.endswith("xml"):
        ElementTree.fromstring(answer.content)
    elif answer.request.url and answer.request.url.split("?")[0].endswith("/metrics"):
        assert list(text_string_to_metric_families(answer.text))


@pytest.mark.parametrize("logged_in", [False, True])
def test_every_answer_is_described_and_safe(
    dashboard: Dashboard, description: dict[str, Any], keys: Keys, logged_in: bool
) -> None:
    session, met = requests.Session(), set[tuple[str, int]]()
    if logged_in:
        session.cookies.set(f"organizer-{RUN.fingerprint}", keys.cookie())

    def fuzz(path: str, method: str, operation: dict[str, Any]) -> None:
        @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
        @given(requests_to(path, operation, bodies_of(operation, description)))
        def ask(request: dict[str, Any]) -> None:
            url = dashboard.url + request.pop("url")
            answer = session.request(method, url, **request, timeout=HANG, allow_redirects=False)
            check(answer, operation, description)
            met.add((method, answer.status_code))

        ask()

    for path, method, operation in operations(description):
        if path.startswith("/api/organizer") or not logged_in:
            fuzz(path, method, operation)
    assert (("post", 200) in met) == logged_in, "who is logged in sent something that made sense"


def test_the_description_knows_every_route(dashboard: Dashboard, description: dict[str, Any]) -> None:
    told = {(path, method.upper()) for path, method, _ in operations(description)}
    pages = ("/", "/people", "/people/{peer}", "/swarm", "/organizer", "/static", "/api/openapi.json", *ENDLESS)
    for route in dashboard._application().routes:
        for method in getattr(route, "methods", None) or ():
            path = getattr(route, "path", "")
            if method in ("GET", "POST", "PUT", "DELETE") and path not in pages:
                assert (path, method) in told
    for path, method, operation in operations(description):
        assert operation.get("summary"), f"{method} {path}"
        assert "429" in operation["responses"], f"{method} {path}"


def test_the_documentation_names_every_route(description: dict[str, Any]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    assert [path for path in description["paths"] if path not in text] == []


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_no_name_breaks_a_certificate_over_http(dashboard: Dashboard, name: str) -> None:
    path = f"/people/p{HOSTILE_NAMES.index(name)}/certificate.svg"
    root = ElementTree.fromstring(requests.get(dashboard.url + path, timeout=HANG).content)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
