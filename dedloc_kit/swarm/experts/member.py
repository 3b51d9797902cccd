"""A peer's place among trainers and hosts of experts: what it says of itself, how it answers others and asks them."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from hivemind.p2p import P2P
from hivemind.utils import get_dht_time

from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import ExpertsState
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.machine.memory_model import HOST_BYTES_PER_PARAMETER
from dedloc_kit.records.experts import Assigned, HostOffer
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.checking import Checks, accused
from dedloc_kit.swarm.experts.computing import Computing
from dedloc_kit.swarm.experts.copies import Coder, CopyService
from dedloc_kit.swarm.experts.following import FETCH_SECONDS, Following, whom_to_ask
from dedloc_kit.swarm.experts.hosting import Hosting
from dedloc_kit.swarm.experts.hosts import Hosts
from dedloc_kit.swarm.experts.load import Load, read, told
from dedloc_kit.swarm.experts.offer import layers_of, names_in
from dedloc_kit.swarm.experts.placing import Holder, Plan, Planner, plan_of
from dedloc_kit.swarm.experts.service import ExpertService, Limits
from dedloc_kit.swarm.experts.standing import Told, standing
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
LOOK_SECONDS, LEAVE_SECONDS = 10.0, 15.0
"""For a look at who has what before anything is said to be here, and for the experts of a peer that leaves to go."""

NEW_SECONDS = 60.0
"""For which a host that has come stands in alone: many who come leave again at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Held:
    """What a peer hosts.

    :ivar room: bytes of memory for what it is assigned
    :ivar known: of the organizer: how an expert is that nobody has any more
    :ivar lines: of the organizer: bytes per second that others have sent, by peer id
    :ivar changed: told how many are kept here and of how many there are copies, when others are than before
    """

    keeping: Keeping
    room: int = 0
    known: Callable[[ExpertName], State] | None = None
    lines: Callable[[], Mapping[str, float | None]] = dict
    changed: Callable[[int, int], object] = lambda *_: None


class ExpertMember:
    """One peer. It answers, if it holds experts, in a thread of its own, and asks hosts, itself among them.

    :param known: addresses of the peers that this one joined through
    :param held: what it hosts; none if it hosts nothing
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
        held: Held | None,
        form: Form,
        failed: Callable[[str, str], object],
    ) -> None:
        assert run.experts is not None
        self._run, self._settings, self._node, self._signer = run, run.experts, node, signer
        self._profile, self._held, self._form, self._failed = profile, held, form, failed
        self._state: Literal["joining", "online", "leaving"] = "joining"
        self._load = Load()
        self._gate = node.gate.replica()
        self._assigned: Assigned | None = None
        self._planner: Planner | None = None
        self.offers = Offers(HOSTS, node, signer, known, self.offer)
        if held is not None and self._organizer == signer.peer:
            parameters = 3 * self._settings.width * self._settings.hidden
            self._planner = Planner(held.keeping.names, HOST_BYTES_PER_PARAMETER * parameters)

    def say(self, state: Literal["online", "leaving"]) -> None:
        """Let the others know at once; who is leaving gets no new calls."""
        self._state = state
        self.offers.tell()

    def follow(self) -> None:
        """Take over who may take part from the node's gate; call it now and then."""
        self._loop.soon(self._gate.mirror, self._node.gate)

    @contextmanager
    def serving(self, limits: Limits | None = None) -> Iterator[RemoteExperts]:
        """Answer others, and say so; gives the experts of all hosts."""
        with ExitStack() as stack:
            self._loop = stack.enter_context(Loop())
            self._gate.mirror(self._node.gate)
            p2p: P2P = self._loop.run(self._node.replicate_p2p(self._gate, "experts"))
            stack.callback(lambda: self._loop.run(p2p.shutdown()))
            endpoint, greeter = Endpoint(p2p, self._run.run_id), Greeter(self._gate, self._signer)
            own: list[Service] = []
            copies: CopyService | None = None
            if self._held is not None:
                turns, keeping = Turns(), self._held.keeping
                coder = Coder(keeping.bank.like(), self._settings.width, self._form, keeping.bank.experts_room)
                keeping.tell_in(coder.code)
                copies = CopyService(keeping, coder, self._may_hold)
                service = ExpertService(
                    self._run, keeping.bank, turns, self._form, limits or Limits(), self._signer.peer
                )
                self._load = service.load
                own += [service, copies]
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
            self._hosts = Hosts(opener, self._settings, self._everyone, self._failed)
            checks = Checks(self._hosts, self._signer.peer, self._settings.grid[1], self._form)
            following = self._loop.keep(self._hosts.follow())
            stack.callback(following.cancel)
            self.offers.start()
            stack.callback(self.offers.stop)
            if self._held is not None and copies is not None:
                self._following = Following(self._held.keeping, opener, coder, self._hosts.failed)
                self._host(self._held, copies, stack)
            self.say("online")
            yield RemoteExperts(self._loop, self._hosts, self._settings.grid[1], self._form, checks)

    def _host(self, held: Held, copies: CopyService, stack: ExitStack) -> None:
        keeping, me = held.keeping, self._signer.peer

        def changed() -> None:
            self.offers.tell()
            held.changed(len(keeping.kept), len(keeping.followed))

        hosting = Hosting(
            me, keeping, copies, self._following, self._holders, self._plan, known=held.known, changed=changed
        )
        if self._planner is not None:  # hosts may have gone on without it
            with suppress(TimeoutError):
                self.offers.look(LOOK_SECONDS)

        async def begin() -> None:
            hosting.look()

        self._loop.run(begin())
        running = self._loop.keep(hosting.run())
        stack.callback(running.cancel)

    def fetch(self, names: Sequence[ExpertName], step: int, take: Callable[[ExpertName, State], object]) -> None:
        """Take as many of these experts as others have as they were after a global step, of all peers at once."""
        of_peers = whom_to_ask(names, self._holders(), self._hosts.there)
        fetching = self._loop.start(self._following.gather(of_peers, step, take))
        with suppress(TimeoutError, CancelledError):  # this peer is leaving
            fetching.result(FETCH_SECONDS + LOOK_SECONDS)

    @property
    def answered(self) -> int:
        """Tokens that experts here have answered for others."""
        return self._load.for_others

    def standing(self) -> ExpertsState:
        """Of the organizer: how all experts stand. Nobody is believed whom it has let have none."""
        assert self._planner is not None
        assert self._held is not None
        keeps, copies = self._held.keeping.held
        mine = Told(self._profile.name, Holder(keeps=keeps, copies=copies), self._load.of_a_step())
        offers, hosts = self.offers.others(), {self._organizer: mine}
        for peer, holder in self._saying().items():
            if self._may_hold(peer):
                hosts[peer] = Told(offers[peer].name, holder, read(offers[peer].load, holder.keeps))
        return standing(self._settings, self._held.keeping.names, hosts, self._planner.plan, self._organizer)

    def begin_anew(self) -> None:
        """The organizer's run has gone back: it has all experts, as they were, and nobody else has them."""
        assert self._planner is not None
        self._planner.begin_anew(self._holders())

    def accused(self) -> dict[str, int]:
        """As `checking.accused`, of what all others say."""
        return accused(self.offers.others())

    def hand_over(self) -> None:
        """Leave, but not before others keep what is kept here and know what was told here, as far as that does not take
        long."""
        self.say("leaving")
        until = time.monotonic() + LEAVE_SECONDS
        if self._held is None:
            return
        keeping = self._held.keeping
        while (keeping.kept or keeping.bank.is_owed()) and time.monotonic() < until:
            time.sleep(0.1)

    @property
    def _organizer(self) -> str:
        return self._node.gate.organizer

    def _may_hold(self, peer: str) -> bool:
        """The organizer, and whoever is assigned something."""
        said = self._said
        return peer == self._organizer or (said is not None and peer in said.hosts)

    @property
    def _said(self) -> Assigned | None:
        """The newest word of the organizer; if it is away it holds on."""
        if self._planner is not None:
            return self._planner.said
        offer = self.offers.others().get(self._organizer)
        if offer is not None and offer.assigned is not None:
            self._assigned = offer.assigned
        return self._assigned

    def _plan(self) -> tuple[Plan, str]:
        assert self._held is not None
        if self._planner is not None:
            before, others, now = self._planner.said, self.offers.others(), time.monotonic()
            new = {
                peer
                for peer, offer in others.items()
                if now < self.offers.first_seen(peer, offer.session) + NEW_SECONDS
            }
            self._planner.look(others, self._saying(), self._held.lines(), new)
            if self._planner.said != before:
                self.offers.tell()
            return self._planner.plan, self._organizer
        return plan_of(self._said, self._held.keeping.names), self._organizer

    def _holders(self) -> dict[str, Holder]:
        """Who has what, without what is of a state that the run has left."""
        stale = set[str]() if self._planner is None else self._planner.stale
        return {peer: holder for peer, holder in self._saying().items() if peer not in stale}

    def _saying(self) -> dict[str, Holder]:
        """Who says to have what, of those whom the organizer lets have any; of other grids nothing."""
        found = {}
        for peer, offer in self._entitled().items():
            with suppress(ValueError):
                keeps, copies = (names_in(each, self._settings.grid) for each in (offer.layers, offer.copies))
                found[peer] = Holder(keeps=keeps, copies=copies, time=offer.time)
        return found

    def _entitled(self) -> Mapping[str, HostOffer]:
        """The others, without those who are not to hold anything; before the organizer has said who is, all."""
        others, said = self.offers.others(), self._said
        if said is None or self._planner is not None:
            return others
        return {peer: offer for peer, offer in others.items() if peer in (self._organizer, *said.hosts)}

    def offer(self) -> HostOffer:
        """What this peer says of itself."""
        profile, held, grid = self._profile, self._held, self._settings.grid
        kept, followed = (set[ExpertName](), set[ExpertName]()) if held is None else held.keeping.held
        return HostOffer(
            run_id=self._run.run_id,
            state=self._state,
            layers=layers_of(kept, grid),
            copies=layers_of(followed, grid),
            load=b"" if self._planner is not None else told(self._load.of_a_step(), kept),
            step=0 if held is None else min(held.keeping.bank.steps(kept | followed), default=0),
            room=0 if held is None else held.room,
            assigned=None if self._planner is None else self._planner.said,
            accuses=self._hosts.accuses,
            through=self._through() if profile.client_mode else (),
            forwards=not profile.client_mode,
            **profile.offered(),
            time=get_dht_time(),
        )

    def _everyone(self) -> dict[str, HostOffer]:
        return {**self._entitled(), self._signer.peer: self.offer()}

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
