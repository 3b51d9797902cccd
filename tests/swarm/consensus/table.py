"""Voters at one table: rounds without time or a data plane, in which the test loses or changes what is said."""

from collections.abc import Callable
from hashlib import sha256

from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.events import (
    Abort,
    Assign,
    AverageComplete,
    Blame,
    Effect,
    Event,
    Fetch,
    Finish,
    PartsComplete,
    Persist,
    Received,
    Reduce,
    Send,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Message, Options, as_claimed
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, Piece, Vote, Voter
from tests.simulation.keys import SimulatedSigner, SimulatedVerifier

SEED = 0
VERIFIER = SimulatedVerifier(SEED)
HEAD = sha256(b"head").hexdigest()
OPTIONS = Options(minimum=1)


def digest(*content: object) -> str:
    return sha256(repr(content).encode()).hexdigest()


def voter(name: str, incarnation: int = 1) -> Voter:
    return Voter(name, incarnation)


def signer(name: str) -> SimulatedSigner:
    return SimulatedSigner(SEED, name)


def instance(weights: dict[str, int], coordinator: str = "p0", step: int = 7) -> Instance:
    """The one after HEAD, with these voters."""
    electorate = Electorate({voter(name): weight for name, weight in weights.items()}, voter(coordinator))
    return Instance("run", "", step, HEAD, (0, ""), "organizer", coordinator, electorate)


def entry(where: Instance, name: str, samples: int = 4, incarnation: int = 1, orders: tuple[str, ...] = ()) -> Entry:
    pieces = (Piece(hash=digest(name, samples), samples=samples, weight=samples),) if samples else ()
    made = Entry(
        run_id=where.run_id,
        part=where.part,
        previous=where.previous,
        voter=voter(name, incarnation),
        pieces=pieces,
        orders=orders,
    )
    return made.signed(signer(name))


def group(where: Instance, members: str, reducers: str, nonce: int = 0, first: int = 1) -> Group:
    """:param members, reducers: names, with spaces"""
    return Group(
        run_id=where.run_id,
        part=where.part,
        step=where.step,
        previous=where.previous,
        nonce=f"{nonce:032x}",
        members=tuple(entry(where, name, 0 if name == where.coordinator else 4) for name in members.split()),
        reducers=tuple(reducers.split()),
        first=first,
    )


def decided(where: Instance, entries: tuple[Entry, ...], voters: str, nonce: int = 0) -> Commit:
    """A commit that these have voted for."""
    value = where.value(entries, as_claimed(entries), digest("average", nonce))
    epoch = Epoch(1, "p1", digest("group", nonce))
    accepted = tuple(where.accepted(voter(name), epoch, value).signed(signer(name)) for name in voters.split())
    return Commit(value=value, accepted=accepted)


Change = Callable[[str, str, Message], Message | None]


class Table:
    """Members of rounds, with what they remember from one to the next.

    :ivar commits: the first commit of each member
    :ivar blames: (member, whom it blames, why)
    """

    def __init__(self, where: Instance, names: str) -> None:
        self.where = where
        self.votes: dict[str, Vote] = {name: where.first_vote(voter(name)) for name in names.split()}
        self.commits: dict[str, Commit] = {}
        self.blames: list[tuple[str, str, str]] = []
        self.aborts: dict[str, str] = {}

    def round(
        self,
        made: Group,
        change: Change = lambda source, target, message: message,
        holds: Callable[[str], bool] = lambda name: True,
        order: Callable[[list[tuple[str, Event]]], int] = lambda queue: 0,
        options: Options = OPTIONS,
    ) -> dict[str, Participant]:
        """Until nobody has anything to say.

        :param change: what arrives of a message; None if it is lost
        :param holds: whether a member obtains the average of a new proposal
        :param order: which of the events that wait happens next
        """
        machines = {
            name: Participant(self.where, made, self.votes[name], options, signer(name), VERIFIER)
            for name in made.peers
        }
        queue: list[tuple[str, Event]] = []
        for name, machine in machines.items():
            self._do(name, machine.start(0.0), made, queue, change, holds)
        while queue:
            name, event = queue.pop(order(queue))
            self._do(name, machines[name].handle(event, 0.0), made, queue, change, holds)
        for name, machine in machines.items():
            self.votes[name] = machine.vote
        return machines

    def _do(
        self,
        me: str,
        effects: list[Effect],
        made: Group,
        queue: list[tuple[str, Event]],
        change: Change,
        holds: Callable[[str], bool],
    ) -> None:
        for effect in effects:
            match effect:
                case Send() | Persist():
                    for send in (effect,) if isinstance(effect, Send) else effect.then:
                        message = change(me, send.to, send.message) if send.to != me else send.message
                        if message is not None:
                            queue.append((send.to, Received(me, message)))
                case Assign(epoch, reducers) if me in reducers:
                    queue += [(me, PartsComplete(epoch, member)) for member in made.peers]
                case Reduce(epoch, _, counted) if holds(me):
                    average = digest("average", epoch, [each.peer for each in counted])
                    queue.append((me, AverageComplete(epoch, average)))
                case Fetch(epoch, value):
                    queue.append((me, AverageComplete(epoch, value.average)))
                case Finish(commit):
                    self.commits.setdefault(me, commit)
                case Blame(member, reason):
                    self.blames.append((me, member, reason))
                case Abort(reason):
                    self.aborts[me] = reason
                case _:
                    pass

    @property
    def links(self) -> set[str]:
        """Of what was decided: never more than one."""
        return {commit.link for commit in self.commits.values()}
