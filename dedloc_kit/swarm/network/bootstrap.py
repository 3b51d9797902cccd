"""A peer's place in the swarm: who answers, whether others reach it, and its node in the directory."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import Reached
from dedloc_kit.machine.dial_policy import Dials
from dedloc_kit.machine.dialling import answering, host_and_port, in_own_loop, number_of, own_address
from dedloc_kit.machine.private import write_private
from dedloc_kit.swarm.network.bounds import BoundedP2P
from dedloc_kit.swarm.network.gate import Gate, GatedP2P
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.keeper import Keeper, node_id_of
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.port import HeldPort
from dedloc_kit.swarm.network.reach import CLOSED, Reach, find_out, serve

# p2pd may take over 15 s on a loaded machine, hivemind's default limit.
STARTUP_TIMEOUT = 60.0
REPLICAS, ASKED_NODES = 4, 8
"""Nodes that hold a record, and nodes that are asked for it at most; hivemind's 5 and 20 cost more with many peers.
What a record says is said again every few seconds."""
ANY_ADDRESS = "0.0.0.0"
_WORD_FILE = "reached"


@dataclass(frozen=True)
class Surroundings:
    """What a peer has found out before its node starts."""

    living: list[str]
    """The addresses of others at which somebody answers."""
    held: HeldPort | None
    """The swarm's port; none in client mode."""
    reach: Reach
    dials: Dials

    @property
    def port(self) -> int:
        return 0 if self.held is None else self.held.number


def look_around(
    peer: PeerConfig,
    identity: Identity,
    initial_peers: Sequence[str],
    *,
    gate: Gate,
    may_start_alone: bool = False,
    preferred_port: int = 0,
) -> Surroundings:
    """Who answers, and whether they can reach this peer; forks nothing, so it may run in a thread.

    Unless the configuration says whether others can reach this peer, it asks some of `initial_peers` to try. Whoever
    has no peers to ask, or `may_start_alone`, is a full peer. `preferred_port` is taken if it is free and the
    configuration names none. Raises UserError if the port is taken or, unless it `may_start_alone`, nobody answers
    at `initial_peers`.
    """
    others = _others(initial_peers, identity)
    dials = _dials(peer, others, gate)
    others.sort(key=lambda address: address not in dials.chosen)  # who may have to vouch for us is asked
    living = in_own_loop(answering([a for a in others if dials.due(a.rpartition("/p2p/")[2], [a])]))
    if initial_peers and not living and not may_start_alone:
        raise _nobody_answers(others or initial_peers)
    held = None if peer.client_mode else _free_port(peer, preferred_port)
    reach = _reach(peer, 0 if held is None else held.number, living, may_start_alone, identity, gate)
    return Surroundings(living, held, reach, dials)


def start_node(
    peer: PeerConfig,
    identity: Identity,
    around: Surroundings,
    *,
    gate: Gate,
    may_start_alone: bool = False,
    again: bool = True,
) -> Node:
    """Start a DHT node, which forks; `again`, if nobody lets it in at once, for who accepts connections may be busy.

    The `gate` decides whom this peer serves and asks, and of which run it keeps records. Raises UserError if the
    identity or the port is in use, or nobody lets this peer in.
    """
    signer = Signer(identity)
    try:
        node = Node(
            gate=gate,
            keeper=Keeper(signer, gate.run_id, gate.organizer, gate.parts),
            dials=around.dials,
            reach=around.reach,
            initial_peers=around.living,
            start=True,
            node_id=node_id_of(identity.peer_id),
            num_replicas=REPLICAS,
            bucket_size=ASKED_NODES,
            # Each look would send all that it found to one more node, which verifies it; and what is cached is old.
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            strict=False,  # else anyone among them whose clock is 3 s off would keep us out
            client_mode=around.reach.client_mode,
            network={
                "identity_path": str(identity.path),
                # Who has just asked for a token found out then, and may seem to be still there. To look takes a p2pd.
                "check_if_identity_free": not (gate.token or identity.new),
                "startup_timeout": STARTUP_TIMEOUT,
                "use_relay": False,
                "use_auto_relay": False,
                **_listening(peer, around.port, around.reach),
            },
        )
    except (P2PDaemonError, RuntimeError, ValueError, TypeError) as error:
        if again and _unheard(error):
            return start_node(peer, identity, around, gate=gate, may_start_alone=may_start_alone, again=False)
        if may_start_alone and around.living and "already taken" not in str(error):
            return start_node(peer, identity, replace(around, living=[]), gate=gate)
        raise _explained(error, around.living) from error
    finally:
        if around.held is not None:
            around.held.let_go()
    if not around.reach.client_mode:
        node.run_coroutine(partial(serve, gate.run_id, gate.vouch))
    return node


def find_reach(peer: PeerConfig, run_id: str, peers: Sequence[str]) -> Reached:
    """Whether some of these peers can reach this machine at the configured port; no node is started.

    Raises UserError if the port is taken.
    """
    held = _free_port(peer, 0)
    try:
        reach = in_own_loop(find_out(run_id, peer.swarm_host, held.number, in_own_loop(answering(peers))))
    except OSError as error:
        raise _cannot_listen(peer.swarm_host, held.number, error) from None
    finally:
        held.let_go()
    return Reached(reachable=None if reach.uncertain else not reach.client_mode, text=reach.text)


def _others(initial_peers: Sequence[str], identity: Identity) -> list[str]:
    """These addresses without our own, of which others may have told us."""
    others = [address for address in initial_peers if not address.endswith(f"/p2p/{identity.peer_id}")]
    try:
        for address in others:
            host_and_port(address)
    except ValueError:
        raise _unreadable_address() from None
    return others


def _dials(peer: PeerConfig, others: Sequence[str], gate: Gate) -> Dials:
    """The user has chosen the organizer's addresses; whoever has none, or is the organizer, its own host."""
    chosen = [address for address in others if address.endswith(f"/p2p/{gate.organizer}")]
    own = peer.announce_host or (own_address() if peer.swarm_host == ANY_ADDRESS else peer.swarm_host)
    near = [host_and_port(address)[0] for address in chosen] or ([own] if own else [])
    return Dials(chosen, near)


def _as_member(gate: Gate, identity: Identity) -> Callable[..., Awaitable[P2P]]:
    """How to ask others before the node starts: by this peer's own name only where nobody else is answered."""
    if not gate.restricted:
        return BoundedP2P.create  # type: ignore[no-any-return]
    create = GatedP2P.behind(gate, "directory").create
    return partial(create, identity_path=str(identity.path), check_if_identity_free=False)


def _reach(
    peer: PeerConfig, port: int, living: Sequence[str], may_start_alone: bool, identity: Identity, gate: Gate
) -> Reach:
    told = peer.client_mode is False or bool(peer.announce_host)
    if peer.client_mode or may_start_alone or not living:
        return Reach(client_mode=bool(peer.client_mode))
    if told and not gate.restricted:
        # An address of which the asked peers may know nothing: they are told no hosts.
        announced = f"others can reach this machine at {peer.announce_host}, as you say" if peer.announce_host else ""
        return Reach(client_mode=False, text=announced)
    try:
        found = in_own_loop(find_out(gate.run_id, peer.swarm_host, port, living, _as_member(gate, identity)))
    except OSError as error:  # taken since we looked
        raise _cannot_listen(peer.swarm_host, port, error) from None
    return _vouched_for(found, port, told, identity, gate) if gate.restricted else found


def _vouched_for(found: Reach, port: int, told: bool, identity: Identity, gate: Gate) -> Reach:
    """In a run that is not open others look for a peer only where the organizer has reached it, now or, while it is
    away, the last time.

    :param told: whether the user says that others can reach this peer
    """
    me, kept = str(identity.peer_id), identity.path.parent / _WORD_FILE
    words = [*found.words, *_lines_of(kept)]
    for word in words if found.host else ():
        if gate.vouched(me, [f"/ip4/{found.host}/tcp/{port}/p2p/{me}"], word):
            with suppress(OSError):
                write_private(kept, word)
            return replace(found, client_mode=False, words=(word,))
    found = replace(found, words=())
    text = f"the coordinator has not reached this machine (at port {port}), so that others do not try"
    if told:
        return Reach(client_mode=False, text=text, uncertain=True)
    return found if found.client_mode else Reach(client_mode=True, text=f"{text}, {CLOSED}")


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _listening(peer: PeerConfig, port: int, reach: Reach) -> dict[str, object]:
    if reach.client_mode:
        return {"dht_mode": "client", "no_listen": True}
    listening: dict[str, object] = {"host_maddrs": [f"/ip4/{peer.swarm_host}/tcp/{port}"]}
    if peer.announce_host:
        # Others dial no names, only numbers: where this peer was reached, or to which its name leads.
        numbers = [number for number in (reach.host, number_of(peer.announce_host)) if number]
        hosts = dict.fromkeys((peer.announce_host, *(number for number in numbers if not number.startswith("127."))))
        listening["announce_maddrs"] = [
            f"/{'ip4' if host.replace('.', '').isdigit() else 'dns4'}/{host}/tcp/{port}" for host in hosts
        ]
    elif reach.host and not reach.host.startswith("127."):
        # p2pd knows only the address of the default route. It may be that a router passes the port on to us: then
        # those outside need the router's address, those inside ours.
        inside = own_address() if peer.swarm_host == ANY_ADDRESS else peer.swarm_host
        hosts = dict.fromkeys(host for host in (reach.host, inside) if host)
        listening["announce_maddrs"] = [f"/ip4/{host}/tcp/{port}" for host in hosts]
    return listening


def _free_port(peer: PeerConfig, preferred: int) -> HeldPort:
    """The port that the configuration names, else the preferred one or a free one.

    Raises UserError if the named one is taken: p2pd would share it silently instead of complaining.
    """
    try:
        return HeldPort(peer.swarm_host, peer.swarm_port or preferred)
    except OSError as error:
        if preferred and not peer.swarm_port:
            return _free_port(peer, 0)
        raise _cannot_listen(peer.swarm_host, peer.swarm_port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    return UserError(
        f"the swarm cannot listen on {host}:{port} ({error.strerror}); choose another port with --swarm-port"
    )


def _unreadable_address() -> UserError:
    return UserError("the invitation holds an address that cannot be read; ask the organizer for a new one")


def _nobody_answers(peers: Sequence[str]) -> UserError:
    more = f", nor at the {len(peers) - 1} other addresses known" if len(peers) > 1 else ""
    return UserError(
        f"nobody answers at {peers[0]}{more}; is the coordinator running, and can this machine reach its port?"
    )


def _unheard(error: Exception) -> bool:
    """Has none of the peers answered that the node was to begin with?"""
    return "bootstrap" in str(error) or "initial_peers" in str(error)


def _explained(error: Exception, initial_peers: Sequence[str]) -> UserError:
    text = str(error)
    if "already taken" in text:
        return UserError("another process uses this identity right now; stop it, or join with another --folder")
    if "parse multiaddr" in text:
        return _unreadable_address()
    if initial_peers and _unheard(error):
        return _nobody_answers(initial_peers)
    return UserError(f"the swarm node did not start: {text}")
