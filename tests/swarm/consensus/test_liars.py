"""One liar of six: the run goes on, there is one chain, and nobody honest is blamed."""

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from dedloc_kit.swarm.consensus.messages import Decided, Message, Options, Promised, Report
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch
from tests.simulation.data_plane import Share, add, digest_of, gradient
from tests.simulation.keys import SimulatedSigner
from tests.simulation.liars import LIES, WRONG_AVERAGES
from tests.simulation.lying_weight import Swarm, share_that_forks
from tests.simulation.simulation import Simulation, Violation
from tests.simulation.stories import swarm as swarm_of
from tests.swarm.consensus.table import Table, entry, group, instance, signer, voter

LIMIT = 60.0


def at_most_six(entries: Sequence[Entry]) -> tuple[int, ...]:
    """Claims are bounded."""
    return tuple(min(entry.samples, 6) for entry in entries)


def with_liar(lie: str, seed: int, until: float) -> Simulation:
    """A coordinator, which is away for a while in each second seed, and five volunteers, one of which lies."""
    sim = Simulation(seed, name=lie)
    sim.options = Options(minimum=12, weigh=at_most_six, limit=LIMIT)
    sim.watch.sums_matter = lie not in WRONG_AVERAGES
    peers = swarm_of(sim, 5, speed=3)
    liar = peers[1 + seed % 5]
    sim.lie(liar, LIES[lie](sim, liar))
    sim.overlap = 0.3
    if seed % 2:
        sim.world.at(until / 3, sim.crash, peers[0])
        sim.world.at(until - 10, sim.restart, peers[0])
    sim.run(until)
    return sim


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_six_neither_forks_nor_stops_the_run(lie: str) -> None:
    for seed in range(3):
        sim = with_liar(lie, seed, 100)
        assert len(sim.watch.first) >= 100 / LIMIT, sim.reproduction


@pytest.mark.soak
@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_six_in_many_more_seeds(lie: str) -> None:
    for seed in range(100, 140):
        with_liar(lie, seed, 300)


def test_the_simulation_notices_a_wrong_average() -> None:
    sim = Simulation(1, name="wrong")
    peers = swarm_of(sim, 3, speed=4)

    def wrong(to: str, message: Any) -> Any:
        if isinstance(message, Share):
            return message._replace(chunks={chunk: value + 1 for chunk, value in message.chunks.items()})
        return message

    sim.lie(peers[1], wrong)
    with pytest.raises(Violation, match="half an average"):
        sim.run(20, within=30)


# Forks: what a voter can do that votes twice, or lies about its vote


def two_rounds(swarm: Swarm, side: Sequence[bool]) -> int:
    """How many averages are decided if the liar votes in two halves that do not hear of each other."""
    names = [f"p{place}" for place in range(1, len(side) + 1)]
    where = instance({**dict(zip(names, swarm.honest, strict=True)), "liar": swarm.lying})
    table = Table(where, " ".join(["p0", "liar", *names]))
    for half in (True, False):
        there = [name for name, one in zip(names, side, strict=True) if one is half]
        members = [*(["p0"] if half and swarm.coordinator else []), *there, "liar"]
        table.votes["liar"] = where.first_vote(voter("liar"))  # it forgets
        with suppress(ValueError):  # no quorum
            table.round(group(where, " ".join(members), "liar", int(half)))
    return len(table.links)


@pytest.mark.parametrize("seed", range(12))
def test_a_voter_that_votes_twice_makes_two_averages_exactly_if_both_halves_are_quorums(seed: int) -> None:
    random = Random(seed)
    swarm = Swarm.random(random, random.choice([0.1, 0.3, 0.5]), random.random() < 0.5)
    for side in (random.choice([*filter(swarm.forks, swarm.sides()), *swarm.sides()]) for _ in range(4)):
        assert (two_rounds(swarm, side) == 2) is swarm.forks(side)


@pytest.mark.parametrize(
    ("share", "there", "chosen", "most"),
    [(0.2, False, True, 0.02), (0.16, False, True, 0.0), (0.1, True, False, 0.25), (0.1, False, False, 0.0)],
)
def test_a_sixth_of_the_weight_is_borne_without_the_coordinator_and_chance_is_kind(
    share: float, there: bool, chosen: bool, most: float
) -> None:
    """The table in docs/security.md."""
    assert share_that_forks(share, there, chosen, examples=100) <= most


def test_two_identities_lie_as_one_of_their_common_weight() -> None:
    """Each is capped at a third of the step; together they may be more."""
    where = instance({"p1": 3, "p2": 3, "p8": 4, "p9": 4})
    table = Table(where, "p1 p2 p8 p9")
    for member in ("p1", "p2"):
        for liar in ("p8", "p9"):
            table.votes[liar] = where.first_vote(voter(liar))
        table.round(group(where, f"{member} p8 p9", "p8", int(member[1])))
    assert len(table.links) == 2


def test_a_lie_about_a_vote_replaces_an_average_that_nobody_there_knows() -> None:
    """Any weight is enough: a quorum's votes do not say why they were cast."""
    where = instance({"p1": 10, "p2": 10, "p3": 10, "p4": 1})
    table = Table(where, "p1 p2 p3 p4")
    table.round(group(where, "p1 p2 p3 p4", "p4", 1), lambda source, target, message: hides(source, message))
    assert table.commits.keys() == {"p4"}
    value = where.value([entry(where, "p1"), entry(where, "p4")], [4, 4], "5" * 64)
    epoch = Epoch(1, "p4", "f" * 64)
    lie = where.accepted(voter("p4"), epoch, value).signed(signer("p4"))
    table.votes["p4"] = where.first_vote(voter("p4")).model_copy(update={"accepted": lie, "value": value})
    table.commits["p4"] = first = table.commits.pop("p4")
    table.round(group(where, "p4 p1 p2 p3", "p1 p2", 2, first=2))
    assert first.link != table.commits["p1"].link == value.link


def hides(source: str, message: Message) -> Message | None:
    """The liar decides, and tells nobody."""
    return None if source == "p4" and isinstance(message, Decided) else message


def test_a_voter_without_weight_cannot_lie_about_a_vote() -> None:
    where = instance({"p1": 10, "p2": 10, "p3": 10})
    table = Table(where, "p1 p2 p3 p4")
    value = where.value([entry(where, "p4")], [4], "5" * 64)
    lie = where.accepted(voter("p4"), Epoch(0, "", ""), value).signed(signer("p4"))
    table.votes["p4"] = where.first_vote(voter("p4")).model_copy(update={"accepted": lie, "value": value})

    def with_promise(source: str, target: str, message: Message) -> Message | None:
        if source == "p4" and isinstance(message, Report):  # it need not be asked
            vote = table.votes["p4"].model_copy(update={"promised": message.epoch})
            promise = where.promise(vote).signed(signer("p4"))
            return Promised(group=message.group, promise=promise, value=value)
        return message

    table.round(group(where, "p1 p2 p3 p4", "p1 p2 p4"), with_promise)
    assert value.link not in table.links


@pytest.mark.parametrize("seed", range(4))
def test_a_fork_ends_with_the_longer_branch(seed: int) -> None:
    """Voters of all peers' keys make one at 20 s; what must hold in the end holds again."""
    sim = Simulation(seed, name="forked")
    sim.watch.forks = True
    peers = swarm_of(sim, 5, speed=3)
    sim.world.run(20)
    sim.options = Options(minimum=100)  # nobody begins a round
    sim.world.run(30, stop=lambda: sum(process.contributions.samples for process in sim.processes()) > 40)
    sim.options = Options(minimum=12)
    head, members = sim.best().head, [process for process in sim.processes() if process.idle]
    assert {process.head.previous for process in members} == {head.previous}
    entries = [process.entry() for process in members]
    for place, process in enumerate(members):
        chosen = entries if place % 2 else entries[:-1]
        average = add(*map(gradient, chosen))
        value = head.value(chosen, sim.options.weigh(chosen), digest_of(average))
        votes = [head.accepted(each.voter, Epoch(1, "p1", "0" * 64), value) for each in entries]
        signed = tuple(vote.signed(SimulatedSigner(seed, vote.voter.peer)) for vote in votes)
        process.adopt([Commit(value=value, accepted=signed)], {value.link: average}, sim.world.now)
    assert len({process.head.previous for process in sim.processes()}) > 1
    assert sim.run(40) < 90
    assert len(peers) == 6
