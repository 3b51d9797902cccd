"""A verdict becomes an order, as if the organizer had given it."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dedloc_kit.auditing import Auditing
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.records import MAX_REASON, Checks
from dedloc_kit.steering.evidence import EVIDENCE_FOLDER
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.training.flat import CHUNK
from tests.swarm.audits.audited import pledged
from tests.tiny import tiny_run

MALLORY = "QmMallory"


def ended(*_: object) -> Future[None]:
    """A call into a process that has ended."""
    future = Future[None]()
    future.set_exception(RuntimeError("it has died"))
    return future


@contextmanager
def auditing(folder: Path, events: list[AnyEvent], **others: Any) -> Iterator[Auditing]:
    folder.mkdir(exist_ok=True)
    tracker = SimpleNamespace(others=lambda: others)
    state = SimpleNamespace(layout=SimpleNamespace(size=CHUNK + 5))
    me = SimpleNamespace(
        optimizer=SimpleNamespace(tracker=tracker, state=state),
        exchange=SimpleNamespace(host=SimpleNamespace(call=ended)),
        parameters=SimpleNamespace(size=CHUNK + 5),
        signer=SimpleNamespace(peer="QmOrganizer"),
        task=SimpleNamespace(loss=None),
    )
    made = Auditing(tiny_run(trust={"checks": "on"}), folder, None, cast(SwarmPeer, me), events.append)
    try:
        yield made
    finally:
        made.close()


def test_who_is_convicted_is_sent_away_with_the_reason_and_the_evidence(tmp_path: Path) -> None:
    events = list[AnyEvent]()
    with auditing(tmp_path, events, **{MALLORY: SimpleNamespace(name="mallory")}) as made:
        made._send_away(Verdict(MALLORY, "it lied (global step 3)", (pledged("mallory", 3),), last_passed=2))
        assert made.checks() == Checks(share=0.02)
    (kicked,) = OrderBook(tmp_path).read().kicked
    assert (kicked.peer, kicked.name, kicked.why) == (MALLORY, "mallory", "it lied (global step 3)")
    assert kicked.last_passed == 2
    assert events == [Warned(text="mallory (...lory) is sent away: it lied (global step 3)")]
    (evidence,) = (tmp_path / EVIDENCE_FOLDER).iterdir()
    assert "it lied" in evidence.read_text()


def test_a_reason_of_any_length_and_letters_and_a_peer_that_has_left_are_sent_away_as_well(tmp_path: Path) -> None:
    events = list[AnyEvent]()
    with auditing(tmp_path, events) as made:
        made._send_away(Verdict(MALLORY, "\x1b[2J" + "x" * 1000))
    (kicked,) = OrderBook(tmp_path).read().kicked
    assert kicked.why == " [2J" + "x" * (MAX_REASON - 4)
    assert "a volunteer" in events[0].text  # type: ignore[union-attr]


def test_orders_that_cannot_be_written_cost_a_warning(tmp_path: Path) -> None:
    events = list[AnyEvent]()
    with auditing(tmp_path, events) as made:
        (tmp_path / "orders.json").write_text("damaged")
        made._send_away(Verdict(MALLORY, "why"))
    assert not events
