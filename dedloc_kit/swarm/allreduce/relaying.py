"""The driver of `consensus.Relay`: in a large group the agreement's messages travel down a tree and up again.

Groups of one row at most need no relays: there each member has a stream to each one that may decide.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dedloc_kit.records.steps import Absence
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import Agreement, Setting
from dedloc_kit.swarm.allreduce.forming import Forming
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.presence import Presence
from dedloc_kit.swarm.allreduce.streams import Streams
from dedloc_kit.swarm.consensus.events import Heard, Send
from dedloc_kit.swarm.consensus.letters import Alive, Delivered, Forged, Joining, Lost, Outcome, Post
from dedloc_kit.swarm.consensus.messages import Group, Message
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.consensus.relay import Relay
from dedloc_kit.swarm.consensus.tree import Tree

FOR_OTHERS = 1 / 2
"""Of the time in which members begin: so long nothing need come from the first one that decides."""
SHORTEST = 0.005
"""Seconds between two looks."""


class Relayed(Protocol):
    """The round. Members are given by place."""

    plan: Plan
    setting: Setting
    entry: Entry
    introduction: bytes
    presence: Presence
    forming: Forming
    streams: Streams
    agreement: Agreement

    @property
    def over(self) -> bool: ...

    def now(self) -> float: ...

    def admit(self, member: int, promised: int, entry: Entry) -> None: ...

    def take_group(self, maker: int, group: Group) -> None: ...

    def fail(self, member: int, why: str, absence: Absence, *, blame: bool) -> None: ...

    def broken(self, why: str) -> None: ...


class Relaying:
    """Of one member in one round."""

    def __init__(self, round: Relayed) -> None:
        plan, setting = round.plan, round.setting
        self._round, self._peers = round, plan.members
        self._places = {peer: place for place, peer in enumerate(plan.members)}
        rows = tuple(self._named(team) for team in plan.teams)
        tree = Tree(rows, self._named(round.forming.ranking))
        self._relay = Relay(
            tree,
            setting.instance.previous,
            tree.reducers[0],
            setting.signer,
            setting.verifier,
            setting.patience.usual,
            round.now(),
        )
        promised, entry = wire.read_introduction(round.introduction)
        self._joining = Joining(entry=entry, promised=promised)
        self._silent: set[int] = set()
        """Deciders that may be gone."""
        self._timer: asyncio.TimerHandle | None = None

    def _named(self, members: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._peers[member] for member in members)

    def begin(self) -> None:
        """Bring this member's entry to whom makes the group."""
        now = self._round.now()
        self._relay.wait(now + FOR_OTHERS * self._round.setting.patience.start)
        self._do(self._relay.join(self._joining, now))

    def stop(self) -> None:
        """The round is over here; what others tell is still handed on."""
        if self._timer is not None:
            self._timer.cancel()

    def send(self, peer: str, message: Message) -> None:
        self._do(self._relay.send([Send(peer, message)], self._round.now()))

    def tell(self, group: Group) -> None:
        """All that have come: this peer has made the group."""
        self._do(self._relay.tell(group, self._round.now()))

    def hear(self, member: int, content: bytes) -> None:
        """A packet of a member. Raises ValueError if it is none."""
        packet = wire.read_packet(content)
        self._do(self._relay.receive(self._peers[member], packet, self._round.now()))

    def follow(self, decider: str) -> None:
        """This member is in an epoch of this one."""
        if self._places[decider] not in self._round.presence.failed:
            self._silent.discard(self._places[decider])
            self._relay.follow(decider, self._round.now())
            self._schedule()

    @property
    def silent(self) -> float:
        """Seconds in which nothing came of the first one in rank."""
        return self._relay.silent(self._round.now())

    def opened(self, member: int) -> None:
        """A member has opened a stream to this peer."""
        self._do(self._relay.greet(self._peers[member]))

    def failed(self, member: int) -> None:
        """Nothing comes from a member any more."""
        self._do(self._relay.failed(self._peers[member], self._round.now()))
        self._turn()

    def look(self) -> None:
        """Turn to the next one in rank if the decider is silent: it may have opened an epoch."""
        round, root = self._round, self._relay.root
        if round.agreement.group is None or round.agreement.commit is not None:
            return
        if self._relay.silent(round.now()) > round.setting.patience.usual:
            self._silent.add(self._places[root])
            if self._silent >= set(round.forming.ranking) - round.presence.failed:
                self._silent.clear()
            self._turn()

    def _turn(self) -> None:
        """To the first in rank that lives."""
        first = self._round.forming.first(self._round.presence.failed | self._silent)
        if first is not None and self._peers[first] != self._relay.maker:
            self._do(self._relay.await_group(self._peers[first], self._joining, self._round.now()))

    def _do(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Post):
                self._post(outcome)
            elif not self._round.over:
                self._take(outcome)
        self._schedule()

    def _post(self, post: Post) -> None:
        """To one above this peer opens a stream; who is below has one, or gets what it missed once it has."""
        member, streams = self._places[post.to], self._round.streams
        if post.to in self._relay.above(post.packet.root) and not streams.to(member):
            streams.connect(member)
        for message in wire.packets(post.packet):
            streams.post(member, message)

    def _take(self, outcome: Outcome) -> None:
        round = self._round
        match outcome:
            case Delivered(author, Joining(entry=entry, promised=promised)):
                round.admit(self._places[author], promised, entry)
            case Delivered(author, Group() as group):
                round.take_group(self._places[author], group)
            case Delivered(author, message) if not isinstance(message, (Group, Joining)):
                try:
                    round.agreement.take(author, message)
                except ValueError as error:
                    self._fail(author, f"sent nonsense ({error!r:.100})", "sent nonsense")
            case Alive(member):
                round.agreement.post(Heard(member))
            case Lost(member) if not round.streams.to(self._places[member]):
                self._fail(member, "broke off, says its relay", "left in the middle")
            case Forged(member, reason):
                self._fail(member, f"hands on what it must not ({reason})", "sent nonsense")

    def _fail(self, peer: str, why: str, absence: Absence) -> None:
        self._round.fail(self._places[peer], why, absence, blame=absence == "sent nonsense")

    def _schedule(self) -> None:
        """Once the decision is known nobody need be asked."""
        self.stop()
        if not self._round.over and self._round.agreement.commit is None:
            seconds = max(SHORTEST, self._relay.deadline - self._round.now())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        try:
            self._do(self._relay.tick(self._round.now()))
        except Exception as error:
            self._round.broken(f"relaying failed here ({error!r:.200})")
            raise
