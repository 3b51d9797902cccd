"""What one who is not let in can do to those who are, and to newcomers: questions without end."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PContext, PeerID

from dedloc_kit.events import Warned
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records import INVITATION_FILE, AccessAnswer, AccessRequest, Invitation, Token
from dedloc_kit.run import RunConfig
from dedloc_kit.steering.access import Office, invite
from dedloc_kit.steering.codes import IDENTITY_FILE
from dedloc_kit.steering.guests import Admissions, Admitted, write_admissions
from dedloc_kit.swarm import admission as admission_module
from dedloc_kit.swarm.admission import (
    AT_ONCE,
    AT_ONCE_OF_AN_ADDRESS,
    LOOK_UPS_OF_AN_ADDRESS,
    QUESTIONS_OF_AN_ADDRESS,
    STRANGERS_QUESTIONS,
    Admission,
    ask,
)
from dedloc_kit.swarm.identity import Identity
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.swarm.transfer import decode, encode
from tests.swarm.harness import Swarm, wait_until
from tests.swarm.test_access import outside
from tests.tiny import tiny_run

BY_CODE = tiny_run("private", access="invite")
BY_ACCOUNT = tiny_run("members", access={"who": "hub", "accounts": ["asha"]})
ATTACKER, ELSEWHERE = "198.51.100.6", "203.0.113.7"


class Coordinator:
    """Its admission, asked as through libp2p: the peer's id and the address that it is seen at are facts."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.signer = Signer(Identity(folder / IDENTITY_FILE))
        self.run, self.folder = run, folder
        self._admission = Admission(run, Office(run, folder, self.signer.peer), self.signer)

    def asked(self, peer: str, secret: str, host: str) -> AccessAnswer:
        async def host_of(_peer: str) -> str:
            return host

        me = PeerID.from_base58(self.signer.peer)
        request = BytesValue(value=encode(AccessRequest(run_id=self.run.run_id, secret=secret)))
        context = P2PContext(handle_name="", local_id=me, remote_id=PeerID.from_base58(peer))
        return AccessAnswer.parse(decode(in_own_loop(self._admission.answer(host_of, request, context)).value))


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
    (there.folder / INVITATION_FILE).write_text(Invitation.of(there.run, (address,)).model_dump_json())
    return invite(there.folder, name, days=1, machines=machines)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm(BY_CODE, tmp_path_factory.mktemp("swarm")) as swarm:
        coordinator = swarm.coordinator()
        (coordinator.config.folder / INVITATION_FILE).write_text(swarm.invitation.model_dump_json())
        yield swarm


def test_a_code_that_is_passed_around_lets_in_as_many_machines_as_it_says_and_the_organizer_is_told(
    swarm: Swarm, tmp_path: Path
) -> None:
    code = invite(swarm.peers[0].config.folder, "alice", days=1, machines=3)
    signer = Signer(Identity(tmp_path / "reader"))

    def come(key: str) -> AccessAnswer:
        async def asks(p2p: P2P) -> Any:
            return await ask(p2p, swarm.invitation.organizer, BY_CODE.run_id, code)

        answer = outside(swarm, asks, Identity(tmp_path / key).path)
        assert isinstance(answer, AccessAnswer)
        return answer

    answers = [come(f"key{number}") for number in range(5)]
    assert [answer.denial for answer in answers] == [None, None, None, "too many machines", "too many machines"]
    assert signer.open(Token, answers[0].token)[1].name == "alice"
    assert come("key0").token, "who is in stays in"
    told = swarm.peers[0].wait_for(Warned, lambda event: "more machines wait" in event.text)
    assert "alice" in told.text
