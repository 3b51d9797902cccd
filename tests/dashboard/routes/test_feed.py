"""The milestones, and the feed that tells them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from dedloc_kit.dashboard.live.milestones import Milestone, milestones
from dedloc_kit.dashboard.routes.feed import feed
from dedloc_kit.ledger import Contributor, Ledger
from tests.dashboard.runs import BEGAN, RUN, fill

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def reached(path: Path) -> dict[str, Milestone]:
    return {milestone.key: milestone for milestone in milestones(Ledger(path, read_only=True), 100)}


def test_a_run_that_has_not_begun_has_no_milestones(path: Path) -> None:
    Ledger(path).close()
    assert reached(path) == {}


def test_milestones_are_told_in_the_order_in_which_they_were_reached(path: Path) -> None:
    fill(path, [f"name {number}" for number in range(10)], steps=21)
    found = reached(path)
    assert list(found) == [
        *("first-step", "contributors-10", "loss-half-1", "loss-half-2", "loss-half-3"),
        *("progress-10", "loss-half-4", "progress-20"),
    ]
    assert found["progress-20"].title == "20 % done: global step 20 of 100"
    assert found["progress-20"].time == BEGAN + 60 * 20
    assert found["loss-half-2"].title == "The held-out loss has fallen to 2, less than 1/4 of what it was at first"


def test_the_last_step_is_told_once(path: Path) -> None:
    fill(path, steps=100)
    keys = list(reached(path))
    assert keys[-1] == "finished"
    assert "progress-100" not in keys
    assert "progress-90" in keys


def test_who_gave_to_an_earlier_ledger_was_there_at_the_first_step(path: Path) -> None:
    ledger = Ledger(path)
    ledger.adopt(Contributor(f"q{number}", "Asha", 64, 1, 0.0, 1e9) for number in range(10))
    ledger.close()
    fill(path, steps=2)
    assert reached(path)["contributors-10"].time == BEGAN + 60


def test_the_feed_is_valid_and_its_entries_keep_their_names(path: Path) -> None:
    fill(path, steps=10)
    first = list(reached(path).values())
    fill(path, steps=21)
    second = list(reached(path).values())
    entries = []
    for known, address in ((first, "http://here/"), (second, "https://tunnel.example.org/")):
        root = ElementTree.fromstring(feed(RUN, known, address))
        assert [root.findtext(f"{ATOM}{tag}") is not None for tag in ("id", "title", "updated")] == [True] * 3
        assert root.findtext(f"{ATOM}author/{ATOM}name") == "demo"
        assert {link.get("rel"): link.get("href") for link in root.findall(f"{ATOM}link")} == {
            "self": f"{address}feed.atom",
            "alternate": address,
        }
        entries.append({e.findtext(f"{ATOM}id"): e.findtext(f"{ATOM}updated") for e in root.iter(f"{ATOM}entry")})
    assert len(entries[0]) == len(first) > 0
    assert entries[0].items() <= entries[1].items()
    assert all(identifier and identifier.startswith("urn:uuid:") for identifier in entries[1])


def test_an_entry_that_is_told_in_other_words_is_the_same_entry() -> None:
    told = [feed(RUN, [Milestone("first-step", words, time)], "http://x/") for words, time in (("a", 1.0), ("b", 2.0))]
    first, second = (ElementTree.fromstring(text).findtext(f"{ATOM}entry/{ATOM}id") for text in told)
    assert first == second


@pytest.mark.parametrize("address", ['http://x"/><script>', "http://[::1]:8000/", "http://host/\u202e&"])
def test_no_address_breaks_the_feed(address: str) -> None:
    far = [Milestone("first-step", "<b>&", 1e300)]
    root = ElementTree.fromstring(feed(RUN, far, address))
    assert root.findtext(f"{ATOM}entry/{ATOM}title") == "<b>&"
