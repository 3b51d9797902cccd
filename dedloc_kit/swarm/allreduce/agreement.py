"""The driver of `consensus.Participant`: messages and events go in one after the other, its effects are carried out."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.introductions import CheckEntry
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.consensus.events import (
    Abort,
    Assign,
    Blame,
    Effect,
    Event,
    Fetch,
    Finish,
    GiveUp,
    Persist,
    Received,
    Reduce,
    Send,
    VoteLost,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Group, Message, Options, TooFew, decode
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, Value, Vote
from dedloc_kit.swarm.p2p.seams import Random, Signer, Verifier

EARLY = 16
"""Messages of a member that wait until its group is known here, at most; the oldest are dropped."""


class GroupRefused(Exception):
    """The group must not take a step; all of its members see the same reason."""


class Votes(Protocol):
    """This peer's vote file."""

    @property
    def mute(self) -> bool:
        """Whether the last vote could not be written."""

    def vote(self, instance: Instance) -> Vote:
        """What this voter remembers of an instance."""

    async def persist(self, effect: Persist, average: Sequence[bytes] | None) -> list[Send]:
        """Write a vote, with the average that it names; returns what may be sent then."""

    def accepted_average(self, link: str) -> Sequence[bytes] | None:
        """The average of the value that was accepted last, if this peer still holds it."""


@dataclass(frozen=True)
class Setting:
    """What a round is about.

    :ivar limit: seconds for the whole round
    :ivar options: of a group with these entries; raises GroupRefused if it must not take a step
    :ivar check: raises ValueError for an entry that no honest peer can have made
    :ivar unseal: the encoded values in a part that the author of an entry sent; raises ValueError
    """

    instance: Instance
    patience: Patience
    limit: float
    options: Callable[[Sequence[Entry]], Options]
    signer: Signer
    verifier: Verifier
    random: Random
    check: CheckEntry = lambda _: None
    unseal: Callable[[Entry, int, bytes], bytes] = lambda _entry, _number, content: content


class Actions(Protocol):
    """What a round does for its participant. Members are given by place."""

    @property
    def over(self) -> bool:
        """Whether the round has ended here."""

    def now(self) -> float: ...

    def send(self, member: int, message: Message) -> None:
        """Part of the agreement."""

    def tell(self, member: int, message: bytes) -> None: ...

    def inquire(self, member: int, message: bytes) -> None: ...

    def tell_all(self, message: bytes) -> None: ...

    def assign(self, epoch: Epoch, reducers: Sequence[int]) -> None: ...

    def reduce(self, epoch: Epoch, entries: Sequence[Entry]) -> None: ...

    def fetch(self, epoch: Epoch | None, value: Value, holders: Sequence[str]) -> None: ...

    def messages(self) -> tuple[bytes, ...]:
        """The average that this peer holds."""

    def decide(self) -> None:
        """`Agreement.commit` is known."""

    def abort(self, reason: str, counted: Sequence[int]) -> None: ...

    def blame(self, member: int, reason: str) -> None: ...

    def kept_waiting(self, member: int) -> None:
        """The agreement goes on without a member that it has waited for."""

    def broken(self, why: str) -> None:
        """The round cannot go on here, by this peer's own fault."""


class Agreement:
    """Of one member in one round, whatever groups it joins.

    :ivar commit: what was decided
    """

    def __init__(self, setting: Setting, plan: Plan, votes: Votes, actions: Actions) -> None:
        self._setting, self._plan, self._votes, self._actions = setting, plan, votes, actions
        self._places = {peer: place for place, peer in enumerate(plan.members)}
        self.group: Group | None = None
        self.participant: Participant | None = None
        self.commit: Commit | None = None
        self._early: dict[int, deque[tuple[int, Message]]] = {}
        self._due: deque[Event | None] = deque()
        """None: join the first epoch."""
        self._busy = False
        self._writing: set[asyncio.Task[None]] = set()

    def participant_of(self, group: Group, options: Options) -> Participant:
        """Raises ValueError unless the group may decide, with this peer as a member."""
        setting = self._setting
        vote = self._votes.vote(setting.instance)
        return Participant(setting.instance, group, vote, options, setting.signer, setting.verifier)

    def join(self, group: Group, participant: Participant) -> None:
        """Try to decide with this group, in place of the one before."""
        self.group, self.participant = group, participant
        self._due = deque([None])
        self._work()
        early, self._early = self._early, {}
        for member, waiting in early.items():
            self.post(*(Received(self._plan.members[member], each) for _, each in waiting if each.group == group.id))
            self._early[member] = deque((size, each) for size, each in waiting if each.group != group.id)

    def hear(self, member: int, content: bytes) -> None:
        """A message of a member. Raises ValueError for what no honest member sends."""
        message = decode(content)
        if self.commit is not None:
            if not isinstance(message, (Acceptance, Decided, TooFew)):
                self.answer(member)
        elif self._actions.over:
            pass
        elif self.group is not None and message.group == self.group.id:
            self.post(Received(self._plan.members[member], message))
        elif isinstance(message, Decided):
            self._decided_elsewhere(message.commit)
        else:
            self._keep_early(member, message, len(content))

    def take(self, author: str, message: Message) -> None:
        """A message that relays have brought; raises ValueError as `hear`."""
        if self.commit is not None or self._actions.over:
            return
        if self.group is not None and message.group == self.group.id:
            self.post(Received(author, message))
        elif isinstance(message, Decided):
            self._decided_elsewhere(message.commit)

    def answer(self, member: int) -> None:
        """Tell a member what was decided, if that is known."""
        if self.commit is not None:
            self._actions.tell(member, wire.agreement(Decided(group=self.commit.link, commit=self.commit)))

    def _keep_early(self, member: int, message: Message, size: int) -> None:
        """Its group is not known here yet."""
        waiting = self._early.setdefault(member, deque())
        known = any(each.group == message.group for _, each in waiting)
        waiting.append((size, message))
        room = wire.ENTRY_BYTES * (8 + len(self._plan.members))
        while len(waiting) > EARLY or sum(each for each, _ in waiting) > room:
            waiting.popleft()
        if not known:
            self._actions.inquire(member, wire.which(message.group))

    def _decided_elsewhere(self, commit: Commit) -> None:
        """In another group: raises ValueError unless the commit is valid. This peer's own group is told."""
        self._setting.instance.check_commit(commit, self._setting.verifier)
        self._due.clear()
        self.commit = commit
        self._actions.fetch(None, commit.value, commit.holders)
        if self.group is not None:
            self._actions.tell_all(wire.agreement(Decided(group=self.group.id, commit=commit)))
        self._actions.decide()

    # Events and effects

    def post(self, *events: Event) -> None:
        """Handle these in their order: what an event causes comes after its other effects."""
        if self.participant is not None and self.commit is None:
            self._due.extend(events)
            self._work()

    def _work(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._due and not self._actions.over:
                event, participant = self._due.popleft(), self.participant
                assert participant is not None
                now = self._actions.now()
                for effect in participant.start(now) if event is None else participant.handle(event, now):
                    self._do(effect)
        except Exception as error:  # not the fault of the member whose message is being handled
            self._actions.broken(f"agreement failed here ({error!r:.200})")
        finally:
            self._busy = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Persist():
                average = self._actions.messages() if effect.average else None  # as it is now
                task = asyncio.create_task(self._persist(effect, average))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
            case Assign(epoch, reducers):
                self._actions.assign(epoch, [self._places[reducer] for reducer in reducers])
            case Reduce(epoch, _, counted):
                self._actions.reduce(epoch, counted)
            case Fetch(epoch, value, holders):
                self._actions.fetch(epoch, value, (*holders, epoch.decider))
            case Finish(commit):
                self.commit = commit
                self._due.clear()
                self._actions.decide()
            case Abort(reason, counted):
                self._actions.abort(reason, counted)
            case Blame(member, reason):
                self._actions.blame(self._places[member], reason)
            case GiveUp(member):
                self._actions.kept_waiting(self._places[member])

    def _send(self, to: str, message: Message) -> None:
        if to == self._setting.signer.peer:
            self.post(Received(to, message))
        else:
            self._actions.send(self._places[to], message)

    async def _persist(self, effect: Persist, average: Sequence[bytes] | None) -> None:
        try:
            due = await self._votes.persist(effect, average)
        except Exception as error:
            self._actions.broken(f"the vote cannot be written ({error!r:.100})")
            return
        if self._votes.mute:
            self.post(VoteLost())
        for send in due:
            self._send(send.to, send.message)
