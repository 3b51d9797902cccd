"""How a peer gets its token: it asks the coordinator, over an encrypted connection to the holder of the coordinator's
key, which libp2p proves. So no secret goes to anybody else, and the coordinator knows whose key it signs for.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.p2p import P2P, P2PDaemonError
from hivemind.utils import get_dht_time

from dedloc_kit.access.admission import Office, check_secret
from dedloc_kit.access.admitted_store import Admitted
from dedloc_kit.access.denials import Denied, explained
from dedloc_kit.access.hub_account import may_be_token, whose_token
from dedloc_kit.access.rate_limit import PerMinute
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.machine.dialling import answering, in_own_loop
from dedloc_kit.machine.private import write_private
from dedloc_kit.records.admission import TOKEN_SECONDS, AccessAnswer, AccessRequest, Denial, Token
from dedloc_kit.swarm.network.bounds import BoundedP2P
from dedloc_kit.swarm.network.gate import Gate, NotAdmitted
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.reach import Hosts
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, RecordService

ANSWER_SECONDS = 30.0
"""Longer than the coordinator waits for the Hub."""
AT_ONCE, AT_ONCE_OF_AN_ADDRESS = 6, 2
"""Newcomers whose accounts are looked up at the same time; asyncio has as many threads on two cores."""
ALL_LOOK_UPS, LOOK_UPS_OF_AN_ADDRESS = 240, 20
"""In a minute, as what follows; a class may share an address."""
ALL_STRANGERS_QUESTIONS, QUESTIONS_OF_AN_ADDRESS, STRANGERS_QUESTIONS = 3000, 120, 30
ALL_MEMBERS_QUESTIONS, MEMBERS_QUESTIONS = 30_000, 20
"""Of those who have been let in: each answer is signed."""
STARTUP_TIMEOUT = 60.0
_CURABLE: tuple[Denial, ...] = ("no code", "no token", "expired", "revoked")
"""By showing a secret."""
_TOKEN_FILE = "access-token"

HostOf = Callable[[str], Awaitable[str]]

_log = logging.getLogger(__name__)


class Admission(RecordService[AccessRequest, AccessAnswer]):
    """The coordinator's side; the one service that answers everyone: who has no token yet must be able to ask for one.

    Whoever has been let in has a share of its own. The others share what is there by machine and by address, so that
    however many questions come from one place, a newcomer from elsewhere is answered.

    :param host_of: from where a peer is seen
    """

    name, gated = "admission", False
    question, reply = AccessRequest, AccessAnswer

    def __init__(self, run: SwarmConfig, office: Office, signer: Signer, host_of: HostOf) -> None:
        self._run, self._office, self._signer, self._host_of = run, office, signer, host_of
        self._members = PerMinute(MEMBERS_QUESTIONS, ALL_MEMBERS_QUESTIONS)
        self._strangers = PerMinute(STRANGERS_QUESTIONS, ALL_STRANGERS_QUESTIONS)
        self._addresses = PerMinute(QUESTIONS_OF_AN_ADDRESS, ALL_STRANGERS_QUESTIONS)
        self._look_ups = PerMinute(LOOK_UPS_OF_AN_ADDRESS, ALL_LOOK_UPS)
        self._looking_up: Counter[str] = Counter()

    async def answer(self, peer: str, question: AccessRequest) -> AccessAnswer:
        try:
            if question.run_id != self._run.run_id:
                raise Denied("other run")
            return AccessAnswer(token=await self._token(peer, question.secret))
        except Denied as denied:
            return AccessAnswer(denial=denied.denial, why=denied.why)
        except UserError as error:  # of the organizer's folder, who is told by `NoticeWriter`: not for a volunteer
            _log.info("nobody can be let in: %s", error)
            return AccessAnswer(denial="busy")

    async def _token(self, peer: str, secret: str) -> bytes:
        """For a peer that may join; empty in an open run. Raises Denied."""
        admitted = await self._admitted(peer, secret)
        if admitted is None:
            return b""
        now = float(get_dht_time())
        expires = min(now + TOKEN_SECONDS, admitted.until)
        token = Token(run_id=self._run.run_id, peer=peer, name=admitted.name, time=now, expires=expires)
        return self._signer.sign(token)

    async def _admitted(self, peer: str, secret: str) -> Admitted | None:
        """Who was let in before needs no secret; a new one counts if the old one does not any more. None in an open
        run, where nobody is let in."""
        who = self._run.access.who
        known: Admitted | None = None
        denied = Denied("no token" if who == "hub" else "no code")
        try:
            known = self._office.known(peer)
        except Denied as refused:
            denied = refused
        if known is not None:
            _take(self._members, peer)
            return known
        host = await self._host_of(peer)
        _take(self._addresses, host)
        _take(self._strangers, peer)
        if who == "open" and denied.denial != "kicked":
            return None
        if denied.denial == "kicked" or not secret:
            raise denied
        admitted = await self._member(secret, host) if who == "hub" else self._office.invited(secret)
        try:
            self._office.admit(peer, admitted)
        except OSError as error:  # a full disk, of which others warn: it is let in, and asked again the next time
            _log.info("%s cannot be remembered: %s", peer, error)
        return admitted

    async def _member(self, secret: str, host: str) -> Admitted:
        if not may_be_token(secret):
            raise Denied("token refused")
        if self._looking_up.total() >= AT_ONCE or self._looking_up[host] >= AT_ONCE_OF_AN_ADDRESS:
            raise Denied("busy")
        _take(self._look_ups, host)
        self._looking_up[host] += 1
        try:
            account, organizations, _ = await asyncio.to_thread(whose_token, secret)
        finally:
            self._looking_up -= Counter([host])
        return self._office.member(account, organizations)


def _take(allowance: PerMinute, name: str) -> None:
    if not allowance.allows(name):
        raise Denied("busy")


async def serve(run: SwarmConfig, office: Office, signer: Signer, _dht: DHT, node: DHTNode) -> None:
    """Answer from now on; runs in the process of the coordinator's node."""
    await Endpoint(node.p2p, run.run_id).add(Admission(run, office, signer, Hosts(node.p2p).of))


async def request_access(p2p: P2P, organizer: str, run_id: str, secret: str) -> AccessAnswer | None:
    """Ask the coordinator for a token; none if it does not answer."""
    question = AccessRequest(run_id=run_id, secret=secret)
    try:
        return await Endpoint(p2p, run_id).ask(organizer, Admission, question, ANSWER_SECONDS)
    except NoAnswer as error:
        _log.info("the coordinator does not answer: %s", error)
        return None


async def ask_again(organizer: str, run_id: str, _dht: DHT, node: DHTNode) -> AccessAnswer | None:
    """The same in the process of a node, for the next token."""
    return await request_access(node.p2p, organizer, run_id, "")


def come_in(run: SwarmConfig, gate: Gate, identity: Identity, peers: Sequence[str], secret: str = "") -> None:
    """Get a token before this peer's node starts: from the coordinator, or that of the last session while the
    coordinator does not answer.

    In an open run it only asks whether this peer was sent away. Raises UserError if it is not let in.

    :param secret: a personal code or a token of the Hub; it stays here if the coordinator knows this peer already
    """
    answer = in_own_loop(_knock(run, gate, identity, peers, secret))
    if answer is not None:
        if answer.denial is not None:
            raise explained(answer.denial, answer.why)
        if gate.restricted:
            gate.hold(answer.token)
            keep_token(identity, answer.token)
    elif gate.restricted:
        with suppress(OSError, NotAdmitted):
            gate.hold((identity.path.parent / _TOKEN_FILE).read_bytes())
        if not gate.token:
            raise UserError("the coordinator does not answer, and only it can let this machine in; try again later")


def keep_token(identity: Identity, token: bytes) -> None:
    """For a session that begins while the coordinator is down."""
    with suppress(OSError):
        write_private(identity.path.parent / _TOKEN_FILE, token)


async def _knock(
    run: SwarmConfig, gate: Gate, identity: Identity, peers: Sequence[str], secret: str
) -> AccessAnswer | None:
    """What the coordinator answers, if it does."""
    there = await answering([address for address in peers if address.endswith(f"/p2p/{gate.organizer}")])
    if not there:
        return None
    try:
        p2p = await BoundedP2P.create(
            initial_peers=there,
            identity_path=str(identity.path),
            check_if_identity_free=not identity.new,
            dht_mode="client",
            no_listen=True,
            use_relay=False,
            startup_timeout=STARTUP_TIMEOUT,
        )
    except P2PDaemonError as error:
        if "already taken" in str(error):
            raise UserError(
                "another process uses this identity right now; stop it, or join with another --folder"
            ) from None
        return None
    try:
        answer = await request_access(p2p, gate.organizer, gate.run_id, "")
        if answer is None or not secret or answer.denial not in _CURABLE:
            return answer
        await asyncio.to_thread(check_secret, secret, run, gate.organizer)
        return await request_access(p2p, gate.organizer, gate.run_id, secret)
    finally:
        await p2p.shutdown()
