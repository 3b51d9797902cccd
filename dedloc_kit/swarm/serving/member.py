"""A peer's place in a serving swarm: its node, who else is there, and the process's own way to answer and to ask."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from hivemind.p2p import P2P
from hivemind.utils import get_dht_time

from dedloc_kit.access.admission import Office
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.serving.offer import Serving
from dedloc_kit.swarm.membership.admission import serve
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.membership.notices import Membership, NoticeFollower, NoticeWriter
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import SERVING
from dedloc_kit.swarm.network.node import Node, addresses_of
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.forwarding import ForwardingService
from dedloc_kit.swarm.remote.greeting import Greeter
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.transfer.addressed import ContentService


@dataclass(frozen=True)
class Member:
    """A peer that is connected. What answers and asks lives in `loop`."""

    node: Node
    signer: Signer
    gate: Gate
    """Of the loop's thread."""
    loop: Loop
    endpoint: Endpoint
    caller: Caller
    """To others' services, by way of others if need be."""
    greeter: Greeter
    offers: Offers[Serving]
    source: str = ""
    """Who gives of the model without serving it: of a run that trains it its organizer."""

    @property
    def peer(self) -> str:
        return str(self.signer.peer)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others reach this peer; empty in client mode."""
        return addresses_of(self.node)

    @property
    def time(self) -> float:
        """By the clock of the directory."""
        return float(get_dht_time())

    @property
    def port(self) -> int:
        """The swarm's port of this machine; 0 in client mode."""
        return int(self.addresses[0].split("/")[4]) if self.addresses else 0

    def answer(self, services: Sequence[Service], *, forwards: bool) -> None:
        """Serve others from now on, whether they can dial this peer or not.

        :param forwards: also connect peers that cannot reach each other, if they reach this one
        """
        own: list[Service] = [*services, ForwardedService(self.greeter, services)]
        if forwards and not self.node.reach.client_mode:
            own.append(ForwardingService(self.endpoint, self.gate))
        for service in own:
            self.loop.run(self.endpoint.add(service))

    def donors(self) -> list[str]:
        """Who may give what it has of the model."""
        others = list(self.offers.others())
        return [*others, self.source] if self.source and self.source not in others else others

    def content(self, peer: str) -> AbstractAsyncContextManager[Stream]:
        """A stream to what a peer has of the model."""
        return self.caller.open(peer, ContentService)


@contextmanager
def member(
    swarm: SwarmConfig,
    peer: PeerConfig,
    initial_peers: Sequence[str],
    *,
    organizer: str | None,
    secret: str = "",
    preferred_port: int = 0,
    give_up: Callable[[Exception], None],
    mine: Callable[[], Serving | None] = lambda: None,
) -> Iterator[Member]:
    """Connect to the swarm and leave it at the end. Call it in a process's main thread, before it has others: it forks.

    Raises UserError with what is wrong and what to do.

    :param organizer: peer id of who began the swarm, as the invitation says; none if it is this peer
    :param give_up: called, in any thread, when the organizer does not want this peer here any more
    :param mine: what this peer says of itself
    """
    entry = Entry(
        *(swarm, peer, initial_peers, organizer, secret),
        may_start_alone=organizer is None,
        preferred_port=preferred_port,
    )
    node, signer = entry.start(entry.surroundings()), entry.signer
    office = Office(swarm, peer.folder, signer.peer) if organizer is None else None
    if office is not None:
        node.run_coroutine(partial(serve, swarm, office, signer))
    with ExitStack() as stack:
        stack.callback(node.shutdown)
        loop = stack.enter_context(Loop())
        gate = entry.gate.replica()
        p2p: P2P = loop.run(node.replicate_p2p(gate))
        stack.callback(lambda: loop.run(p2p.shutdown()))
        offers = Offers(SERVING, node, signer, initial_peers, mine)

        def tell(newer: Gate) -> None:
            loop.soon(gate.mirror, newer)

        membership: Membership
        if office is not None:
            membership = NoticeWriter(node, signer, offers.ignore, tell, office)
        else:
            membership = NoticeFollower(node, signer, offers.ignore, tell, entry.identity, give_up)
        offers.start()
        stack.callback(offers.stop)
        membership.start()
        stack.callback(membership.stop)
        endpoint, greeter = Endpoint(p2p, swarm.run_id), Greeter(gate, signer)
        caller = Caller(endpoint, greeter, lambda _: [p for p, each in offers.others().items() if each.forwards])
        source = gate.organizer if isinstance(swarm, RunConfig) else ""
        yield Member(node, signer, gate, loop, endpoint, caller, greeter, offers, source)
