"""What strangers can make of a swarm: a door through which nobody else gets, or a crowd that comes to a port."""

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import P2P, PeerID

from dedloc_kit.access.admission import Office, invite
from dedloc_kit.access.admitted_store import Admissions, Admitted, write_admissions
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Peers, Warned
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.machine import dial_policy
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.admission import AccessAnswer, AccessRequest, Reached, Token
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.membership import admission as admission_module
from dedloc_kit.swarm.membership.admission import (
    AT_ONCE,
    AT_ONCE_OF_AN_ADDRESS,
    LOOK_UPS_OF_AN_ADDRESS,
    QUESTIONS_OF_AN_ADDRESS,
    STRANGERS_QUESTIONS,
    Admission,
    request_access,
)
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network import connections
from dedloc_kit.swarm.network.connections import Connections, dial
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.network.reach import Reach
from tests.identities import an_identity
from tests.swarm.harness import Swarm, belief, gate_of, open_node, outside, progress, wait_until
from tests.swarm.hostile.client import Hostile, Raw
from tests.tiny import tiny_run

OPEN = tiny_run()
BY_CODE = tiny_run("private", access="invite")
BY_ACCOUNT = tiny_run("members", access={"who": "hub", "accounts": ["asha"]})
NOBODY = "QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"
ATTACKER, ELSEWHERE = "198.51.100.6", "203.0.113.7"


class Coordinator:
    """Its admission, asked as through libp2p: the peer's id and the address that it is seen at are facts."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.signer = Signer(an_identity(folder / IDENTITY_FILE))
        self.run, self.folder = run, folder
        self._hosts = dict[str, str]()
        self._admission = Admission(run, Office(run, folder, self.signer.peer), self.signer, self._host_of)

    async def _host_of(self, peer: str) -> str:
        return self._hosts[peer]

    def asked(self, peer: str, secret: str, host: str) -> AccessAnswer:
        self._hosts[peer] = host
        return in_own_loop(self._admission.answer(peer, AccessRequest(run_id=self.run.run_id, secret=secret)))


@pytest.fixture
def coordinator(tmp_path: Path) -> Callable[[RunConfig], Coordinator]:
    return lambda run: Coordinator(run, tmp_path)


def peer(number: int) -> str:
    """Some peer's id."""
    return str(PeerID(b"\x12\x20" + number.to_bytes(32, "big")).to_base58())


class Hub:
    """Answers no question before it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        monkeypatch.setattr(admission_module, "whose_token", self._whose)

    def _whose(self, token: str) -> tuple[str, frozenset[str], bool]:
        self.asked.append(token)
        assert self.answers.wait(60)
        return token.removeprefix("hf_"), frozenset(), True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(monkeypatch)
    yield hub
    hub.answers.set()


def test_junk_tokens_of_one_place_do_not_keep_a_newcomer_out(
    coordinator: Callable[[RunConfig], Coordinator], hub: Hub
) -> None:
    there = coordinator(BY_ACCOUNT)
    answers: list[AccessAnswer] = []

    def attack(number: int) -> None:
        answers.append(there.asked(peer(number), f"hf_junk{number}", ATTACKER))

    attackers = [threading.Thread(target=attack, args=(number,), daemon=True) for number in range(4 * AT_ONCE)]
    for attacker in attackers:
        attacker.start()
    waiting = len(attackers) - AT_ONCE_OF_AN_ADDRESS
    wait_until(lambda: len(hub.asked) == AT_ONCE_OF_AN_ADDRESS and len(answers) == waiting, "the attack has not begun")
    assert {answer.denial for answer in answers} == {"busy"}
    honest: list[AccessAnswer] = []
    newcomer = threading.Thread(
        target=lambda: honest.append(there.asked(peer(1000), "hf_asha", ELSEWHERE)), daemon=True
    )
    newcomer.start()
    wait_until(lambda: "hf_asha" in hub.asked, "the newcomer is not looked up while junk is")
    hub.answers.set()
    for thread in (newcomer, *attackers):
        thread.join(60)
    assert honest[0].token


def test_what_has_not_the_form_of_a_token_is_not_looked_up(
    coordinator: Callable[[RunConfig], Coordinator], hub: Hub
) -> None:
    hub.answers.set()
    there = coordinator(BY_ACCOUNT)
    for number, junk in enumerate(("x", "hf_", "Bearer hf_x", "hf_two\nlines", "hf_অ", " hf_x", "hf_" + "a" * 600)):
        assert there.asked(peer(number), junk, ATTACKER).denial == "token refused"
    assert not hub.asked


def test_one_place_can_have_only_so_many_tokens_looked_up_in_a_minute(
    coordinator: Callable[[RunConfig], Coordinator], hub: Hub
) -> None:
    hub.answers.set()
    there = coordinator(BY_ACCOUNT)
    for number in range(LOOK_UPS_OF_AN_ADDRESS + 5):
        there.asked(peer(number), f"hf_junk{number}", ATTACKER)
    assert len(hub.asked) == LOOK_UPS_OF_AN_ADDRESS
    assert there.asked(peer(1000), "hf_asha", ELSEWHERE).token


def test_who_asks_without_end_is_not_answered_and_others_are(
    coordinator: Callable[[RunConfig], Coordinator],
) -> None:
    there = coordinator(BY_CODE)
    members = {peer(number): Admitted(name="x", minted=1.0, until=1e11) for number in range(5000, 10_000)}
    write_admissions(there.folder, Admissions(peers=members))
    code = invite_in(there, "alice")
    one = [there.asked(peer(0), "x", ATTACKER).denial for _ in range(STRANGERS_QUESTIONS + 1)]
    assert one == ["unreadable"] * STRANGERS_QUESTIONS + ["busy"]
    many = [there.asked(peer(number), "", ATTACKER).denial for number in range(1, QUESTIONS_OF_AN_ADDRESS)]
    assert (many[0], many[-1]) == ("no code", "busy"), "another key brings no other share"
    assert there.asked(peer(2000), code, ELSEWHERE).token
    assert there.asked(peer(5000), "", ATTACKER).token, "who has been let in has a share of its own"


def invite_in(there: Coordinator, name: str, machines: int = 10) -> str:
    address = f"/ip4/192.0.2.1/tcp/9/p2p/{there.signer.peer}"
    invitation = Invitation.of(there.run, (address,)).signed(read_key(there.folder / IDENTITY_FILE))
    (there.folder / INVITATION_FILE).write_text(invitation.model_dump_json())
    return invite(there.folder, name, days=1, machines=machines)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm(BY_CODE, tmp_path_factory.mktemp("swarm")) as swarm:
        coordinator = swarm.coordinator()
        (coordinator.config.folder / INVITATION_FILE).write_text(swarm.invitation.model_dump_json())
        yield swarm


@pytest.mark.soak
def test_a_code_that_is_passed_around_lets_in_as_many_machines_as_it_says_and_the_organizer_is_told(
    swarm: Swarm, tmp_path: Path
) -> None:
    code = invite(swarm.peers[0].config.folder, "alice", days=1, machines=3)
    signer = Signer(an_identity(tmp_path / "reader"))

    def come(key: str) -> AccessAnswer:
        async def asks(p2p: P2P) -> Any:
            return await request_access(p2p, swarm.invitation.organizer, BY_CODE.run_id, code)

        answer = outside(swarm, asks, an_identity(tmp_path / key).path)
        assert isinstance(answer, AccessAnswer)
        return answer

    answers = [come(f"key{number}") for number in range(5)]
    assert [answer.denial for answer in answers] == [None, None, None, "too many machines", "too many machines"]
    assert signer.open(Token, answers[0].token)[1].name == "alice"
    assert come("key0").token, "who is in stays in"
    told = swarm.peers[0].wait_for(Warned, lambda event: "more machines wait" in event.text)
    assert "alice" in told.text


# Whom a peer dials


PERIOD = 2.0
"""In these tests a minute lasts so long."""
NAMES = 10


@pytest.fixture
def hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes started from now on and this process look and dial more often: it is the number of times that counts."""
    monkeypatch.setattr(dial_policy, "PERIOD", PERIOD)
    for name in ("REDIAL", "REDIAL_LOST", "LATER_DIAL"):
        monkeypatch.setattr(connections, name, 0.2)


@contextmanager
def victim() -> Iterator[tuple[int, list[float], list[bytes]]]:
    """A service that has nothing to do with the swarm: its port, when somebody came, and what they said to it."""
    visits: list[float] = []
    said: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def hear(visitor: socket.socket) -> None:
            with visitor:
                visitor.settimeout(30.0)
                with suppress(OSError):
                    visitor.sendall(b"220 this is a mail server, and nothing else\r\n")
                    said.append(visitor.recv(100))

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    visitor, _ = server.accept()
                    visits.append(time.monotonic())
                    threading.Thread(target=hear, args=(visitor,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], visits, said
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30.0)


@pytest.mark.soak
def test_ten_records_that_name_one_port_bring_one_connection_a_minute(
    tmp_path: Path, hastened: None, warned: list[str]
) -> None:
    config = PeerConfig(folder=tmp_path / "node", swarm_host="127.0.0.1")
    identity = an_identity(config.folder / "identity.key")
    node = open_node(config, identity, gate=gate_of(identity, OPEN.run_id))
    tracker = Tracker(node, Signer(identity), OPEN, (), Incidents(), belief())
    try:
        tracker.look_every(0.1)
        with victim() as (port, visits, said), Hostile(addresses_of(node), OPEN.run_id, tmp_path / "0") as mallory:
            names = [Hostile(addresses_of(node), OPEN.run_id, tmp_path / str(n)) for n in range(NAMES)]
            began = time.monotonic()
            tracker.start()
            while len(visits) < 3:
                assert time.monotonic() < began + 60.0, f"nobody is dialled at all: {warned}"
                records = [
                    name.signed(
                        Raw.under(
                            f"{OPEN.run_id}_progress",
                            name.signer.subkey,
                            progress(
                                run_id=OPEN.run_id, addresses=(f"/ip4/127.0.0.1/tcp/{port}/p2p/{name.peer}",)
                            ).model_dump(),
                            15.0,
                        )
                    )
                    for name in names
                ]
                assert all(mallory.do(mallory.store(*records)))
                time.sleep(0.5)
            assert len(tracker.others()) == NAMES, "all of them are believed to be there"
            assert len(visits) <= 2 + (time.monotonic() - began) / PERIOD, "each record brings one"
            assert not any(said), "nothing is said to who does not speak libp2p"
    finally:
        tracker.leave()
        node.shutdown()


@pytest.mark.soak
def test_who_names_a_port_of_a_private_network_has_nobody_dial_it(tmp_path: Path, hastened: None) -> None:
    config = PeerConfig(folder=tmp_path / "node", swarm_host="127.0.0.1", announce_host="8.8.8.8")
    node = open_node(config, an_identity(config.folder / "identity.key"))
    try:
        with victim() as (port, visits, _), victim() as (other, others_visits, _):
            here = f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"
            assert dial(node, {NOBODY: (here,)}).result(30.0) == {NOBODY: ()}
            assert not visits, "a run that is on the Internet has no business with this machine's own services"
            local = open_node(
                config.model_copy(update={"folder": tmp_path / "local", "announce_host": None}),
                an_identity(tmp_path / "local" / "identity.key"),
            )
            try:
                dial(local, {NOBODY: (f"/ip4/127.0.0.1/tcp/{other}/p2p/{NOBODY}",)})
                wait_until(lambda: bool(others_visits), "in a run on this machine it would have been dialled")
            finally:
                local.shutdown()
    finally:
        node.shutdown()


@pytest.mark.soak
def test_in_a_run_that_is_not_open_nobody_is_dialled_but_where_the_organizer_has_reached_it(
    swarm: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organizer = Signer(an_identity(swarm.peers[0].config.folder / IDENTITY_FILE))
    mallory, alice = Signer(an_identity(tmp_path / "mallory")), Signer(an_identity(tmp_path / "alice"))
    gate = Gate(BY_CODE.run_id, organizer.peer, alice, restricted=True)
    organizers = Gate(BY_CODE.run_id, organizer.peer, organizer, restricted=True)
    here, there = (f"/ip4/203.0.113.7/tcp/{port}/p2p/{mallory.peer}" for port in (80, 81))
    now, month = time.time(), 31 * 86400.0
    others = Reached(run_id="other-0123456789abcdef", peer=mallory.peer, host="203.0.113.7", port=80, time=now)
    word = organizers.vouch(mallory.peer, "203.0.113.7", 80)
    assert gate.vouched(mallory.peer, (here, there), word) == (here,)
    assert gate.vouched(organizer.peer, (here, there), "") == (here, there), "whose own word counts"

    def said(signer: Signer, **values: Any) -> str:
        return base64.b64encode(signer.sign(others.model_copy(update=values))).decode()

    bad = {
        "none": "",
        "nonsense": "AAAA",
        "no base64": "A",
        "its own": said(mallory, run_id=BY_CODE.run_id),
        "about another peer": organizers.vouch(alice.peer, "203.0.113.7", 80),
        "of another run": said(organizer),
        "old": said(organizer, run_id=BY_CODE.run_id, time=now - month),
    }
    assert {kind: gate.vouched(mallory.peer, (here, there), word) for kind, word in bad.items()} == dict.fromkeys(
        bad, ()
    )
    assert not gate.vouch(mallory.peer, "203.0.113.7", 80), "only the organizer's word counts"
    asked: list[dict[str, tuple[str, ...]]] = []

    def noted(_node: Any, peers: dict[str, tuple[str, ...]]) -> "Future[dict[str, tuple[str, ...]]]":
        asked.append(peers)
        return Future()

    monkeypatch.setattr(connections, "dial", noted)
    node: Any = SimpleNamespace(reach=Reach(client_mode=True))
    Connections(node, alice.peer, (), gate).keep(
        {mallory.peer: progress(addresses=(here, there), reached=bad["its own"])}
    )
    assert asked == [{mallory.peer: ()}]


@pytest.mark.soak
def test_who_comes_to_a_run_that_is_not_open_is_told_that_the_organizer_has_reached_it(
    swarm: Swarm, tmp_path: Path
) -> None:
    folder = swarm.peers[0].config.folder
    code = invite(folder, "bob", days=1)

    def entry(name: str, **settings: Any) -> Entry:
        config = PeerConfig(folder=tmp_path / name, swarm_host="127.0.0.1", **settings)
        return Entry(BY_CODE, config, swarm.invitation.peers, swarm.invitation.organizer, code)

    gate = Gate(BY_CODE.run_id, swarm.invitation.organizer, Signer(an_identity(tmp_path / "b.key")), restricted=True)
    for settings in ({}, {"client_mode": False}):
        bob = entry("bob", **settings)
        around = bob.surroundings()
        for _ in range(4):  # on a busy machine the organizer's answer may come too late
            around = bob.surroundings() if around.reach.client_mode else around
        assert not around.reach.client_mode
        address = f"/ip4/127.0.0.1/tcp/{around.port}/p2p/{bob.signer.peer}"
        assert gate.vouched(bob.signer.peer, (address,), around.reach.words[0]) == (address,)
    node = bob.start(around)
    known = swarm.invitation.peers
    tracker = Tracker(node, bob.signer, BY_CODE, known, Incidents(), belief())
    try:
        tracker.report(
            progress(
                run_id=BY_CODE.run_id, step=0, name="bob", addresses=addresses_of(node), reached=around.reach.words[0]
            ),
            0.5,
        )
        tracker.start()
        swarm.peers[0].wait_for(Peers, lambda event: any(peer.name == "bob" for peer in event.peers))
    finally:
        tracker.leave()
        node.shutdown()
