"""A peer's place among trainers and hosts of experts: what it says of itself, how it answers others and asks them."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

from hivemind.p2p import P2P
from hivemind.utils import get_dht_time

from dedloc_kit.experts.bank import Bank
from dedloc_kit.records import HostOffer
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.computing import Computing
from dedloc_kit.swarm.experts.hosts import Hosts
from dedloc_kit.swarm.experts.offer import layers_of
from dedloc_kit.swarm.experts.service import ExpertService, Limits
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import HOSTS
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.service import Endpoint, Service
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.forwarding import ForwardingService
from dedloc_kit.swarm.remote.greeting import Greeter
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.remote.own import WithOwn
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.remote.turns import Turns

THROUGH = 4
"""Peers that a host names through whom it can be called."""


class ExpertMember:
    """One peer. It answers, if it holds experts, in a thread of its own, and asks hosts, itself among them.

    :param known: addresses of the peers that this one joined through
    :param bank: the experts that it holds; none if it hosts nothing
    :param form: in which tokens and gradients travel
    :param failed: told which host has failed, and how, in any thread
    """

    def __init__(
        self,
        run: RunConfig,
        node: Node,
        signer: Signer,
        profile: Profile,
        known: Sequence[str],
        bank: Bank | None,
        form: Form,
        failed: Callable[[str, str], object],
    ) -> None:
        assert run.experts is not None
        self._run, self._settings, self._node, self._signer = run, run.experts, node, signer
        self._profile, self._bank, self._form, self._failed = profile, bank, form, failed
        self._state: Literal["joining", "online", "leaving"] = "joining"
        self._gate = Gate(node.gate.run_id, node.gate.organizer, signer, restricted=node.gate.restricted)
        self.offers = Offers(HOSTS, node, signer, known, self.offer)

    def say(self, state: Literal["online", "leaving"]) -> None:
        """Let the others know at once; who is leaving gets no new calls."""
        self._state = state
        self.offers.tell()

    def follow(self) -> None:
        """Take over who may take part from the node's gate; call it now and then."""
        self._loop.soon(self._gate.follow, self._node.gate.token, self._node.gate.notice)

    @contextmanager
    def serving(self, limits: Limits | None = None) -> Iterator[RemoteExperts]:
        """Answer others, and say so; gives the experts of all hosts."""
        with ExitStack() as stack:
            self._loop = stack.enter_context(Loop())
            self._gate.follow(self._node.gate.token, self._node.gate.notice)
            p2p: P2P = self._loop.run(self._node.replicate_p2p(self._gate, "experts"))
            stack.callback(lambda: self._loop.run(p2p.shutdown()))
            endpoint, greeter = Endpoint(p2p, self._run.run_id), Greeter(self._gate, self._signer)
            own: list[Service] = []
            if self._bank is not None:
                turns = Turns()
                own.append(ExpertService(self._run, self._bank, turns, self._form, limits or Limits()))
                computing = Computing(turns)
                computing.start()
                stack.callback(computing.stop)
                computing.ready.wait()
            opener = WithOwn(Caller(endpoint, greeter, self._forwarders), self._signer.peer, tuple(own))
            own.append(ForwardedService(greeter, tuple(own)))
            if not self._profile.client_mode:
                own.append(ForwardingService(endpoint, self._gate))
            for each in own:
                self._loop.run(endpoint.add(each))
            hosts = Hosts(opener, self._settings, self._everyone, self._failed)
            following = self._loop.start(hosts.follow())
            stack.callback(following.cancel)
            self.offers.start()
            stack.callback(self.offers.stop)
            self.say("online")
            yield RemoteExperts(self._loop, hosts, self._settings.grid[1], self._form)

    def offer(self) -> HostOffer:
        """What this peer says of itself."""
        profile, names = self._profile, [] if self._bank is None else self._bank.names
        return HostOffer(
            run_id=self._run.run_id,
            state=self._state,
            layers=layers_of(names, self._settings.grid),
            step=0 if self._bank is None else min(self._bank.steps(names), default=0),
            through=self._through() if profile.client_mode else (),
            forwards=not profile.client_mode,
            client_mode=profile.client_mode,
            addresses=profile.addresses,
            reached=profile.reached,
            device=profile.device,
            name=profile.name,
            team=profile.team,
            session=profile.session,
            time=get_dht_time(),
        )

    def _everyone(self) -> dict[str, HostOffer]:
        return {**self.offers.others(), self._signer.peer: self.offer()}

    def _through(self) -> tuple[str, ...]:
        """Who forwards, each host's own choice: they spread."""
        forwarding = [peer for peer, offer in self.offers.others().items() if offer.forwards]
        return tuple(self._spread(forwarding)[:THROUGH])

    def _forwarders(self, peer: str) -> list[str]:
        """Those that the host names, each trainer in an order of its own."""
        others = self.offers.others()
        named = [each for each in (others[peer].through if peer in others else ()) if each in others]
        return self._spread(named) + [each for each, offer in others.items() if offer.forwards and each not in named]

    def _spread(self, peers: Sequence[str]) -> list[str]:
        return sorted(peers, key=lambda peer: hashlib.sha256(f"{self._signer.peer} {peer}".encode()).digest())
