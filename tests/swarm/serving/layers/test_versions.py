"""Which versions of a run's model there are says its organizer alone, and a server gives up none that users need."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.blocks.plans.plan import HELD, LOOK_ROUND, LayerRange, draw
from dedloc_kit.serving.config import ModelVersion
from dedloc_kit.serving.offer import Moving, Release, Serving
from dedloc_kit.swarm.network.kinds import RELEASE
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.serving.layers.changing import Change, beside, may_go
from dedloc_kit.swarm.serving.layers.releases import Releases
from dedloc_kit.swarm.serving.layers.versions import REMEMBERED, Versions, in_use
from dedloc_kit.swarm.transfer.addressed import ContentService
from dedloc_kit.swarm.transfer.store import Store
from tests.swarm.harness import RUN_ID, PlainDHT, a_signer
from tests.swarm.local_network import LocalNetwork
from tests.tiny import tiny_run

ORGANIZER, STRANGER = a_signer(1), a_signer(2)
CONFIG = {"model_type": "llama", "num_hidden_layers": 4}
SPAN = LayerRange(0, 2)
RUN = tiny_run()


def version(number: int) -> ModelVersion:
    return ModelVersion(model=f"tiny, global step {number}", config=CONFIG, manifest=f"{number:064x}")


OLD, NEW = version(1), version(2)


class Place:
    """A peer of a run that has heard nothing yet; the organizer gives what it has released."""

    def __init__(self, folder: Path) -> None:
        self.dht, self.given, self.rejected = PlainDHT(), Store(folder / "given"), list[str]()
        network = LocalNetwork()
        network.serve("organizer", ContentService(self.given.find))
        network.serve("me", ContentService())
        endpoint = network.endpoint("me")
        me: Any = SimpleNamespace(
            node=self.dht,
            gate=SimpleNamespace(organizer=ORGANIZER.peer),
            offers=SimpleNamespace(ignore=self.rejected.append),
            donors=lambda: ["organizer"],
            content=lambda peer: endpoint.open(peer, ContentService),
            loop=SimpleNamespace(run=asyncio.run),
        )
        self.store = Store(folder / "mine")
        self.versions = Versions(RUN, me, self.store)

    def released(self, *versions: ModelVersion, signer: Any = ORGANIZER, at: float = 0.0) -> tuple[ModelVersion, ...]:
        """What this peer knows after this was said."""
        values = Release(run_id=RUN.run_id, versions=tuple(v.digest for v in versions), time=at or time.time())
        key = RELEASE.key(Names(RUN.run_id))
        self.dht.store(key, signer.subkey, values.model_dump(), time.time() + 60.0)
        self.versions.look()
        return self.versions.known

    def give(self, *versions: ModelVersion) -> None:
        for each in versions:
            self.given.put(each.canonical().encode())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_organizers_newest_word_counts_and_neither_an_older_one_nor_a_strangers(place: Place) -> None:
    place.give(OLD, NEW, version(3))
    assert place.released(OLD, at=10.0) == (OLD,)
    assert place.released(NEW, OLD, at=20.0) == (NEW, OLD)
    assert place.released(OLD, at=15.0) == (NEW, OLD), "a record of before that somebody has kept"
    assert place.released(version(3), signer=STRANGER, at=30.0) == (NEW, OLD)
    assert place.store.find(NEW.digest) is not None, "it gives others what it has"


def test_the_training_may_have_gone_back_so_the_order_is_that_of_the_word(place: Place) -> None:
    place.give(OLD, NEW)
    assert place.released(NEW, at=10.0) == (NEW,)
    assert place.released(OLD, NEW, at=20.0) == (OLD, NEW)


def test_a_version_that_nobody_gives_or_that_is_none_is_not_known_and_is_asked_for_again(place: Place) -> None:
    place.give(OLD)
    place.released(OLD, at=10.0)
    assert place.released(NEW, OLD, at=20.0) == (OLD,)
    place.give(NEW)
    place.versions.look()
    assert place.versions.known == (NEW, OLD)
    nonsense: Any = SimpleNamespace(digest=place.given.put(b'{"model": "x", "config": {"auto_map": {}}}'))
    assert place.released(nonsense, at=30.0) == (NEW, OLD)


def test_only_so_many_are_remembered(place: Place) -> None:
    many = [version(number) for number in range(1, REMEMBERED + 3)]
    place.give(*many)
    for at, each in enumerate(many):
        place.released(each, at=float(at + 1))
    assert place.versions.known == tuple(reversed(many[-REMEMBERED:]))


def test_the_organizer_hears_whether_a_server_is_still_behind() -> None:
    dht = PlainDHT()
    releases = Releases(dht, ORGANIZER, RUN_ID, print)  # type: ignore[arg-type]
    assert not releases.behind(NEW.manifest)
    record = offer(0, 4, NEW)
    dht.store(Names(RUN_ID).records("serving"), STRANGER.subkey, record.model_dump(), time.time() + 60.0)
    assert not releases.behind(NEW.manifest)
    assert releases.behind(OLD.manifest)


class Seen:
    """What a server sees of the others."""

    def __init__(self, **others: Serving) -> None:
        self.seen, self.now = others, 0.0
        self._first: dict[tuple[str, object], float] = {}

    def others(self) -> dict[str, Serving]:
        return self.seen

    def first_seen(self, peer: str, what: object) -> float:
        return self._first.setdefault((peer, what), self.now)

    def tell(self) -> None:
        """Nobody hears it."""


def offer(begin: int, end: int, newest: ModelVersion, older: ModelVersion | None = None, **values: Any) -> Serving:
    told: dict[str, Any] = {"form": "float32", "state": "online", "client_mode": True, "addresses": ()}
    older_one = "" if older is None else older.manifest
    told |= {"begin": begin, "end": end, "version": newest.manifest, "older": older_one}
    return Serving(run_id=RUN_ID, device="CPU", name="x", time=1.0, **{**told, **values})


def used(**others: Serving) -> ModelVersion | None:
    return in_use((NEW, OLD), 4, others, Seen(**others))  # type: ignore[arg-type]


def test_users_take_the_newest_version_that_all_layers_are_served_with() -> None:
    assert used(a=offer(0, 4, OLD), b=offer(0, 2, NEW)) == OLD
    assert used(a=offer(0, 2, NEW, OLD), b=offer(2, 4, OLD)) == OLD
    assert used(a=offer(0, 2, NEW, OLD), b=offer(2, 4, NEW, OLD)) == NEW
    assert used(a=offer(0, 2, NEW), b=offer(2, 4, OLD)) is None
    assert used(a=offer(0, 4, version(9))) is None, "a version that the organizer has not named"
    assert used(a=offer(0, 2, NEW), b=offer(2, 4, NEW, state="joining"), c=offer(0, 4, OLD)) == OLD


def test_no_layer_of_the_version_that_users_use_is_given_up_unless_another_server_has_it() -> None:
    def may(*others: Serving, using: ModelVersion = OLD) -> bool:
        seen: Any = Seen(**{f"peer{n}": other for n, other in enumerate(others)})
        return may_go(SPAN, {OLD.manifest}, using.manifest, seen)

    assert not may()
    assert not may(offer(0, 1, OLD), offer(2, 4, OLD))
    assert not may(offer(0, 2, NEW)), "it serves them, but not to those who use the older version"
    assert not may(offer(0, 2, OLD, state="leaving"))
    assert may(offer(0, 1, OLD), offer(1, 4, NEW, OLD))
    assert may(using=NEW)


def test_of_two_versions_that_are_held_the_one_that_users_use_stays_beside_a_third() -> None:
    held: Any = [SimpleNamespace(version=NEW.manifest), SimpleNamespace(version=OLD.manifest)]
    assert beside(held, OLD.manifest, room=True) == (held[1],)
    assert beside(held, NEW.manifest, room=True) == (held[0],)
    assert beside(held, "", room=True) == (held[0],)
    assert beside(held, OLD.manifest, room=False) == ()


def test_a_server_changes_once_it_was_heard_of_and_none_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Any = Seen()

    def at(now: float) -> None:
        seen.now = now
        monkeypatch.setattr(time, "monotonic", lambda: now)

    first, second = sorted(("a", "b"), key=lambda name: draw(NEW.manifest, name))
    at(0.0)
    change = Change(second, seen)
    assert change.announced() is None
    assert not change.due(NEW.manifest, SPAN)
    said = change.announced()
    assert said is not None
    assert (said.version, said.begun) == (NEW.manifest, False)
    before = said.model_copy(update={"announced": 1e9})
    seen.seen = {first: offer(0, 2, OLD, moving=before)}
    at(LOOK_ROUND)
    assert not change.due(NEW.manifest, SPAN)
    for again in range(3):  # it says it again and again, and is first seen only once
        at(LOOK_ROUND + again)
        seen.seen = {first: offer(0, 2, OLD, moving=said.model_copy(update={"announced": float(again)}))}
        assert not change.due(NEW.manifest, SPAN)
    at(LOOK_ROUND + HELD)
    assert change.due(NEW.manifest, SPAN)
    begun = change.announced()
    assert begun is not None
    assert begun.begun
    change.over(failed=True)
    assert change.announced() is None
    assert not change.due(NEW.manifest, SPAN), "not at once again"
    assert change.announced() is None


def test_a_move_that_has_begun_is_waited_for_and_one_that_has_not_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(begin=2, end=4, announced=0.0)
    seen: Any = Seen(a=offer(0, 2, OLD, moving=moving.model_copy(update={"begun": True})))
    change = Change("b", seen)
    for now in (1.0, LOOK_ROUND + 1):
        seen.now = now
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert not change.due(NEW.manifest, SPAN)
    seen.seen = {"a": offer(0, 2, OLD, moving=moving)}
    assert change.due(NEW.manifest, SPAN)
