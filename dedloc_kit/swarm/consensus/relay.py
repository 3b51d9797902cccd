"""One member's place between its participant and the network of a large group. No I/O.

What the decider tells all goes down a tree of relays, what members tell the decider goes up, several letters in a
packet. A relay decides nothing and signs nothing: letters carry the signatures of their authors, so a relay that lies
or dies delays those below it by half the patience, and a third for each other relay above it; then they ask the
decider itself.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.downward import Downward
from dedloc_kit.swarm.consensus.events import Send
from dedloc_kit.swarm.consensus.letters import (
    MAX_LETTERS,
    Alive,
    BriefProposal,
    Certificate,
    Content,
    Delivered,
    Forged,
    Joining,
    Letter,
    Lost,
    Outcome,
    Packet,
    Pieces,
    Post,
    Pulse,
    write,
)
from dedloc_kit.swarm.consensus.messages import Decided, Group, Prepare, Proposal, TooFew
from dedloc_kit.swarm.consensus.signing import MAX_BYTES
from dedloc_kit.swarm.consensus.tree import Tree, Ways
from dedloc_kit.swarm.consensus.upward import Upward
from dedloc_kit.swarm.p2p.seams import Signer, Verifier

_PULSES = 6
"""In the patience."""
_BUNDLES = 60
"""In the patience, at most: so long a relay waits for more letters."""
_BUNDLE_SECONDS = 0.25
"""The same, however long the patience."""
_TO_ALL = (Group, Prepare, Proposal, Decided, TooFew)
_KINDS_TO_ALL = frozenset(kind.wire for kind in (*_TO_ALL, Certificate, BriefProposal))


class Relay:
    """
    :ivar root: whom this member takes for the decider
    :ivar group: the last one that a maker has told
    :ivar maker: whose group is awaited
    :ivar deadline: when it needs a tick
    """

    def __init__(
        self,
        tree: Tree,
        scope: str,
        root: PeerId,
        signer: Signer,
        verifier: Verifier,
        patience: float,
        now: float,
        pieces: Pieces | None = None,
    ) -> None:
        """
        :param scope: the link of the step before, until there is a group
        :param pieces: reads messages
        """
        self.me = signer.peer
        self.group: Group | None = None
        self._tree, self._ways = tree, Ways(tree, signer.peer, root)
        self._signer, self._verifier = signer, verifier
        self._before = self._scope = scope
        self._patience, self._pulse = patience, patience / _PULSES
        self._bundle = min(patience / _BUNDLES, _BUNDLE_SECONDS)
        self.maker = root
        self._makers, self._made_by = {root}, ""
        self._told: Content | None = None
        self._pieces = pieces or Pieces()
        self._down = Downward()
        self._seen: set[str] = set()
        self._spent: dict[PeerId, int] = {}
        """How many bytes of letters each author has had."""
        self._came: Counter[PeerId] = Counter()
        """How many letters of each author have come to this member as the root."""
        self._ups: dict[PeerId, Upward] = {}
        """By root."""
        self._alive: set[int] = set()
        self._broken: set[int] = set()
        self._begin(now)

    def _begin(self, now: float) -> None:
        """With another root, or for another scope."""
        self._pulses = self._asked = 0
        self._lacks, self._sought = False, -inf
        self._good = self._heard = self._echoed = now
        """Until when all went well; when the root was heard of; when this member last gave a sign of life."""
        self._flush_at = now + self._bundle if self._up.waits and not self._leads else inf
        self._pulse_at = now if self._leads else inf

    @property
    def _up(self) -> Upward:
        return self._ups.setdefault(self.root, Upward())

    @property
    def root(self) -> PeerId:
        return self._ways.root

    @property
    def _leads(self) -> bool:
        return self._ways.leads

    @property
    def deadline(self) -> float:
        return min(self._flush_at, self._pulse_at if self._leads else self._good + self._tolerance)

    @property
    def _tolerance(self) -> float:
        """Relays ask first, and those below them need not: otherwise hundreds ask if one relay dies.

        Who has asked in vain asks less often: lines may be full.
        """
        relays = len(self._tree.above(self.me, self.root)) - 1
        return self._patience / 2 * (1 + self._asked) + self._patience / 3 * relays

    def above(self, root: PeerId) -> tuple[PeerId, ...]:
        """The relays above this member and the root: to these it opens streams, where it needs them."""
        return self._tree.above(self.me, root)

    def silent(self, now: float) -> float:
        """Seconds in which nothing of the root came, through whomever."""
        return 0.0 if self._leads else now - self._heard

    def wait(self, until: float) -> None:
        """Members begin one after the other: nothing of the root need come before."""
        self._good = self._heard = until

    @property
    def neighbours(self) -> set[PeerId]:
        """To whom this member needs streams."""
        return {*self._ways.down(self.root), *(() if self._leads else (self._ways.up,))}

    # This member's own messages

    def send(self, sends: Iterable[Send], now: float) -> list[Outcome]:
        """What the participant sends; one that goes to all is handed over once for each."""
        found: list[Outcome] = []
        for send in sends:
            if send.to == self.me:
                found.append(Delivered(self.me, send.message))
            if self._to_all(send.message):
                if send.message is not self._told:
                    found += self.tell(send.message, now)
            elif send.to != self.me:
                found += self._write(send.to, send.message, now)
        return found

    def _to_all(self, message: Content) -> bool:
        return isinstance(message, _TO_ALL) and not (isinstance(message, Proposal) and message.proof)

    def tell(self, message: Content, now: float) -> list[Outcome]:
        """Tell all; a group to those who have come."""
        self._told = message
        if isinstance(message, Group):
            self._enter(self.me, message, now)
        self.follow(self.me, now)
        found: list[Outcome] = []
        for each in write(self._scope, self.me, "", message, self.group, self._signer):
            self._seen.add(each.digest)
            self._down.keep(each)
            found += self._hand_down(each)
        return found

    def join(self, joining: Joining, now: float) -> list[Outcome]:
        """Bring this member's contribution to the root."""
        return [Delivered(self.me, joining)] if self._leads else self._write(self.root, joining, now)

    def await_group(self, maker: PeerId, joining: Joining, now: float) -> list[Outcome]:
        """Another member makes the group, or decides: those before it have failed. Join it, and ask for its group."""
        self.maker = maker
        self._makers.add(maker)
        self.follow(maker, now)
        found = self.join(joining, now)
        return found if self._leads else [*found, *self._flush(now, asks=True)]

    def greet(self, member: PeerId) -> list[Outcome]:
        """A member has opened its stream to this one: if it is below, it gets what was told before."""
        self._down.forget(member)
        return [*self._give(member)] if member in self._ways.down(self.root) else []

    def _give(self, member: PeerId, have: Iterable[str] = ()) -> list[Post]:
        """What has not gone to this member yet, letter by letter: it hands on the first one at once."""
        missing = self._down.give(member, self.root, have)
        return [Post(member, Packet(scope=self._scope, root=self.root, letters=(each,))) for each in missing]

    def follow(self, root: PeerId, now: float) -> None:
        """Another decider, for the last one does nothing."""
        if root != self.root:
            self._ways.follow(root)
            self._begin(now)

    def _write(self, to: PeerId, message: Content, now: float) -> list[Outcome]:
        if isinstance(message, Proposal):  # of the decider, for one who asked
            written = write(self._scope, self.me, to, message, self.group, self._signer)
            return [post for each in written for post in self._hand_down(each)]
        found: list[Outcome] = []
        scope = self._before if isinstance(message, Joining) else self._scope
        for each in write(scope, to, to, message, self.group, self._signer):
            self._seen.add(each.digest)
            found += self._pass_on(each, now)
        return found

    def _enter(self, maker: PeerId, group: Group, now: float) -> None:
        self.group, self._scope, self._made_by = group, group.id, maker
        self._down.start()
        self._begin(now)

    # Neighbours

    def receive(self, source: PeerId, packet: Packet, now: float) -> list[Outcome]:
        """Of any member."""
        if source not in self._tree.places:
            return []
        self._ways.passed.discard(source)
        found: list[Outcome] = []
        for each in packet.letters:
            found += self._letter(source, each, now)
        if packet.root != self.root:
            known = self._tree.places.get(packet.root) in packet.broken
            if packet.root in self._ways.passed and not known:
                found += self._broke(packet.root, [source])
            return found
        if self._tree.places[self.root] in packet.broken and source in self.above(self.root):
            found += self._doubt(now)
        if packet.have is not None:
            if source != self.root:
                self._ways.adopt(source)
            found += self._give(source, packet.have)
        if self._leads and self.group is None and packet.scope != self._before and now >= self._sought + self._pulse:
            self._sought = now  # it knows the group of a maker that has failed since
            found.append(Post(source, Packet(scope=self._before, root=self.me, have=())))
        if packet.scope == self._scope and packet.pulse is not None:
            found += self._take_pulse(source, packet.pulse, now)
        if packet.scope in (self._scope, self._before):
            found += self._take_signs(source, packet, now)
        return found

    def _letter(self, source: PeerId, each: Letter, now: float) -> list[Outcome]:
        if each.digest in self._seen or not self._in_scope(each):
            return []
        places, ends = self._tree.places, (each.author, each.to)
        if each.author not in places or each.root not in ends or each.root not in self._tree.relays:
            return [Forged(source, "a letter that nobody may write")]
        spent = self._spent.get(each.author, 0) + MAX_BYTES // MAX_LETTERS + len(each.body)
        if spent > MAX_BYTES:
            return []
        try:
            each.check_signature(each.author, self._verifier)
        except ValueError as error:
            return [Forged(source, str(error))]
        self._seen.add(each.digest)
        self._spent[each.author] = spent
        if each.to == self.me:
            if each.root == self.me:
                self._came[each.author] += 1
            return self._open(each, now)
        if each.to:
            return self._pass_on(each, now)
        if each.kind not in _KINDS_TO_ALL:
            return [Forged(each.author, "it tells all what is not for all")]
        if each.author == self.root:
            self._good = self._heard = now  # it comes piece by piece: for long on slow lines, and no pulse before it
            if now >= self._echoed + self._pulse:
                self._flush_at = min(self._flush_at, now + self._bundle)
        self._down.keep(each)
        return [*(post for post in self._hand_down(each) if post.to != source), *self._open(each, now)]

    def _open(self, each: Letter, now: float) -> list[Outcome]:
        try:
            message = self._pieces.add(each, self.group)
        except ValueError as error:
            return [Forged(each.author, str(error))]
        if message is None:
            return []
        if isinstance(message, Group):
            if message.id != each.scope or each.to:
                return [Forged(each.author, "a group under another name")]
            if message.id == self._scope:
                return []
            self._enter(each.author, message, now)
        return [Delivered(each.author, message)]

    def _in_scope(self, each: Letter) -> bool:
        """A maker that failed may have told some of its group: it counts where no other one is known."""
        if each.kind == Joining.wire:
            return each.scope == self._before
        if each.kind != Group.wire or each.scope == self._scope:
            return each.scope == self._scope
        return each.author in self._makers if self.group is None else each.author == self.maker != self._made_by

    def _pass_on(self, each: Letter, now: float) -> list[Outcome]:
        if each.to == each.root:
            if each.root != self.root:
                packet = Packet(scope=each.scope, root=each.root, letters=(each,))
                return [Post(self._ways.up_to(each.root), packet)]
            return self._hand_up(each, now)
        return [*self._hand_down(each)]

    def _hand_down(self, each: Letter) -> list[Post]:
        packet, below = Packet(scope=each.scope, root=each.root, letters=(each,)), self._ways.down(each.root, each.to)
        if not each.to:
            self._down.gave(below, each)
        return [Post(peer, packet) for peer in below]

    def _hand_up(self, each: Letter, now: float) -> list[Outcome]:
        self._up.add(each, now)
        if not self._ways.down(self.root):
            return self._flush(now)
        self._flush_at = min(self._flush_at, now + self._bundle)
        return []

    def _flush(self, now: float, asks: bool = False) -> list[Outcome]:
        """Send up what has come together."""
        have = self._down.digests(self.root) if asks else None
        packet = Packet(
            scope=self._scope,
            root=self.root,
            letters=self._up.take(),
            alive=tuple(sorted(self._alive)),
            broken=tuple(sorted(self._broken)),
            have=have,
        )
        self._alive, self._flush_at, self._echoed = set(), inf, now
        return [Post(self._ways.up, packet)]

    # Who is alive

    def _take_signs(self, source: PeerId, packet: Packet, now: float) -> list[Outcome]:
        """A relay speaks for those below it only."""
        ways, members, places = self._ways, self._tree.members, self._tree.places
        if source == self.root or not (source in ways.adopted or ways.is_above(self.me, source)):
            return []
        below = [p for p in packet.alive if p < len(members) and ways.is_above(source, members[p])]
        broken = {p for p in packet.broken if p < len(members) and ways.is_above(source, members[p])}
        new = broken - self._broken
        self._broken |= new
        if self._leads:
            alive = [Alive(source), *(Alive(members[place]) for place in below)]
            return [*alive, *(Lost(members[place]) for place in sorted(new))]
        self._alive |= {places[source], *below}
        if new:
            self._flush_at = min(self._flush_at, now + self._bundle)
        return []

    def failed(self, member: PeerId, now: float) -> list[Outcome]:
        """A neighbour's stream broke, or was silent for the patience: it is passed over."""
        ways = self._ways
        if member not in self._tree.places or member in ways.passed:
            return []
        was, below = ways.up, member in ways.adopted or ways.is_above(self.me, member)
        ways.pass_over(member)
        self._down.forget(member)
        if member == self.root:
            return self._broke(member, self._ways.down(member))
        if not below:
            return self._ask(now) if was == member else []
        self._broken.add(self._tree.places[member])
        self._flush_at = inf if self._leads else min(self._flush_at, now + self._bundle)
        return []

    def _doubt(self, now: float) -> list[Outcome]:
        """A relay above says that the root is gone, which may be a lie: look, and tell those below."""
        if self._leads or self._ways.direct:
            return []
        self._ways.go_past_relays()
        return [*self._ask(now), *self._broke(self.root, self._ways.down(self.root))]

    def _broke(self, root: PeerId, members: Iterable[PeerId]) -> list[Outcome]:
        packet = Packet(scope=self._scope, root=root, broken=(self._tree.places[root],))
        return [Post(member, packet) for member in members]

    def _ask(self, now: float, lacks: bool = True) -> list[Outcome]:
        """Send all that is not known to have come up another way; ask for what this member lacks."""
        self._up.again(self.me)
        self._good = now
        self._asked += 1
        return self._flush(now, asks=lacks)

    def _take_pulse(self, source: PeerId, pulse: Pulse, now: float) -> list[Outcome]:
        if pulse.scope != self._scope or pulse.root != self.root or pulse.count <= self._pulses or self._leads:
            return []
        try:
            pulse.check_signature(self.root, self._verifier)
        except ValueError as error:
            return [Forged(source, str(error))]
        self._pulses = pulse.count
        self._up.told(dict(zip(self._tree.members, pulse.received, strict=False)))
        come = self._up.have_come(self.me, now - self._patience / 2)
        self._lacks = self._down.count(self.root) < pulse.told
        self._heard, self._good = now, now if come and not self._lacks else min(now, self._good)
        packet = Packet(scope=self._scope, root=self.root, pulse=pulse)
        below = self._ways.down(self.root)
        self._flush_at = min(self._flush_at, now + self._bundle)
        echo = [] if below else self._flush(now)
        return [*(Post(peer, packet) for peer in below), *echo, Alive(self.root)]

    def tick(self, now: float) -> list[Outcome]:
        """When the deadline has passed."""
        found: list[Outcome] = []
        if self._leads:
            if now >= self._pulse_at:
                found += self._beat(now)
            return found
        if now >= self._flush_at:
            found += self._flush(now)
        if now >= self._good + self._tolerance:
            lacks = self._lacks or now >= self._heard + self._tolerance
            self._ways.go_past_relays()
            found += self._ask(now, lacks)
        return found

    def _beat(self, now: float) -> list[Outcome]:
        self._pulse_at, self._pulses = now + self._pulse, self._pulses + 1
        received = tuple(min(MAX_LETTERS, self._came[member]) for member in self._tree.members)
        told = self._down.count(self.me)
        pulse = Pulse(scope=self._scope, root=self.me, count=self._pulses, told=told, received=received)
        packet = Packet(scope=self._scope, root=self.me, pulse=pulse.signed(self._signer))
        return [Post(peer, packet) for peer in self._ways.down(self.me)]
