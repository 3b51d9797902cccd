"""A verdict becomes an order, as if the organizer had given it."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import cast

from dedloc_kit.coordinator.auditing import MAX_STEPS_AGO, Auditing
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.record import MAX_REASON
from dedloc_kit.steering.evidence import EVIDENCE_FOLDER
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.swarm.audits.equivocation import Equivocation, EquivocationService
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.peer import SwarmPeer
from tests.swarm.audits.audited import pledged
from tests.swarm.audits.test_equivocation import introduction, signer
from tests.swarm.harness import wait_until
from tests.tiny import tiny_run

MALLORY = "QmMallory"
STEP = 100


@contextmanager
def auditing(
    folder: Path, events: list[AnyEvent], found: "Queue[Equivocation | None] | None" = None, **others: SimpleNamespace
) -> Iterator[Auditing]:
    folder.mkdir(exist_ok=True)
    found = found or Queue()

    def call(asked: object, *_: object) -> Future[Equivocation]:
        """What the host hears of; at the end it is gone."""
        future = Future[Equivocation]()
        if asked is not EquivocationService.next:
            future.set_exception(RuntimeError("it has ended"))
            return future
        each = found.get()
        future.set_result(each) if each else future.set_exception(RuntimeError("it has ended"))
        return future

    tracker = SimpleNamespace(others=lambda: others)
    state = SimpleNamespace(layout=SimpleNamespace(size=CHUNK + 5))
    me = SimpleNamespace(
        optimizer=SimpleNamespace(tracker=tracker, state=state, step=STEP),
        exchange=SimpleNamespace(host=SimpleNamespace(call=call)),
        parameters=SimpleNamespace(size=CHUNK + 5),
        signer=SimpleNamespace(peer="QmOrganizer"),
        task=SimpleNamespace(loss=None, prepare=None),
    )
    made = Auditing(tiny_run(trust={"checks": "on"}), folder, None, cast(SwarmPeer, me), events.append)
    try:
        yield made
    finally:
        found.put(None)
        made.close()


def test_who_is_convicted_is_sent_away_with_the_reason_and_the_evidence(tmp_path: Path) -> None:
    events = list[AnyEvent]()
    with auditing(tmp_path, events, None, **{MALLORY: SimpleNamespace(name="mallory")}) as made:
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


def two_faces(author: str, step: int) -> Equivocation:
    signed = introduction(author, step), introduction(author, step, time=2.0)
    return Equivocation(signer(author).peer, step, signed)


def test_who_introduced_itself_in_two_ways_is_sent_away_but_not_for_what_is_long_ago(tmp_path: Path) -> None:
    """Who has both introductions could else show them for ever."""
    events, found = list[AnyEvent](), Queue[Equivocation | None]()
    with auditing(tmp_path, events, found) as made:
        for step in (STEP - MAX_STEPS_AGO, STEP + MAX_STEPS_AGO):
            found.put(two_faces("alice", step))
        for _ in range(2):
            found.put(two_faces("mallory", STEP + 1))
        found.put(two_faces("bob", STEP + 1))
        wait_until(lambda: len(events) > 1, "nobody was sent away")
        assert made.checks().convicted == 2
    kicked = OrderBook(tmp_path).read().kicked
    assert [each.peer for each in kicked] == [signer("mallory").peer, signer("bob").peer]
    assert kicked[0].why == f"it introduced itself to one round in two ways (global step {STEP + 1})"
    assert len(list((tmp_path / EVIDENCE_FOLDER).iterdir())) == 2
