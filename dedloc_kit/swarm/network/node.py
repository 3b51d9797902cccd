"""The process of a peer's DHT node: hivemind's, behind our gate, and it keeps only what its keeper lets it."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.dht import node as hivemind_node
from hivemind.p2p import P2P, P2PDaemonError
from hivemind.utils.asyncio import switch_to_uvloop

from dedloc_kit.machine.dial_policy import Dials
from dedloc_kit.swarm.network.gate import Gate, GatedP2P
from dedloc_kit.swarm.network.keeper import DHTProtocol, Keeper
from dedloc_kit.swarm.network.reach import Reach, seen_host

HOSTS_SECONDS = 10.0

P = ParamSpec("P")
T = TypeVar("T")


def kept_alive(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Hold the running task of an asynchronous method.

    hivemind starts its tasks without keeping them, and asyncio only knows them weakly: the garbage collector may
    destroy one while it waits (seen with `get_visible_maddrs`), and its caller then waits for ever.
    """

    @wraps(method)
    async def held(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.current_task()
        assert task is not None
        _held.add(task)
        try:
            return await method(*args, **kwargs)
        finally:
            _held.discard(task)

    return held


_held: set[asyncio.Task[Any]] = set()


class Node(DHT):
    """hivemind's DHT node, behind a gate and with its tasks held until they are done.

    Others use `gate`, `reach`, `get`, `store`, `run_coroutine`, `shutdown`, `addresses_of` and, for services in another
    thread or process, `replicate_p2p`. The rest is for this folder, the tracker and the observer. New swarm logic uses
    the seams in `swarm/p2p/` instead.
    """

    def __init__(
        self, *, gate: Gate, keeper: Keeper, dials: Dials, reach: Reach, network: dict[str, Any], **options: Any
    ) -> None:
        """:param network: what the `P2P` is made with; `options` are those of hivemind's `DHT` and `DHTNode`"""
        self._keeper = keeper
        self.gate = gate
        """Each process of this peer has its own copy: see `Membership`."""
        self.dials = dials
        """Of the node's process."""
        self.reach = reach
        """How this peer takes part, and why; to be told to the person at the machine."""
        self._network = network
        self._averagers: P2P | None = None
        super().__init__(**options)

    def run(self) -> None:
        """As hivemind's, in the node's process; but hivemind's makes its P2P by itself, which has no gate."""
        loop = switch_to_uvloop()
        loop.run_until_complete(self._serve())
        loop.close()

    async def _serve(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hivemind_node.DHTProtocol = DHTProtocol  # it takes no other; this process has no other node
        calls = asyncio.Semaphore(0)
        asyncio.get_running_loop().add_reader(self._inner_pipe.fileno(), calls.release)
        try:
            gated = GatedP2P.behind(self.gate, "directory")
            p2p = await gated.create(initial_peers=self.initial_peers, **self._network)
            self._node = await DHTNode.create(
                initial_peers=self.initial_peers,
                num_workers=self.num_workers,
                record_validator=self._keeper,
                p2p=p2p,
                **self.kwargs,
            )
        except Exception as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        ending: asyncio.Task[Any] | None = None
        while ending is None:
            await calls.acquire()
            if self._inner_pipe.poll():
                method, arguments, named = self._inner_pipe.recv()
                task = asyncio.create_task(getattr(self, method)(*arguments, **named))
                ending = task if method == "_shutdown" else None
        await ending
        await p2p.shutdown()

    async def replicate_p2p(self, gate: Gate | None = None, process: str = "averager") -> P2P:
        """For what answers beside the directory, in a process or a thread of its own, which asks for it once.

        :param gate: that of a thread, which needs its own
        """
        daemon = self.run_coroutine(DHT._get_p2p_daemon_listen_maddr)
        return await GatedP2P.behind(gate or self.gate, process).replicate(daemon)

    async def averagers(self) -> P2P:
        """For asking others' averagers in the node's process, where there is none of its own."""
        if self._averagers is None:
            self._averagers = await GatedP2P.behind(self.gate, "averager").replicate(self._node.p2p.daemon_listen_maddr)
        return self._averagers

    def refused(self, timeout: float) -> Counter[str]:
        """How many records this node has refused since the last call, by reason."""
        found: Counter[str] = self.run_coroutine(_refused, return_future=True).result(timeout)
        return found

    _get = kept_alive(DHT._get)
    _store = kept_alive(DHT._store)
    _run_coroutine = kept_alive(DHT._run_coroutine)


async def _refused(node: Node, _: DHTNode) -> Counter[str]:
    return node._keeper.refused()


def addresses_of(node: DHT) -> tuple[str, ...]:
    """Where others reach this node, at most four addresses; empty in client mode."""
    if node.client_mode:
        return ()
    addresses = [str(address) for address in node.get_visible_maddrs(latest=True)]
    # A loopback address is of use only where there is no other.
    return tuple(sorted(addresses, key=lambda address: address.startswith("/ip4/127."))[:4])


def hosts_of(node: DHT) -> dict[str, str]:
    """From where this node sees those who are directly connected, by peer id; nothing if it does not tell soon."""
    try:
        hosts: dict[str, str] = node.run_coroutine(_hosts, return_future=True).result(HOSTS_SECONDS)
        return hosts
    except (OSError, P2PDaemonError):  # TimeoutError is an OSError
        return {}


async def _hosts(_dht: DHT, node: DHTNode) -> dict[str, str]:
    return {str(peer.peer_id): host for peer in await node.p2p.list_peers() if (host := seen_host(peer))}
