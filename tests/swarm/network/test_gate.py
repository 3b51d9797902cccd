"""Nobody without a valid token is served anything: hostile clients that speak the real protocols, on loopback."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind import DHT
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import dht_pb2

from dedloc_kit.access.admission import Office, invite, revoke
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.admission import TOKEN_SECONDS, AccessAnswer, AccessRequest, Token
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.orders import Notice, shortened
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.swarm.averaging.service import AveragingService, Opening
from dedloc_kit.swarm.gathering.messages import Verdict
from dedloc_kit.swarm.gathering.service import MAX_VERDICT_BYTES, GatheringService
from dedloc_kit.swarm.membership.admission import Admission, request_access
from dedloc_kit.swarm.network.gate import Gate, NotAdmitted
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.reach import Question, Reachability
from dedloc_kit.swarm.network.service import Endpoint, decode, encode
from dedloc_kit.swarm.transfer.protocol import MAX_HEADER_BYTES, Header, Request
from dedloc_kit.swarm.transfer.service import TransferService
from tests.identities import an_identity
from tests.loopback_hub import loopback_hub
from tests.swarm.harness import Swarm, join, outside
from tests.tiny import tiny_run

RUN = tiny_run("private", access="invite")
HOUR = 3600.0
PATIENCE = 5.0
NOTHING: set[str] = set()
EVERYTHING = {"ping", "find", "store", "join a group", "round", "download of the state", "test of reachability"}


def token_of(signer: Signer, for_peer: str, **values: Any) -> bytes:
    now = time.time()
    defaults = {"run_id": RUN.run_id, "peer": for_peer, "name": "alice", "time": now, "expires": now + HOUR}
    return signer.sign(Token(**{**defaults, **values}))


# The gate by itself


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signer]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: Signer(an_identity(folder / name)) for name in ("organizer", "alice", "mallory")}


def gate_of(keys: dict[str, Signer], *, restricted: bool = True) -> Gate:
    return Gate(RUN.run_id, keys["organizer"].peer, keys["alice"], restricted=restricted)


def test_a_gate_admits_the_organizer_and_who_shows_its_own_token(keys: dict[str, Signer]) -> None:
    gate, alice = gate_of(keys), keys["alice"].peer
    assert gate.admits(keys["organizer"].peer)
    assert not gate.admits(alice)
    gate.admit(alice, token_of(keys["organizer"], alice))
    assert gate.admits(alice)
    assert not gate.admits(keys["mallory"].peer)


@pytest.mark.parametrize(
    ("signed_by", "values"),
    [
        ("mallory", {}),
        ("organizer", {"run_id": "other-0123456789abcdef"}),
        ("organizer", {"peer": "QmSomebodyElse"}),
        ("organizer", {"time": time.time() - 2 * HOUR, "expires": time.time() - HOUR}),
    ],
    ids=["forged", "of another run", "of another peer", "expired"],
)
def test_a_gate_believes_no_token_that_is(keys: dict[str, Signer], signed_by: str, values: dict[str, Any]) -> None:
    gate, mallory = gate_of(keys), keys["mallory"].peer
    gate.follow(b"", Notice(run_id=RUN.run_id, time=time.time()))
    with pytest.raises(NotAdmitted):
        gate.admit(mallory, token_of(keys[signed_by], mallory, **values))
    assert not gate.admits(mallory)


def test_tokens_age_only_while_the_organizer_is_heard_of(keys: dict[str, Signer]) -> None:
    gate, alice, died = gate_of(keys), keys["alice"].peer, time.time() - 5 * HOUR
    late = token_of(keys["organizer"], alice, time=died - 60, expires=died - 60 + TOKEN_SECONDS)
    gate.admit(alice, late)
    assert gate.admits(alice), "the organizer has been dead for hours, and the run goes on"
    gate.follow(b"", Notice(run_id=RUN.run_id, time=time.time()))
    assert not gate.admits(alice), "the organizer is back, and has not renewed it"


def test_a_replica_of_a_gate_has_its_token_and_notice_and_gets_the_next_ones(keys: dict[str, Signer]) -> None:
    gate, alice, mallory = gate_of(keys), keys["alice"].peer, keys["mallory"].peer
    gate.follow(token_of(keys["organizer"], alice), Notice(run_id=RUN.run_id, time=time.time()))
    replica = gate.replica()
    assert (replica.token, replica.notice, replica.organizer) == (gate.token, gate.notice, gate.organizer)
    assert not replica.admits(mallory)
    replica.admit(mallory, token_of(keys["organizer"], mallory))
    assert (replica.admits(mallory), gate.admits(mallory)) == (True, False), "each knows its own peers"
    gate.follow(b"", Notice(run_id=RUN.run_id, time=time.time() + 1, refused=shortened([mallory])))
    assert replica.admits(mallory)
    replica.mirror(gate)
    assert not replica.admits(mallory)


@pytest.mark.parametrize("restricted", [True, False])
def test_who_is_refused_is_out_and_may_come_back_when_the_organizer_wants(
    keys: dict[str, Signer], restricted: bool
) -> None:
    gate, alice = gate_of(keys, restricted=restricted), keys["alice"].peer
    gate.admit(alice, token_of(keys["organizer"], alice))
    gate.follow(b"", Notice(run_id=RUN.run_id, time=100.0, refused=shortened([alice])))
    assert not gate.admits(alice)
    gate.follow(b"", Notice(run_id=RUN.run_id, time=99.0))
    assert not gate.admits(alice), "an older notice is no news"
    gate.follow(b"", Notice(run_id=RUN.run_id, time=101.0))
    assert gate.admits(alice)


def test_a_call_that_is_under_way_ends_when_its_peer_is_refused(keys: dict[str, Signer]) -> None:
    async def serve() -> None:
        gate, alice = gate_of(keys, restricted=False), keys["alice"].peer
        began = asyncio.Event()

        async def call() -> None:
            with gate.serving(alice):
                began.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(call())
        await began.wait()
        gate.follow(b"", Notice(run_id=RUN.run_id, time=100.0, refused=shortened([alice])))
        with pytest.raises(asyncio.CancelledError):
            await task

    in_own_loop(serve())


# A real coordinator, and clients that come with something wrong


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm(RUN, tmp_path_factory.mktemp("swarm")) as swarm:
        coordinator = swarm.coordinator()
        (coordinator.config.folder / INVITATION_FILE).write_text(swarm.invitation.model_dump_json())
        yield swarm


def folder_of(swarm: Swarm) -> Path:
    return swarm.peers[0].config.folder


async def asked(p2p: P2P, swarm: Swarm, secret: str = "") -> AccessAnswer:
    answer = await request_access(p2p, swarm.invitation.organizer, RUN.run_id, secret)
    assert answer is not None
    return answer


async def served(p2p: P2P, swarm: Swarm, token: bytes) -> set[str]:
    """What the coordinator serves to whoever shows this token, with the stubs and messages of honest peers."""
    organizer, prefix = PeerID.from_base58(swarm.invitation.organizer), RUN.run_id
    for service in ("directory", "averager"):
        door = f"{prefix}::access::{service}"
        with suppress(Exception):
            call = p2p.call_protobuf_handler(organizer, door, BytesValue(value=token), BytesValue)
            await asyncio.wait_for(call, PATIENCE)
    directory = ServicerBase.__dict__["get_stub"].__get__(None, DHTProtocol)(p2p, organizer)  # its own needs a node
    endpoint, leader = Endpoint(p2p, prefix), swarm.invitation.organizer
    key = DHTID.generate("anything").to_bytes()

    async def ping() -> bool:
        return bool((await directory.rpc_ping(dht_pb2.PingRequest())).peer.node_id)

    async def find() -> bool:
        return bool((await directory.rpc_find(dht_pb2.FindRequest(keys=[key]))).results)

    async def store() -> bool:
        request = dht_pb2.StoreRequest(
            keys=[key], subkeys=[DHTProtocol.IS_REGULAR_VALUE], values=[b"\xa1x"], in_cache=[False]
        )
        request.expiration_time.append(time.time() + 60)
        return len((await directory.rpc_store(request)).store_ok) == 1  # whether it is taken is another question

    async def join_a_group() -> bool:
        async with endpoint.open(leader, GatheringService, join(prefix).to_bytes()) as stream:
            return Verdict.from_bytes(await stream.receive(MAX_VERDICT_BYTES)).verdict == "no"

    async def average() -> bool:
        opening = Opening(group="ab" * 20, introduction=b"x")
        async with endpoint.open(leader, AveragingService, encode(opening)) as stream:
            return len(await stream.receive(1000)) > 0

    async def download() -> bool:
        asked = encode(Request(what="state", end=2**22))
        async with endpoint.open(leader, TransferService, asked) as stream:
            return (await stream.receive_record(Header, MAX_HEADER_BYTES)).answer == "here"

    async def reach() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            question = Question(port=listener.getsockname()[1], secret="0" * 32)
            return bool((await endpoint.ask(leader, Reachability, question, PATIENCE)).verdict)

    async def works(attempt: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        try:
            return await asyncio.wait_for(attempt(), PATIENCE)
        except Exception:  # refused, one way or another
            return False

    attempts = {"ping": ping, "find": find, "store": store, "join a group": join_a_group}
    attempts |= {"round": average, "download of the state": download, "test of reachability": reach}
    results = await asyncio.gather(*map(works, attempts.values()))
    return {name for name, result in zip(attempts, results, strict=True) if result}


async def served_in_the_end(p2p: P2P, swarm: Swarm, token: bytes) -> set[str]:
    """As `served`; what a busy machine did not answer in time is asked again."""
    found: set[str] = set()
    until = time.monotonic() + 30.0
    while not found >= EVERYTHING and time.monotonic() < until:
        found |= await served(p2p, swarm, token)
    return found


@pytest.mark.soak
def test_with_a_token_everything_is_served_and_without_a_valid_one_nothing(swarm: Swarm, tmp_path: Path) -> None:
    organizer = Signer(an_identity(folder_of(swarm) / IDENTITY_FILE))
    mallory, alice = Signer(an_identity(tmp_path / "mallory")), Signer(an_identity(tmp_path / "alice"))
    now = time.time()
    bad = {
        "no token": b"",
        "nonsense": b"\xc1" * 100,
        "expired": token_of(organizer, mallory.peer, time=now - 2 * HOUR, expires=now - HOUR),
        "forged": token_of(mallory, mallory.peer),
        "of another run": token_of(organizer, mallory.peer, run_id="other-0123456789abcdef"),
        "of another peer": token_of(organizer, alice.peer),
    }

    async def try_all(p2p: P2P) -> dict[str, set[str]]:
        found = {kind: await served(p2p, swarm, token) for kind, token in bad.items()}
        return {**found, "good": await served_in_the_end(p2p, swarm, token_of(organizer, mallory.peer))}

    found = outside(swarm, try_all, tmp_path / "mallory")
    good = found.pop("good")
    assert found == dict.fromkeys(bad, NOTHING)
    assert good >= EVERYTHING, "the same calls of an honest peer are answered"


@pytest.mark.soak
def test_a_kicked_peer_is_served_nothing_any_more_though_its_token_is_valid(swarm: Swarm, tmp_path: Path) -> None:
    organizer, mallory = (
        Signer(an_identity(folder_of(swarm) / IDENTITY_FILE)),
        Signer(an_identity(tmp_path / "mallory")),
    )
    token = token_of(organizer, mallory.peer)

    async def before_and_after(p2p: P2P) -> tuple[set[str], set[str], AccessAnswer]:
        before = await served_in_the_end(p2p, swarm, token)
        OrderBook(folder_of(swarm)).kick(mallory.peer, "mallory", "it lied (global step 3)")
        until = time.monotonic() + 30.0
        while (after := await served(p2p, swarm, token)) and time.monotonic() < until:
            await asyncio.sleep(0.2)
        return before, after, await asked(p2p, swarm)

    before, after, answer = outside(swarm, before_and_after, tmp_path / "mallory")
    assert before >= EVERYTHING
    assert after == NOTHING
    assert answer == AccessAnswer(denial="kicked", why="it lied (global step 3)")


@pytest.mark.soak
def test_a_code_brings_a_token_to_the_peer_that_shows_it_and_later_ones_without_it(
    swarm: Swarm, tmp_path: Path
) -> None:
    alice = Signer(an_identity(tmp_path / "alice"))
    code = invite(folder_of(swarm), "alice", days=1)

    async def come(p2p: P2P) -> list[AccessAnswer]:
        answers = [await asked(p2p, swarm, secret) for secret in ("", "x", code[:-4] + "AAAA", code, "")]
        revoke(folder_of(swarm), "alice")
        return [*answers, await asked(p2p, swarm, code), await asked(p2p, swarm)]

    without, nonsense, forged, *good, revoked, later = outside(swarm, come, tmp_path / "alice")
    assert (without.denial, nonsense.denial, forged.denial) == ("no code", "unreadable", "forged")
    for answer in good:
        author, token = alice.open(Token, answer.token)
        assert (author, token.peer, token.name) == (swarm.invitation.organizer, alice.peer, "alice")
        assert token.expires == pytest.approx(time.time() + TOKEN_SECONDS, abs=60)
    assert revoked == later == AccessAnswer(denial="revoked")


@pytest.mark.soak
def test_a_directory_of_hivemind_itself_does_not_get_in(swarm: Swarm) -> None:
    with pytest.raises(Exception, match="bootstrap failed"):
        DHT(initial_peers=list(swarm.invitation.peers), start=True, client_mode=True, no_listen=True)


@pytest.mark.soak
def test_a_request_for_another_run_or_none_at_all_brings_no_token(swarm: Swarm) -> None:
    async def come(p2p: P2P) -> AccessAnswer:
        organizer, service = PeerID.from_base58(swarm.invitation.organizer), f"{RUN.run_id}::admission"
        for nonsense in (b"", b"\xc1", b"x" * 5000, encode(AccessRequest(run_id="other-0123456789abcdef"))[:-1]):
            with pytest.raises(Exception, match=r"."):
                await p2p.call_protobuf_handler(organizer, service, BytesValue(value=nonsense), BytesValue)
        asked = BytesValue(value=encode(AccessRequest(run_id="other-0123456789abcdef")))
        answer = await p2p.call_protobuf_handler(organizer, service, asked, BytesValue)
        return AccessAnswer.parse(decode(answer.value))

    assert outside(swarm, come) == AccessAnswer(denial="other run")


# Accounts on the Hub


def test_an_account_is_looked_up_once_and_its_token_is_kept_nowhere(
    tmp_path: Path, keys: dict[str, Signer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny_run("members", access={"who": "hub", "accounts": ["asha"]})

    async def somewhere(_peer: str) -> str:
        return "192.0.2.1"

    admission = Admission(run, Office(run, tmp_path, keys["organizer"].peer), keys["organizer"], somewhere)

    def asked(secret: str) -> AccessAnswer:
        question = AccessRequest(run_id=run.run_id, secret=secret)
        return in_own_loop(admission.answer(keys["alice"].peer, question))

    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.names = {"hf_asha": "asha", "hf_mallory": "mallory"}
        assert [asked(secret).denial for secret in ("", "hf_mallory", "hf_x")] == [
            "no token",
            "not listed",
            "token refused",
        ]
        hub.failing.set()
        assert asked("hf_asha").denial == "hub down"
        hub.failing.clear()
        assert keys["alice"].open(Token, asked("hf_asha").token)[1].name == "asha"
        hub.failing.set()
        assert asked("").token, "who was let in needs neither the token nor the Hub again"
    assert "hf_asha" not in caplog.text
    assert all(b"hf_asha" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
