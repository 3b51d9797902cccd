"""What two ends of a forwarded stream say of themselves, without a network."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.orders import Notice, shortened
from dedloc_kit.swarm.network.service import decode, encode
from dedloc_kit.swarm.remote.greeting import Greeter, Greeting, as_long_as_admitted
from dedloc_kit.swarm.remote.tls import Certificate
from tests.swarm.network.test_service import RUN_ID, Place


class Three:
    """Alice reads what Bob says, who is invited, or Mallory, who is not."""

    def __init__(self, folder: Path) -> None:
        organizer = Place(folder, "organizer")
        self.alice, self.bob, self.mallory = (Place(folder, name, organizer) for name in ("alice", "bob", "mallory"))
        for place in (self.alice, self.bob):
            organizer.invite(place)

    def said(self, by: Place) -> bytes:
        return Greeter(by.gate, by.signer).write(self.alice.signer.peer, "echo", Certificate().der)

    @contextmanager
    def refusing(self, place: Place) -> Iterator[None]:
        for refused in ([place.signer.peer], []):
            self.alice.gate.follow(b"", Notice(run_id=RUN_ID, time=time.time(), refused=shortened(refused)))
            if refused:
                yield


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Three:
    return Three(tmp_path_factory.mktemp("three"))


def test_a_greeting_says_who_speaks_and_about_what(three: Three) -> None:
    said = three.said(three.bob)
    read = Greeter(three.alice.gate, three.alice.signer).read(said)
    assert (read.peer, read.service) == (three.bob.signer.peer, "echo")
    assert read.certificate == Greeting.parse(decode(said)).certificate
    with pytest.raises(ValueError, match="another peer"):
        Greeter(three.bob.gate, three.bob.signer).read(said)


def test_nobody_is_heard_who_has_no_token_or_another_ones(three: Three) -> None:
    his = Greeting.parse(decode(three.said(three.mallory)))
    for token in (b"", three.bob.gate.token):
        with pytest.raises(ValueError, match=r"Token|token"):
            Greeter(three.alice.gate, three.alice.signer).read(encode(his.model_copy(update={"token": token})))


def test_who_was_sent_away_is_neither_heard_nor_served(three: Three) -> None:
    async def serve() -> None:
        with as_long_as_admitted(three.alice.gate, three.bob.signer.peer):
            raise AssertionError("it is served")

    with three.refusing(three.bob):
        with pytest.raises(ValueError, match="sent away"):
            Greeter(three.alice.gate, three.alice.signer).read(three.said(three.bob))
        with pytest.raises(ConnectionAbortedError):
            in_own_loop(serve())
