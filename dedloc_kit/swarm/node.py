"""A peer's place in the DHT: its persistent identity and the hivemind node that listens or only dials out."""

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.multiaddr import Multiaddr

from dedloc_kit.errors import UserError
from dedloc_kit.run import PeerConfig

# p2pd may take over 15 s on a loaded machine, hivemind's default limit.
STARTUP_TIMEOUT = 60.0
DIAL_TIMEOUT = 10.0

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Identity:
    """A peer's RSA key, kept in one file: the same key names the peer and signs its records."""

    def __init__(self, path: Path) -> None:
        """Read the key, or make one. Raises UserError if the folder cannot be written."""
        self.path = path
        try:
            if not path.exists():
                _generate(path)
            data = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); choose another with --folder"
            ) from None
        try:
            self.peer_id = PeerID.from_identity(data)
            self.key = RSAPrivateKey.__new__(RSAPrivateKey)  # the constructor would generate a new key
            self.key.__setstate__({"_private_key": crypto_pb2.PrivateKey.FromString(data).data})
        except Exception:  # protobuf and cryptography raise a dozen different errors for a damaged file
            raise UserError(f"{path} is not a peer identity; move it away and a new one is made") from None


def _generate(path: Path) -> None:
    """Write a new key so that a killed process leaves either no file or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "key"
        P2P.generate_identity(str(fresh))
        os.replace(fresh, path)


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
    """hivemind's DHT node, with its tasks held until they are done."""

    _get = kept_alive(DHT._get)
    _store = kept_alive(DHT._store)
    _run_coroutine = kept_alive(DHT._run_coroutine)


def open_node(
    peer: PeerConfig, identity: Identity, initial_peers: Sequence[str], *, may_start_alone: bool = False
) -> Node:
    """Start a DHT node; records whose subkey names an owner are signed and verified by it.

    Raises UserError if the port is taken or, unless it `may_start_alone`, nobody answers at `initial_peers`.
    """
    listening: dict[str, object]
    if peer.client_mode:
        listening = {"client_mode": True, "no_listen": True}
    else:
        port = _free_port(peer.host, peer.port)
        listening = {"host_maddrs": [f"/ip4/{peer.host}/tcp/{port}"]}
        if peer.announce_host:
            protocol = "ip4" if peer.announce_host.replace(".", "").isdigit() else "dns4"
            listening["announce_maddrs"] = [f"/{protocol}/{peer.announce_host}/tcp/{port}"]
    try:
        return Node(
            initial_peers=list(initial_peers),
            start=True,
            identity_path=str(identity.path),
            record_validators=[RSASignatureValidator(identity.key)],
            startup_timeout=STARTUP_TIMEOUT,
            **listening,
        )
    except (P2PDaemonError, RuntimeError, ValueError, TypeError) as error:
        if may_start_alone and initial_peers:
            return open_node(peer, identity, ())
        raise _explained(error, initial_peers) from error


def addresses_of(node: DHT) -> tuple[str, ...]:
    """Where others reach this node, at most four addresses; empty in client mode."""
    return () if node.client_mode else tuple(str(address) for address in node.get_visible_maddrs(latest=True))[:4]


def dial(node: DHT, peer: str, addresses: Sequence[str]) -> None:
    """Connect to a peer at the addresses that it names, unless there is a connection already; in the background.

    Members of a group talk to each other directly, but they only know the addresses of whom they joined through;
    libp2p's own search among those often answers "routing: not found". Failing is no error here: a round will tell.
    """
    node.run_coroutine(partial(_dial, peer, tuple(addresses)), return_future=True)


async def _dial(peer: str, addresses: tuple[str, ...], _dht: DHT, node: DHTNode) -> None:
    # /p2p/ID at the end is how addresses are told, not how they are dialled.
    dialled = [Multiaddr(address.rpartition("/p2p/")[0]) for address in addresses]
    try:
        await asyncio.wait_for(node.p2p._client.connect(PeerID.from_base58(peer), dialled), DIAL_TIMEOUT)
    except Exception as error:  # runs in the node's process: only the log can tell
        _log.info("no connection to %s: %r", peer, error)


def _free_port(host: str, port: int) -> int:
    """A free port, or the given one if it is free: p2pd shares a taken port silently instead of complaining."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"the swarm cannot listen on {host}:{port} ({error.strerror}); choose another port with --swarm-port"
            ) from None
        return int(probe.getsockname()[1])


def _explained(error: Exception, initial_peers: Sequence[str]) -> UserError:
    text = str(error)
    if "already taken" in text:
        return UserError("another process uses this identity right now; stop it, or join with another --folder")
    if "parse multiaddr" in text:
        return UserError("the invitation holds an address that cannot be read; ask the organizer for a new one")
    if initial_peers and ("bootstrap" in text or "initial_peers" in text):
        return UserError(
            f"nobody answers at {initial_peers[0]}; is the coordinator running, and can this machine reach its port?"
        )
    return UserError(f"the swarm node did not start: {text}")
