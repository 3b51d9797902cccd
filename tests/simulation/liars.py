"""Liars: peers that sign for themselves alone, and change or keep back what they send."""

from collections.abc import Callable, Sequence
from typing import Any

from dedloc_kit.swarm.consensus.events import Effect, Event, Received
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import (
    Acceptance,
    Decided,
    Group,
    Options,
    Prepare,
    Promised,
    Proposal,
    Report,
    TooFew,
)
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Value, Vote
from dedloc_kit.swarm.p2p.seams import Signer, Verifier
from tests.simulation.data_plane import ZERO, Parts, Share, digest_of
from tests.simulation.keys import SimulatedSigner
from tests.simulation.peer import GivenAverage, Peer, Process
from tests.simulation.simulation import Lie, Simulation


def garbage_votes(sim: Simulation, peer: Peer) -> Lie:
    """Votes for an average that it does not hold."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Acceptance):
            vote = message.accepted.changed(average="0" * 64, link="1" * 64)
            return message.changed(accepted=vote.signed(SimulatedSigner(sim.seed, peer.name)))
        return message

    return lie


def forged_votes(sim: Simulation, peer: Peer) -> Lie:
    """Sends votes without a valid signature."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Acceptance):
            return message.changed(accepted=message.accepted.changed(average="0" * 64, link="1" * 64))
        return message

    return lie


def withholds(sim: Simulation, peer: Peer) -> Lie:
    """Gives its average to nobody."""
    return lambda to, message: None if isinstance(message, GivenAverage) else message


def two_proposals(sim: Simulation, peer: Peer) -> Lie:
    """Tells half of the members that others count."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Proposal) and int(to[1:]) % 2 and len(message.counted) > 2:
            return message.changed(counted=message.counted[:-1])
        return message

    return lie


def mute(sim: Simulation, peer: Peer) -> Lie:
    """Takes part, seems alive, and never decides."""
    return lambda to, message: None if isinstance(message, (Proposal, Decided)) else message


def trickles(sim: Simulation, peer: Peer) -> Lie:
    """Seems alive, and never sends its parts."""
    return lambda to, message: None if isinstance(message, Parts) else message


def keeps_its_share(sim: Simulation, peer: Peer) -> Lie:
    """Seems alive, and sends nobody what it has reduced."""
    return lambda to, message: None if isinstance(message, Share) else message


def different_sums(sim: Simulation, peer: Peer) -> Lie:
    """Sends each member another average."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Share):
            return message._replace(chunks={chunk: value + int(to[1:]) for chunk, value in message.chunks.items()})
        return message

    return lie


def false_memory(sim: Simulation, peer: Peer) -> Lie:
    """Says that it has voted for an average that nobody holds."""

    def remember(process: Process, members: Sequence[Entry]) -> Value:
        average = f"{sim.random.getrandbits(256):064x}"
        return process.head.value(members, sim.options.weigh(members), average)

    return _remembers(sim, peer, remember)


def poisons(sim: Simulation, peer: Peer) -> Lie:
    """Says that it has voted for an average that it has made up, and gives it to all."""

    def remember(process: Process, members: Sequence[Entry]) -> Value:
        value = process.head.value(members, sim.options.weigh(members), digest_of(ZERO))
        process.averages[value.link] = ZERO
        return value

    return _remembers(sim, peer, remember)


def belittles(sim: Simulation, peer: Peer) -> Lie:
    """The same, and the value gives somebody less weight than the run does."""

    def remember(process: Process, members: Sequence[Entry]) -> Value:
        weights = list(sim.options.weigh(members))
        weights[weights.index(max(weights))] -= 1
        value = process.head.value(members, weights, digest_of(ZERO))
        process.averages[value.link] = ZERO
        return value

    return _remembers(sim, peer, remember)


def _remembers(sim: Simulation, peer: Peer, remember: Callable[[Process, Sequence[Entry]], Value]) -> Lie:
    signer = SimulatedSigner(sim.seed, peer.name)

    def lie(to: str, message: Any) -> Any:
        process = peer.process
        if not isinstance(message, Promised) or process is None or process.participant is None:
            return message
        value = remember(process, process.participant.group.members)
        epoch = Epoch(max(0, message.promise.epoch.number - 1), peer.name, "0" * 64)
        accepted = process.head.accepted(message.promise.voter, epoch, value).signed(signer)
        return message.changed(promise=message.promise.changed(accepted=accepted).signed(signer), value=value)

    return lie


def accuses(sim: Simulation, peer: Peer) -> Lie:
    """Accuses another reducer with each report, or reports that it has nothing of others."""

    def lie(to: str, message: Any) -> Any:
        if not isinstance(message, Report) or peer.process is None or peer.process.participant is None:
            return message
        others = [name for name in peer.process.participant.reducers if name != peer.name]
        if others and sim.random.random() < 0.5:
            return message.changed(complete=(), lacking=(sim.random.choice(others),))
        return message.changed(complete=message.complete[:1])

    return lie


def ends_rounds(sim: Simulation, peer: Peer) -> Lie:
    """Says that there are too few samples whenever it decides."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Proposal) and to != peer.name:
            return TooFew(group=message.group, epoch=message.epoch, counted=message.counted)
        return message

    return lie


def takes_over(sim: Simulation, peer: Peer) -> Lie:
    """Opens an epoch of its own with each report that it should send."""

    def lie(to: str, message: Any) -> Any:
        if isinstance(message, Report) and to != peer.name:
            epoch = Epoch(message.epoch.number + 1, peer.name, message.group)
            return Prepare(group=message.group, epoch=epoch, reducers=(peer.name,))
        return message

    return lie


class Credulous:
    """Believes any signature."""

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        return True


class IgnoresVotes(Participant):
    """Proposes a new value though one was voted for."""

    def __init__(
        self, instance: Instance, group: Group, vote: Vote, options: Options, signer: Signer, verifier: Verifier
    ) -> None:
        super().__init__(instance, group, vote, options, signer, Credulous())

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Promised):
            promise = event.message.promise.changed(accepted=None)
            event = Received(event.member, event.message.changed(promise=promise, value=None))
        return super().handle(event, now)


LIES: dict[str, Callable[[Simulation, Peer], Lie]] = {
    lie.__name__: lie
    for lie in (
        *(
            garbage_votes,
            forged_votes,
            withholds,
            two_proposals,
            mute,
            trickles,
            keeps_its_share,
            different_sums,
        ),
        *(false_memory, poisons, belittles, accuses, ends_rounds, takes_over),
    )
}
WRONG_AVERAGES = {"different_sums", "poisons"}
"""Lies that no rule of agreement finds: an average may be wrong, and is the same at all."""
