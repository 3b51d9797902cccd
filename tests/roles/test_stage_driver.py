"""Who only drives finds out that its key is at work on another machine as well."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, State, Warned
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.roles import supervision
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.twin import MAX_LEFT, Twin
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import STAGES
from dedloc_kit.swarm.remote.offers import LIFE_SECONDS, Offers
from tests.identities import an_identity
from tests.swarm.harness import PlainDHT, gate_of_all
from tests.swarm.pipeline.local_pipeline import RUN_ID, offer


class Driving:
    """One of those with a key: what it says, and what it sees of itself in a directory."""

    def __init__(self, dht: Any, signer: Signer, session: str, since: float) -> None:
        self.twin, self.silent = Twin[StageOffer](session, since), True
        self.offers = Offers(STAGES, dht, signer, (), self._said, self.twin)
        self.offers.connections = SimpleNamespace(keep=lambda seen: None)  # type: ignore[assignment]
        # A look is one turn: no thread is needed.
        self.offers.look = self._turn  # type: ignore[assignment,method-assign]

    def _said(self) -> StageOffer | None:
        at = get_dht_time()
        told = {"session": self.twin.session, "moved": self.twin.since, "time": at, "driven": int(1000 * at)}
        return None if self.silent else offer(stage=None, **told)

    def _turn(self, seconds: float = 0.0) -> None:
        self.offers._told_at = 0.0
        self.offers._turn()


@pytest.fixture
def dht(monkeypatch: pytest.MonkeyPatch) -> Any:
    dht: Any = PlainDHT()
    dht.gate = gate_of_all()
    dht.gate.run_id, dht.gate.notice = RUN_ID, SimpleNamespace(refuses=lambda peer: False)
    monkeypatch.setattr(supervision, "LOOK_SECONDS", 0.0)
    return dht


def test_whoever_drives_with_a_key_that_drives_elsewhere_waits_in_silence_until_the_other_has_left(
    dht: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LIFE_SECONDS", 2.0)
    signer, now = Signer(an_identity(tmp_path / "key")), get_dht_time()
    first, second = Driving(dht, signer, "a1", now - 60), Driving(dht, signer, "b1", now)
    first.silent = False
    events, waited = list[AnyEvent](), list[str]()
    look = second._turn

    def turn(seconds: float) -> None:
        if not waited:
            first._turn()
        look()

    monkeypatch.setattr(second.offers, "look", turn)

    def hear(event: AnyEvent) -> None:
        events.append(event)
        if isinstance(event, State):
            waited.append(event.text)
            first.offers.stop()

    supervision.await_driving_twin(second, threading.Event(), hear)  # type: ignore[arg-type]
    assert waited == ["waiting until the other machine with this identity.key has left"]
    assert any(isinstance(event, Warned) and "remove identity.key" in event.text for event in events)
    assert second.offers.told is None
    assert not first.twin.certain, "nothing was said that could hide its word"


def test_of_two_that_drive_with_one_key_the_later_one_gives_way_and_the_word_of_the_other_stays(
    dht: Any, tmp_path: Path
) -> None:
    signer, now = Signer(an_identity(tmp_path / "key")), get_dht_time()
    both = [Driving(dht, signer, session, now - age) for session, age in (("a1", 60), ("b1", 0))]
    for each in both:
        each.silent = False
    for _ in range(MAX_LEFT + 2):
        for each in both:
            each._turn()
    first, second = both
    events = list[AnyEvent]()
    supervision.Twin(first.twin, events.append).check()
    assert [type(event) for event in events] == [Warned], "it is told, once, that it goes on"
    with pytest.raises(UserError, match="this one gives way"):
        supervision.Twin(second.twin, events.append).check()
    first._turn()
    second.offers.stop()
    first.twin.forget()
    directory: Directory[StageOffer] = Directory(dht, STAGES, RUN_ID, reject=pytest.fail, seconds=LIFE_SECONDS)
    left = directory.look(peers=1, timeout=1.0)[signer.peer]
    assert left is not None
    assert left.session == "a1"


def test_what_a_killed_driver_left_is_waited_for_some_seconds_only(
    dht: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "TELL_SECONDS", 0.1)
    signer, now = Signer(an_identity(tmp_path / "key")), get_dht_time()
    killed, again = Driving(dht, signer, "a1", now - 60), Driving(dht, signer, "b1", now)
    killed.silent = False
    killed._turn()
    again.twin.since = get_dht_time()
    supervision.await_driving_twin(again, threading.Event(), lambda event: pytest.fail(f"{event}"))  # type: ignore[arg-type]


def test_a_session_that_holds_a_stage_comes_before_one_that_only_drives() -> None:
    now = get_dht_time()
    drives = Twin[StageOffer]("a1", now - 60)
    for spoke in range(MAX_LEFT + 1):
        drives.see(offer(stage=1, session="b1", moved=now, time=now + spoke))
    assert drives.second
