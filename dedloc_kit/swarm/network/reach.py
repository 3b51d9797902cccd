"""Whether others can reach this peer: members of the swarm try it before its node starts.

The asked peer opens one TCP connection to the address from which it sees the asker, at the port that the asker
names, and reads a secret there. It sends nothing, it connects to no host that anybody names, and it says only
whether the secret was right: nobody can make it scan others or its own network.

Relays stay off. A client connects to every full peer by itself and two clients exchange nothing; between two peers
behind firewalls hivemind's relays brought no connection about, and a full peer would carry strangers' traffic.
"""

import asyncio
import ipaddress
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from hivemind.dht import DHTNode
from hivemind.p2p import P2P, P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo
from hivemind.utils.multiaddr import Multiaddr
from pydantic import Field

from dedloc_kit.machine.dialling import first_bytes
from dedloc_kit.records.record import Base64, Record
from dedloc_kit.swarm.network.bounds import BoundedP2P
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, RecordService

ANSWER_SECONDS = 10.0
ASKED_PEERS = 3
BUSY_PAUSES = (0.0, 2.0, 4.0)
"""Seconds before each try to get an answer from a peer that is busy."""
PER_MINUTE, PER_MINUTE_AND_HOST = 300, 30
"""Connections that one peer makes on request; a class of volunteers may share one address."""
LOOK_SECONDS = 1.0
"""Between two looks at the connections, on behalf of others."""
CLOSED = "so it only makes outgoing connections, which is enough to train"

Create = Callable[..., Awaitable[P2P]]
Vouch = Callable[[str, str, int], str]
"""The signed word that a peer was reached at a host and port; empty from whose word does not count."""


@dataclass(frozen=True)
class Reach:
    """How this peer takes part, and why."""

    client_mode: bool
    text: str = ""
    """One sentence for the person at the machine; empty if that is what was asked for."""
    uncertain: bool = False
    """Nobody could tell, so that this is only the safe choice."""
    host: str | None = None
    """The address under which the asked peers reached this one."""
    words: tuple[str, ...] = ()
    """Of those who say that the organizer signed that it did; once the node starts only the right one, for the others:
    see `Gate.vouched`."""


class Question(Record):
    """Can you reach me at this port of the address from which you see me?"""

    port: Annotated[int, Field(ge=1, le=65535)]
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """What is to be read there."""


class Reply(Record):
    verdict: Literal["reached", "unreached", "busy"]
    host: Annotated[str, Field(max_length=45)]
    """Where the asked peer sees the asker."""
    word: Base64 = ""
    """The organizer's signed word that it has reached the asker."""


class Hosts:
    """From where the peers are seen that are connected to this one; cheap, however many strangers ask something."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p, self._hosts = p2p, dict[str, str]()
        self._looked = -LOOK_SECONDS
        self._look: asyncio.Task[None] | None = None

    async def of(self, peer: str) -> str:
        """Empty if there is no direct connection over IPv4."""
        for _ in range(2):  # a look that is under way may have begun before it came
            if peer not in self._hosts or time.monotonic() > self._looked + LOOK_SECONDS:
                if self._look is None or self._look.done():
                    self._look = asyncio.create_task(self._look_again())
                await asyncio.shield(self._look)
        return self._hosts.get(peer, "")

    async def _look_again(self) -> None:
        await asyncio.sleep(self._looked + LOOK_SECONDS - time.monotonic())
        self._looked = time.monotonic()
        self._hosts = {p.peer_id.to_base58(): host for p in await self._p2p.list_peers() if (host := seen_host(p))}


class Reachability(RecordService[Question, Reply]):
    """Served by every full peer: connects back to those who ask."""

    name = "reach"
    question, reply = Question, Reply

    def __init__(self, p2p: P2P, vouch: Vouch) -> None:
        self._hosts, self._vouch = Hosts(p2p), vouch
        self._connections: deque[tuple[float, str]] = deque()

    async def answer(self, peer: str, question: Question) -> Reply:
        host = await self._hosts.of(peer)
        if not host:
            raise ValueError("only who is directly connected over IPv4 can be connected back to")
        if not self._may_connect(host):
            return Reply(verdict="busy", host=host)
        if await first_bytes(host, question.port, 32) != question.secret.encode():
            return Reply(verdict="unreached", host=host)
        return Reply(verdict="reached", host=host, word=self._vouch(peer, host, question.port))

    def _may_connect(self, host: str) -> bool:
        now = time.monotonic()
        while self._connections and self._connections[0][0] < now - 60.0:
            self._connections.popleft()
        of_this_host = sum(host == other for _, other in self._connections)
        if len(self._connections) >= PER_MINUTE or of_this_host >= PER_MINUTE_AND_HOST:
            return False
        self._connections.append((now, host))
        return True


def seen_host(peer: PeerInfo) -> str | None:
    """From where a connected peer is seen, if its connection is a direct one over IPv4; not what it says itself."""
    for address in map(str, peer.addrs):
        _, kind, host, *_rest = address.split("/")
        if kind == "ip4" and "p2p-circuit" not in address:
            return str(ipaddress.IPv4Address(host))
    return None


async def serve(run_id: str, vouch: Vouch, _dht: object, node: DHTNode) -> None:
    """Answer others from now on; runs in the process of a full peer's node."""
    await Endpoint(node.p2p, run_id).add(Reachability(node.p2p, vouch))


async def find_out(
    run_id: str, host: str, port: int, peers: Sequence[str], create: Create = BoundedP2P.create
) -> Reach:
    """Ask some of these peers (addresses at which somebody answers) to connect to us; takes up to some seconds.

    :param create: as `P2P.create`, for a run whose peers answer only those whom they know

    Listens on `host` and `port` meanwhile, which may be a held one. Raises OSError if it is not free.
    """
    secret = secrets.token_hex(16)
    door = _Door(secret.encode())
    async with await asyncio.get_running_loop().create_server(lambda: door, host, port, reuse_port=True):
        answers = await _ask_all(run_id, peers, Question(port=port, secret=secret), create)
    # Nobody is believed to have come whom we have not seen.
    reached = [answer.host for answer in answers if answer.verdict == "reached"][: door.visits]
    if not answers:
        return Reach(
            client_mode=True,
            text=f"nobody could test whether others can reach this machine, {CLOSED}; if its port {port} is open, "
            "start it with --reachable",
            uncertain=True,
        )
    if 2 * len(reached) < len(answers):
        return Reach(client_mode=True, text=f"others cannot reach this machine (at port {port}), {CLOSED}")
    seen = Counter(reached).most_common(1)[0][0]
    return Reach(
        client_mode=False,
        text=f"others can reach this machine at {seen}, port {port}",
        host=seen,
        words=tuple(answer.word for answer in answers if answer.word),
    )


class _Door(asyncio.Protocol):
    """Gives a secret to whoever comes, counts them and reads nothing."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.visits = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.visits += 1
        transport.write(self._secret)
        transport.close()


async def _ask_all(run_id: str, peers: Sequence[str], question: Question, create: Create) -> list[Reply]:
    """What some of the peers answer, each asked once; those that do not know are left out."""
    try:
        p2p = await create(
            initial_peers=peers, dht_mode="client", no_listen=True, use_relay=False, startup_timeout=60.0
        )
    except P2PDaemonError:
        return []
    try:
        asked = list(dict.fromkeys(Multiaddr(address)["p2p"] for address in peers))[:ASKED_PEERS]
        answers = await asyncio.gather(*(_ask(Endpoint(p2p, run_id), peer, question) for peer in asked))
        return [answer for answer in answers if answer is not None]
    finally:
        await p2p.shutdown()


async def _ask(endpoint: Endpoint, peer: str, question: Question) -> Reply | None:
    for pause in BUSY_PAUSES:
        await asyncio.sleep(pause)
        try:
            answer = await endpoint.ask(peer, Reachability, question, ANSWER_SECONDS)
            ipaddress.IPv4Address(answer.host)
        except (NoAnswer, ValueError):  # gone, of another run, or nonsense: whatever it is, this peer tells nothing
            return None
        if answer.verdict != "busy":
            return answer
    return None
