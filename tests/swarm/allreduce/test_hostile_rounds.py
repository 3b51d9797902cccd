"""Members of one round that lie to the others: a step all the same, or none, and never two."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from benchmarks.lib.party import HashSigner
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.allreduce.link import MAX_POSTS
from dedloc_kit.swarm.allreduce.reduction.keeping import Kept
from dedloc_kit.swarm.allreduce.streams import MAX_CHUNK_BYTES, Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Group, Message, Promised, Proposal, new_value
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Promise
from dedloc_kit.swarm.network.service import Stream
from tests.swarm.allreduce.tapped import Tapped, agreed, check_one_step, groups_in, kind_of, mean_of

SAMPLES = (3, 2, 5, 4, 7)
SIZE = 600_000
PATIENCE, LIMIT = Patience(1.0, 2.0), 15.0
CLIENT = 4

Lie = Callable[[int, bytes], Sequence[bytes]]
"""What a liar sends to a member in place of a message."""


@dataclass
class Lied(Tapped):
    """:ivar said: what each member introduces itself with to a reducer, if that is not the usual"""

    said: "dict[tuple[int, int], Entry]" = None  # type: ignore[assignment]

    async def serve(self, number: int, sender: int, there: Stream) -> None:
        entry = (self.said or {}).get((sender, number), self.entry(sender))
        await self.members[number].serve(self.plan.members[sender], wire.introduction(0, entry), there)


def a_party(samples: Sequence[int] = SAMPLES, size: int = SIZE, compression: str = "none") -> Lied:
    torch.manual_seed(0)
    gradients = [torch.randn(size) for _ in samples]
    return Lied(gradients, samples, clients=1, patience=PATIENCE, limit=LIMIT, compression=compression)


def meet(party: Lied, liar: int, lie: Lie, seconds: float = 60.0) -> list[BaseException | None]:
    """A round in which this member says what `lie` makes of its messages."""

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        return lie(receiver, message) if sender == liar else [message]

    async def run() -> list[BaseException | None]:
        party.tap = tap
        await party.begin()
        async with asyncio.timeout(seconds):
            await asyncio.wait([task for number, task in enumerate(party.tasks) if number != liar])
        party.tasks[liar].cancel()
        return await party.end()

    return in_own_loop(run())


def check(party: Lied, liar: int, outcomes: Sequence[object], *, all_count: bool = True) -> set[int]:
    """All honest members took one step, which counts all of them; none of them is blamed. Who counts."""
    took = check_one_step(party, [RuntimeError() if n == liar else outcome for n, outcome in enumerate(outcomes)])
    honest = set(range(len(party.samples))) - {liar}
    assert set(took) == honest, outcomes
    counted = {int(entry.peer.removeprefix("peer")) for entry in party.members[took[0]].counted}
    assert {number for number in honest if party.samples[number]} <= counted or not all_count
    for number in honest:
        assert party.members[number].culprits <= {f"peer{liar}"}
    return counted


def again(message: Message) -> bytes:
    return wire.agreement(message)


# The first in rank


def of_another_nonce() -> Lie:
    """Two halves of the members are told two groups."""

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        group = groups_in(message)
        return [wire.group(group.changed(nonce="0" * 32))] if group is not None and receiver % 2 else [message]

    return lie


def of_forged_entries() -> Lie:
    """A member is said to bring more than it has signed."""

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (group := groups_in(message)) is None:
            return [message]
        entry = group.members[0]
        piece = entry.pieces[0].model_copy(update={"samples": 1000})
        return [wire.group(group.changed(members=(entry.changed(pieces=(piece,)), *group.members[1:])))]

    return lie


def of_half_the_voters() -> Lie:
    """There is no quorum in it."""

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (group := groups_in(message)) is None:
            return [message]
        peers = {entry.peer for entry in group.members[:2]}
        reducers = tuple(peer for peer in group.reducers if peer in peers)
        return [wire.group(group.changed(members=group.members[:2], reducers=reducers))]

    return lie


def of_a_client_that_reduces() -> Lie:
    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (group := groups_in(message)) is None:
            return [message]
        return [wire.group(group.changed(reducers=(f"peer{CLIENT}", *group.reducers)))]

    return lie


def no_group() -> Lie:
    """It says that it is here, and nothing else."""
    return lambda receiver, message: [message] if kind_of(message) == Kind.HERE else []


def nothing() -> Lie:
    return lambda receiver, message: []


def two_proposals() -> Lie:
    """First one that leaves a member out."""

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (proposal := agreed(message, Proposal)) is None:
            return [message]
        return [again(proposal.changed(counted=proposal.counted[:-1])), message]

    return lie


def a_proposal_of_strangers() -> Lie:
    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (proposal := agreed(message, Proposal)) is None:
            return [message]
        return [again(proposal.changed(counted=(*proposal.counted, 77)))]

    return lie


def a_commit_without_votes() -> Lie:
    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (decided := agreed(message, Decided)) is None:
            return [message]
        commit = decided.commit.changed(accepted=decided.commit.accepted[:1])
        return [again(decided.changed(commit=commit))]

    return lie


LEADERS = [
    of_another_nonce,
    of_forged_entries,
    of_half_the_voters,
    of_a_client_that_reduces,
    no_group,
    nothing,
    a_proposal_of_strangers,
    a_commit_without_votes,
]


@pytest.mark.parametrize("lies", LEADERS)
def test_when_the_first_in_rank_lies_or_is_mute_the_others_take_one_step_without_it(lies: Callable[[], Lie]) -> None:
    party = a_party()
    liar = party.ranking[0]
    outcomes = meet(party, liar, lies())
    check(party, liar, outcomes, all_count=lies is not of_another_nonce)


def test_of_two_proposals_in_one_epoch_no_two_steps_come() -> None:
    party = a_party()
    liar = party.ranking[0]
    outcomes = meet(party, liar, two_proposals())
    took = check_one_step(party, outcomes)
    assert set(took) >= set(range(5)) - {liar}
    assert all(party.members[number].culprits <= {f"peer{liar}"} for number in range(5) if number != liar)


def test_whom_a_group_leaves_out_though_it_was_there_takes_the_step_all_the_same() -> None:
    party = a_party()
    liar, left = party.ranking[0], party.ranking[2]

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if (group := groups_in(message)) is None:
            return [message]
        members = tuple(entry for entry in group.members if entry.peer != f"peer{left}")
        reducers = tuple(peer for peer in group.reducers if peer != f"peer{left}")
        return [wire.group(group.changed(members=members, reducers=reducers))]

    outcomes = meet(party, liar, lie)
    assert set(check_one_step(party, outcomes)) >= set(range(5)) - {liar}


def test_whoever_takes_over_and_hides_that_a_step_may_be_decided_is_named_and_the_others_take_that_step() -> None:
    party = a_party()
    leader, liar = party.ranking[:2]
    decided, promises = list[str](), list[Promise]()

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if receiver == liar and (promised := agreed(message, Promised)) is not None:
            promises.append(promised.promise)
        if sender == leader and (found := agreed(message, Decided)) is not None:
            decided.append(found.commit.link)
            party.kill(leader)  # it alone knows
            return []
        proposal = agreed(message, Proposal)
        if sender == liar and proposal is not None and proposal.value is not None:
            counted = tuple(n for n in range(len(SAMPLES)) if n != leader)
            return [again(proposal.changed(value=None, holders=(), counted=counted, proof=tuple(promises)))]
        return [message]

    async def run() -> list[BaseException | None]:
        party.tap = tap
        await party.begin()
        async with asyncio.timeout(60.0):
            await asyncio.wait([task for number, task in enumerate(party.tasks) if number not in (leader, liar)])
        party.tasks[liar].cancel()
        return await party.end()

    outcomes = in_own_loop(run())
    took = check_one_step(party, outcomes)
    honest = [number for number in range(5) if number not in (leader, liar)]
    for number in honest:
        assert number not in took or party.members[number].counted, outcomes
        if (commit := party.members[number].commit) is not None:
            assert commit.link == decided[0], "another step than the one that was decided"
        assert f"peer{liar}" in party.members[number].culprits


# Reducers and holders


def another(number: int, name: bytes, encoded: bytes, length: int) -> bytes:
    """An average with other values, as well encoded."""
    values = decode(read_part(encoded), length)
    return wire.average(
        number, name, bytes(Feedback(length).encode(codec_of("none").averages, -values, 0).SerializeToString())
    )


def turned(party: Lied, message: bytes) -> bytes:
    number, name, encoded = wire.read_average(message[1:])
    begin, end = party.plan.chunks[number]
    return another(number, name, encoded, end - begin)


def test_whom_a_reducer_sends_another_average_than_the_others_gets_theirs() -> None:
    party = a_party()
    liar, wronged = party.ranking[1], party.ranking[2]

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        return [turned(party, message)] if receiver == wronged and kind_of(message) == Kind.AVERAGE else [message]

    check(party, liar, meet(party, liar, lie))


def test_a_reducer_that_sends_everybody_another_average_falsifies_its_own_share_at_most_and_the_same_for_all() -> None:
    """Whether a sum is right only checks of work find out."""
    party = a_party()
    liar = party.ranking[1]

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if kind_of(message) != Kind.AVERAGE:
            return [message]
        number, name, encoded = wire.read_average(message[1:])
        begin, end = party.plan.chunks[number]
        values = decode(read_part(encoded), end - begin) * (2.0 + receiver)
        made = Feedback(end - begin).encode(codec_of("none").averages, values, 0)
        return [wire.average(number, name, bytes(made.SerializeToString()))]

    for number in check_one_step(party, meet(party, liar, lie), 10.0):
        mean = mean_of(party, party.members[number].counted)
        for (begin, end), owner in zip(party.plan.chunks, party.plan.first.makers, strict=True):
            if owner != liar:
                assert torch.allclose(party.averages[number][begin:end], mean[begin:end], atol=1e-4)


def test_who_asks_a_holder_that_gives_wrong_chunks_gets_the_right_ones_from_the_next_and_names_it() -> None:
    """One reducer gives a member a wrong average, and then, asked for the right one, a wrong one again."""
    party = a_party()
    liar, wronged = party.ranking[0], party.ranking[2]
    flooded = 0

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        nonlocal flooded
        if receiver != wronged or kind_of(message) != Kind.AVERAGE:
            return [message]
        flooded += 1
        return [turned(party, message)]

    outcomes = meet(party, liar, lie)
    check(party, liar, outcomes)
    assert flooded
    assert party.members[wronged].culprits == {f"peer{liar}"}


# Members


def twice() -> Lie:
    """All that it should, and each part once more."""
    return lambda receiver, message: [message] * (2 if kind_of(message) == Kind.PART else 1)


def for_another() -> Lie:
    """Parts of chunks that others reduce."""

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if kind_of(message) != Kind.PART:
            return [message]
        number, encoded = wire.read_part(message[1:])
        return [wire.part((number + 7) % 18, encoded)]

    return lie


def nothing_but_life() -> Lie:
    """Its parts never come, and it says that it is here."""
    return lambda receiver, message: [bytes([Kind.HERE])] if kind_of(message) == Kind.PART else [message]


@pytest.mark.parametrize("lies", [twice, for_another, nothing_but_life])
def test_who_sends_parts_twice_or_for_anothers_share_or_none_is_left_out(lies: Callable[[], Lie]) -> None:
    party = a_party()
    assert check(party, CLIENT, meet(party, CLIENT, lies())) == {0, 1, 2, 3}
    if lies is twice:
        for number in range(4):
            assert party.members[number].culprits == {f"peer{CLIENT}"}
            assert party.members[number].absent == {f"peer{CLIENT}": "sent nonsense"}


@pytest.mark.parametrize("compression", ["4bit", "sparse"])
def test_who_sends_more_than_the_runs_compression_needs_is_left_out_and_named(compression: str) -> None:
    party = a_party(compression=compression)

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if kind_of(message) != Kind.PART:
            return [message]
        number, _ = wire.read_part(message[1:])
        begin, end = party.plan.chunks[number]
        exact = Feedback(SIZE).encode(codec_of("none").gradients, party.gradients[CLIENT][begin:end], begin)
        return [wire.part(number, bytes(exact.SerializeToString()))]

    outcomes = meet(party, CLIENT, lie)
    took = check_one_step(party, outcomes, 10.0)
    assert took == [0, 1, 2, 3]
    for number in range(4):
        assert party.members[number].culprits == {f"peer{CLIENT}"}
        assert party.members[number].absent[f"peer{CLIENT}"] == "sent nonsense"


MALFORMED = {
    "no such kind": bytes([99]) + b"nonsense",
    "a part without a number": bytes([Kind.PART, 0, 0]),
    "a part that there is not": wire.part(2**31, b"nonsense"),
    "nonsense for values": wire.part(0, b"\xff\xff\xff"),
    "an average without a name": bytes([Kind.AVERAGE, 0, 0, 0, 0, 7]),
    "an average that there is not": wire.average(2**31, bytes(32), b""),
    "an average that is too long": wire.average(0, bytes(32), bytes(MAX_CHUNK_BYTES - 100)),
    "no group": bytes([Kind.GROUP]) + b'{"run_id": "run"}',
    "no agreement": bytes([Kind.AGREEMENT]) + b"consensus/vote\n{}",
    "nested agreement": bytes([Kind.AGREEMENT]) + b"consensus/promised\n" + b"[" * 50_000,
    "no wish": bytes([Kind.FETCH]) + b"\x93\x01\x02\x03",
    "nested wish": bytes([Kind.FETCH]) + b"\x91" * 50_000,
    "nobody to blame": bytes([Kind.GAVE_UP]) + b"\xc1",
    "a long message": bytes([Kind.HERE]) + bytes(MAX_CHUNK_BYTES + 20 * wire.ENTRY_BYTES),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_who_sends_what_is_no_message_is_out_of_the_round_and_the_others_go_on(message: bytes) -> None:
    party, said = a_party(size=30_000), set[int]()

    def lie(receiver: int, usual: bytes) -> Sequence[bytes]:
        new = receiver not in said
        said.add(receiver)
        return [message, usual] if new else [usual]

    assert check(party, CLIENT, meet(party, CLIENT, lie)) >= {0, 1, 2, 3}
    for number in range(4):
        assert party.members[number].culprits == {f"peer{CLIENT}"}


def test_who_brings_one_entry_to_the_group_and_another_one_to_a_reducer_is_left_out_with_evidence() -> None:
    party = a_party()
    told_otherwise = party.ranking[1]
    mine = party.entry(CLIENT)
    piece = mine.pieces[0].model_copy(update={"samples": 1, "weight": 1})
    other = mine.changed(pieces=(piece,)).signed(HashSigner(mine.peer))
    party.said = {(CLIENT, told_otherwise): other}
    outcomes = meet(party, CLIENT, lambda receiver, message: [message])
    assert check(party, CLIENT, outcomes) == {0, 1, 2, 3}
    assert party.members[told_otherwise].differing == [(other, mine)]


def test_who_brings_the_entry_of_another_is_out_of_the_round() -> None:
    party = a_party()
    party.said = {(CLIENT, number): party.entry(0) for number in range(4)}
    assert check(party, CLIENT, meet(party, CLIENT, lambda receiver, message: [message])) == {0, 1, 2, 3}
    assert all(party.members[number].culprits == {f"peer{CLIENT}"} for number in range(4))


def test_of_one_that_sends_every_share_to_everyone_no_reducer_keeps_more_than_twice_its_own() -> None:
    party = a_party((3, 0, 5, 4, 7))
    kept, reducer = defaultdict[str, int](int), 1

    def keep(content: bytes) -> Kept:
        kept["all"] += 1
        return lambda: content

    def lie(receiver: int, message: bytes) -> Sequence[bytes]:
        if kind_of(message) != Kind.PART:
            return [message]
        number, content = wire.read_part(message[1:])
        first = number == party.plan.first.makers.index(receiver)
        begin, end = party.plan.chunks[number]
        more = (
            n
            for n, (b, e) in enumerate(party.plan.chunks)
            if e - b == end - begin and party.plan.first.makers[n] != receiver
        )
        return [message, *(wire.part(n, content) for n in more)] if first else [message]

    party.lent = {reducer: keep}
    outcomes = meet(party, CLIENT, lie)
    check(party, CLIENT, outcomes)
    share, others = party.plan.first.makers.count(reducer), len(SAMPLES) - 2
    assert others * share < kept["all"] <= (others + 2) * share + 1


@pytest.mark.parametrize("kind", [Kind.WHICH, Kind.FETCH, Kind.ASK, Kind.AVERAGE])
def test_who_asks_and_reads_no_answers_is_cut_off(kind: Kind) -> None:
    party = a_party()

    async def run() -> None:
        await party.begin(but=(CLIENT,))
        here, there = await party.connect(CLIENT, 0)
        member = party.members[0]
        serving = asyncio.create_task(party.serve(0, CLIENT, there))
        async with asyncio.timeout(60.0):
            await asyncio.wait(party.tasks[:4])
        assert member.commit is not None
        asks = {
            Kind.WHICH: [wire.which(member.agreement.group.id)] if member.agreement.group else [],
            Kind.FETCH: [wire.fetch(member.commit.link, member.commit.value.average, range(18))],
            Kind.ASK: [bytes([Kind.ASK])],
            Kind.AVERAGE: [wire.average(0, bytes(32), b"")],
        }[kind]
        try:
            for _ in range((100 if kind == Kind.AVERAGE else 3) * MAX_POSTS):
                await here.send(asks[0])
                await asyncio.sleep(0)
                if serving.done():
                    break
        except OSError:
            pass
        if kind != Kind.FETCH:  # there is one answer at a time, whatever is asked
            assert there.writer.is_closing()
        here.close()
        await party.end()
        await asyncio.wait([serving])

    in_own_loop(run())


def test_a_vote_for_an_average_that_nobody_has_makes_nobody_take_it() -> None:
    """A member claims it when the second in rank takes over."""
    party = a_party()
    leader, liar = party.ranking[0], CLIENT
    groups = dict[str, Group]()

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if (group := groups_in(message)) is not None:
            groups[group.id] = group
        if sender == leader and agreed(message, Proposal) is not None and not party.tasks[leader].done():
            party.kill(leader)
            return []
        promised = agreed(message, Promised)
        if sender == liar and promised is not None and promised.promise.epoch.number > 1:
            group, promise = groups[promised.group], promised.promise
            options = party.members[liar].setting.options(group.members)
            value = new_value(party.instance, group, range(len(group.members)), "7" * 64, options)
            epoch = Epoch(1, f"peer{leader}", group.id)
            lie = party.instance.accepted(promise.voter, epoch, value).signed(HashSigner(f"peer{liar}"))
            claimed = promise.changed(accepted=lie).signed(HashSigner(f"peer{liar}"))
            return [again(promised.changed(promise=claimed, value=value))]
        return [message] if sender != liar or agreed(message, Acceptance) is None else []

    async def run() -> list[BaseException | None]:
        party.tap = tap
        await party.begin()
        async with asyncio.timeout(60.0):
            await asyncio.wait([task for number, task in enumerate(party.tasks) if number not in (leader, liar)])
        party.tasks[liar].cancel()
        return await party.end()

    outcomes = in_own_loop(run())
    check_one_step(party, outcomes)
    assert not any(m.commit is not None and m.commit.value.average == "7" * 64 for m in party.members)
