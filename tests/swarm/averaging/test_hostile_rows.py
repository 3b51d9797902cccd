"""Members of an all-reduce over rows that lie to the others: a step all the same, or none, and never two.

In simulated time, as test_rows.py.
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch

from benchmarks.lib.party import GROUP, Party, PlainSigner, keep_the_certificate
from dedloc_kit.swarm.averaging.agreement.handshake import Introductions
from dedloc_kit.swarm.averaging.agreement.leader import Ballot
from dedloc_kit.swarm.averaging.agreement.roll import Held, Proposal, Roll
from dedloc_kit.swarm.averaging.allreduce import AllReduce
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, say
from tests.swarm.averaging.test_rows import (
    LIMIT,
    PATIENCE,
    SIZE,
    Rows,
    check,
    head,
    in_rows,
    leader,
    owner,
    three_by_three,
)

SOON = 15 * PATIENCE.usual
"""Simulated seconds: a few times somebody is found out, and what was sent is sent anew."""


def without(roll: Roll, member: int, name: bytes = b"") -> Roll:
    names = list(roll.introductions)
    names[member] = name
    return Roll(**{**roll.model_dump(), "introductions": tuple(names)})


def against(party: Rows, *liars: int, at_first: Callable[[], object] = lambda: None) -> list[BaseException | None]:
    """A round in which all but the liars come to an end by themselves, and soon."""

    async def story() -> None:
        began = party.simulated.now
        at_first()
        honest = [task for number, task in enumerate(party.tasks) if number not in liars]
        await asyncio.wait(honest, timeout=LIMIT)
        assert party.simulated.now - began < SOON
        for liar in liars:
            party.tasks[liar].cancel()

    return party.run(story)


def others_than(*liars: int, of: int = 9) -> list[int]:
    return [number for number in range(of) if number not in liars]


def culprits(party: Party, honest: Sequence[int]) -> set[str]:
    return set().union(*(party.members[number].culprits for number in honest))


class SignsAsAnother(AllReduce):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        other = next(peer for peer in self.plan.members if peer != self.handshake.me)

        def propose(roll: Roll) -> bytes:
            return PlainSigner(other).sign(Proposal(group=GROUP, ballot=roll.ballot, roll=roll.name, average=b""))

        self._voter._votes.propose = propose  # type: ignore[method-assign]


class AltersTheRoll(AllReduce):
    """Of each ballot that it leads."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        leading = self._voter.leading
        propose = leading._propose

        def lie() -> None:
            ballot = leading.ballot
            if ballot is not None and ballot.resumed is None:
                ballot.roll = lambda: self.change(Ballot.roll(ballot))  # type: ignore[method-assign]
            propose()

        leading._propose = lie  # type: ignore[method-assign]

    def change(self, roll: Roll) -> Roll:
        raise NotImplementedError


class NamesAStranger(AltersTheRoll):
    def change(self, roll: Roll) -> Roll:
        return Roll(**{**roll.model_dump(), "introductions": (*roll.introductions, bytes(32))})


class NamesWhoIsNotThere(AltersTheRoll):
    def change(self, roll: Roll) -> Roll:
        return without(roll, roll.introductions.index(b""), bytes(32))


class NamesWhoIsNotWhole(AltersTheRoll):
    """Everybody of whom any reducer has something."""

    def change(self, roll: Roll) -> Roll:
        assert self._voter.leading.ballot is not None
        for names in self._voter.leading.ballot.reports.values():
            for member, name in names.items():
                roll = without(roll, member, name)
        return roll


class LeavesOutARow(AltersTheRoll):
    def change(self, roll: Roll) -> Roll:
        for member in self.plan.teams[(self.row + 1) % 3]:
            roll = without(roll, member)
        return roll


class TellsEachRowAnotherRoll(AllReduce):
    """Each head gets a roll of its own, and never hears of the others'."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        telling, votes = self._voter.telling, self._voter._votes
        hand_on = telling._hand_on

        def lie(held: Held, member: int) -> None:
            if self.plan.rows[member] != self.row:
                last = self.plan.teams[self.plan.rows[member]][-1]
                other = without(held.roll, last)
                held = Held(roll=other, signed=votes.propose(other), promises=held.promises)
            hand_on(held, member)

        telling._hand_on = lie  # type: ignore[method-assign]


class SaysNothing(AllReduce):
    """It takes what comes, and never answers."""

    async def serve(self, sender: str, introduction: bytes, stream: object) -> None:
        await asyncio.Event().wait()


class DoesNothingAfterTheRoll(AllReduce):
    """But say that it is here."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        leading = self._voter.leading
        leading.watch = leading.judge = lambda *_: None  # type: ignore[method-assign, assignment]

    def reduce(self, roll: Roll) -> None:
        pass

    def average(self, introductions: Introductions) -> None:
        pass


def test_a_leader_that_does_nothing_after_the_roll_is_given_up_and_the_next_one_has_the_time_to_lead() -> None:
    party = three_by_three()
    liar = leader(party)
    party.kinds[liar] = DoesNothingAfterTheRoll
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    assert culprits(party, honest) <= {f"peer{liar}"}


@pytest.mark.parametrize("kind", [SignsAsAnother, NamesAStranger, TellsEachRowAnotherRoll, SaysNothing])
def test_a_leader_of_all_rows_that_lies_or_is_mute_is_named_and_the_next_one_leads(kind: type[AllReduce]) -> None:
    party = three_by_three()
    liar = leader(party)
    party.kinds[liar] = kind
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest), "its own row as well"
    assert culprits(party, honest) == {f"peer{liar}"}


def test_a_leader_that_counts_somebody_of_another_row_who_never_came_is_named_and_the_next_one_leads() -> None:
    party = three_by_three()
    liar, missing = leader(party), owner(party)
    party.kinds[liar] = NamesWhoIsNotThere
    outcomes = against(party, liar, missing, at_first=lambda: party.kill(missing))
    honest = others_than(liar, missing)
    assert missing not in check(party, honest, outcomes)
    assert f"peer{liar}" in culprits(party, honest) <= {f"peer{liar}", f"peer{missing}"}


def test_a_roll_that_names_whom_one_reducer_lacks_is_held_against_its_leader_and_not_against_who_hands_it_on() -> None:
    party = in_rows([0, 1, 2] * 4, clients=3)
    liar, lacks = leader(party), owner(party)
    late = next(m for m in party.plan.teams[party.plan.rows[lacks]] if m not in party.plan.reducers)
    party.kinds[liar] = NamesWhoIsNotWhole
    outcomes = against(party, liar, at_first=lambda: party.cut([lacks], [late]))
    honest = others_than(liar, of=12)
    assert check(party, honest, outcomes) >= set(honest), "without that reducer all is there"
    assert party.members[lacks].culprits - {f"peer{late}"} == {f"peer{liar}"}
    assert f"peer{head(party)}" not in culprits(party, honest)


def test_a_row_that_a_leader_leaves_out_takes_the_step_and_doubts_the_leader() -> None:
    party = three_by_three()
    liar = leader(party)
    party.kinds[liar] = LeavesOutARow
    left_out = party.plan.teams[(party.plan.rows[liar] + 1) % 3]
    outcomes = against(party, liar)
    assert check(party, others_than(liar), outcomes) == set(range(9)) - set(left_out)
    for number in left_out:
        assert f"peer{liar}" in party.members[number].doubted
    assert not any(party.members[number].doubted for number in others_than(liar, *left_out))


def test_the_head_of_a_row_that_is_mute_is_named_and_costs_its_row_nothing() -> None:
    party = three_by_three()
    liar = head(party)
    party.kinds[liar] = SaysNothing
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    assert culprits(party, honest) == {f"peer{liar}"}


class Complains(AllReduce):
    """As soon as it is told the roll, of these reducers of other rows."""

    of: tuple[int, ...] = ()

    def know(self, introductions: Introductions) -> None:
        super().know(introductions)
        for link in (*self.links.up.values(), *self.links.down.values()):
            for accused in self.of:
                if self.plan.rows[accused] != self.row:
                    link.post(say(Says.GONE, [accused]))


@pytest.mark.parametrize("who", [owner, head])
@pytest.mark.parametrize("whom", ["the leader", "all"])
def test_whoever_complains_of_all_and_everybody_keeps_nobody_from_the_step(
    who: Callable[[Party], int], whom: str
) -> None:
    party = three_by_three()
    liar = who(party)
    accused = (leader(party),) if whom == "the leader" else party.ranking

    class Complaining(Complains):
        of = accused

    party.kinds[liar] = Complaining
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    assert not culprits(party, honest) - {f"peer{liar}"}
    named = set().union(*(party.members[number].named for number in honest))
    assert len(named) <= (1 if who is owner else 3), "a head speaks for its row"


def introducers(party: Party) -> list[int]:
    """One of each row that gives its introductions to another one."""
    deal, rows, found = party.plan.first, party.plan.rows, []
    for row in range(3):
        there = [n for n, finisher in enumerate(deal.finishers) if rows[finisher] == (row + 1) % 3]
        found.append(deal.owners[row][there[row % len(there)]])
    return found


class IntroducesFalsely(AllReduce):
    """What it gives another row is not what its members have said."""

    def post(self, reducer: int, *contents: bytes) -> None:
        false = []
        for content in contents:
            if content[0] == Says.INTRODUCTIONS:
                roll, signed = messages.read_introductions(content[1:])
                false += messages.introductions(roll, dict.fromkeys(signed, b"9"))
            else:
                false.append(content)
        super().post(reducer, *false)


class IntroducesOthers(AllReduce):
    """It speaks for members of a row that is not its own."""

    def post(self, reducer: int, *contents: bytes) -> None:
        false = []
        for content in contents:
            if content[0] == Says.INTRODUCTIONS:
                roll, signed = messages.read_introductions(content[1:])
                others = self.plan.teams[self.plan.rows[reducer]]
                false += messages.introductions(roll, dict(zip(others, signed.values(), strict=False)))
            else:
                false.append(content)
        super().post(reducer, *false)


class IntroducesNobody(AllReduce):
    """And goes on saying to all that it is here."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        links = self.links
        self._voter.to_reassure = lambda: [*links.up.values(), *links.down.values()]  # type: ignore[method-assign]

    def post(self, reducer: int, *contents: bytes) -> None:
        super().post(reducer, *(content for content in contents if content[0] != Says.INTRODUCTIONS))


@pytest.mark.parametrize("kind", [IntroducesFalsely, IntroducesOthers, IntroducesNobody])
@pytest.mark.parametrize("place", range(3))
def test_an_owner_that_introduces_its_row_falsely_or_not_at_all_is_named_and_the_others_take_the_step(
    kind: type[AllReduce], place: int
) -> None:
    party = three_by_three()
    liar = introducers(party)[place]
    party.kinds[liar] = kind
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    blamed = set().union(*(m.culprits | m.named for number, m in enumerate(party.members) if number != liar))
    assert blamed == {f"peer{liar}"}


# Means of rows


def encoded(member: AllReduce, values: int) -> bytes:
    way = member._coding.of_means(0, member.plan.layout)
    return bytes(way.compress(torch.full((values,), 1e6)).SerializeToString())


class SendsMeansOfAnotherLength(AllReduce):
    def post(self, reducer: int, *contents: bytes) -> None:
        false = []
        for content in contents:
            if content[0] == Says.MEAN:
                number, roll, _ = messages.read_average(content[1:])
                begin, end = self.plan.chunks[number]
                content = messages.mean(number, roll, encoded(self, end - begin - 1))
            false.append(content)
        super().post(reducer, *false)


class SendsMeansToTheWrongOnes(AllReduce):
    """Of chunks that it does not own, and to those who do not finish them, before what it should."""

    def post(self, reducer: int, *contents: bytes) -> None:
        roll = self._voter.roll
        if roll is not None and any(content[0] == Says.MEAN for content in contents):
            for number, (begin, end) in enumerate(self.plan.chunks):
                deal = self.plan.deal(roll.reducers)
                if deal.owners[self.row][number] != self.mine or deal.finishers[number] != reducer:
                    super().post(reducer, messages.mean(number, roll.name, encoded(self, end - begin)))
        super().post(reducer, *contents)


class IsAClientThatSendsMeans(AllReduce):
    """It goes to the reducers of all rows and hands in means of its own."""

    def know(self, introductions: Introductions) -> None:
        super().know(introductions)
        roll = self._voter.roll
        assert roll is not None
        for reducer in self.plan.reducers:
            if self.plan.rows[reducer] != self.row:
                for number, (begin, end) in enumerate(self.plan.chunks):
                    self.post(reducer, messages.mean(number, roll.name, encoded(self, end - begin)))


def test_an_owner_that_sends_means_of_another_length_is_named_and_the_others_take_the_step() -> None:
    party = three_by_three()
    liar = owner(party)
    party.kinds[liar] = SendsMeansOfAnotherLength
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    assert culprits(party, honest) == {f"peer{liar}"}


def test_means_for_others_change_nothing_and_take_little_memory() -> None:
    party = in_rows([0, 1, 2, 3] * 7, clients=12, compression="4bit")
    liar = owner(party)
    party.kinds[liar] = SendsMeansToTheWrongOnes
    honest = others_than(liar, of=28)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes, error=0.3) >= set(honest)
    for reducer in set(party.plan.reducers) - {liar}:
        means, parts = party.members[reducer]._reducing.means, party.members[reducer].parts
        kept = sum(len(mean) for of in means._kept.values() for _, mean in of.values())
        kept += sum(len(part()) for of in parts._kept.values() for part in of.values())
        assert 0 < kept <= 2 * share_of_the_gradients(party, reducer)


def share_of_the_gradients(party: Rows, reducer: int) -> int:
    """Bytes of what the others in its row send a reducer."""
    member, row = party.members[reducer], party.plan.rows[reducer]
    chunks = [n for n, owner in enumerate(party.plan.first.owners[row]) if owner == reducer]
    each = 0
    for number in chunks:
        begin, end = party.plan.chunks[number]
        each += member._coding.of_gradients(begin, party.plan.layout).byte_count(end - begin)
    return each * (len(party.plan.teams[row]) - 1)


def test_a_client_that_hands_in_means_is_named_by_those_who_get_them_and_keeps_nobody_from_the_step() -> None:
    party = in_rows([0, 1, 2] * 4, clients=3)
    liar = 11
    party.kinds[liar] = IsAClientThatSendsMeans
    honest = others_than(liar, of=12)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    assert culprits(party, honest) == {f"peer{liar}"}


def test_of_a_row_of_clients_alone_nobody_counts_and_all_take_the_step() -> None:
    """As a hostile leader may put it together."""
    party = in_rows([0, 1, 0, 1, 0, 1, 2, 2], clients=2)
    outcomes = against(party)
    assert check(party, range(8), outcomes) == set(range(6))
    assert not culprits(party, range(8))


class FloodsWithWhatIsEarly(AllReduce):
    """Before there is a roll it sends what would be of one: introductions, averages and means without end."""

    async def _send(self, reducer: int, link: Link) -> None:
        for number in range(20):
            chunk, (begin, end) = number % len(self.plan.chunks), self.plan.chunks[number % len(self.plan.chunks)]
            for content in messages.introductions(bytes(32), {place: bytes([number]) * 300 for place in range(32)}):
                await link.send(content)
            await link.send(messages.average(chunk, bytes(32), encoded(self, end - begin)))
            await link.send(messages.average(chunk, bytes(32), bytes(60_000)))
        await super()._send(reducer, link)


class NotesWhatIsEarly(AllReduce):
    introductions_kept = averages_kept = 0

    def take_early(self, roll: Roll) -> None:
        kept = [content for of in self._voter.telling._early.values() for _, content in of]
        self.introductions_kept = max(self.introductions_kept, sum(map(len, kept)))
        kept = [content for of in self.averages._early.values() for _, content in of.values()]
        self.averages_kept = max(self.averages_kept, sum(map(len, kept)))
        super().take_early(roll)


def test_of_what_comes_before_its_roll_little_is_kept() -> None:
    party = three_by_three()
    liar = owner(party)
    party.kinds = dict.fromkeys(range(9), NotesWhatIsEarly)
    party.kinds[liar] = FloodsWithWhatIsEarly
    honest = others_than(liar)
    outcomes = against(party, liar)
    assert check(party, honest, outcomes) >= set(honest)
    noting = [member for member in party.members if isinstance(member, NotesWhatIsEarly)]
    most = max(member.introductions_kept for member in noting)
    assert most < 2 * 9 * 400, "of each member one, and another one"
    assert 0 < max(member.averages_kept for member in noting) < 4 * SIZE, "as much as a vector"


# What only another row holds


class KeepsNoAverages(AllReduce):
    """Of the first ballot; it makes its own, and sends them."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        take = self.averages.take

        def keep(number: int, encoded: bytes) -> None:
            if self._voter.ballot:
                take(number, encoded)

        self.averages.take = keep  # type: ignore[method-assign]


class GivesNothing(AllReduce):
    """Whoever asks it for averages gets none."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._voter.fetching.give = lambda *_: None  # type: ignore[method-assign]


def test_a_step_that_was_taken_is_taken_by_all_though_only_those_hold_it_to_whom_the_next_leader_has_no_stream() -> (
    None
):
    """The leader dies before it has told anybody that a quorum has the average."""
    party = in_rows([0, 1, 2] * 6, clients=12)
    first, second = party.ranking[:2]
    rows = party.plan.rows
    holders = [number for number in range(6, 18) if rows[number] != rows[second]]
    party.kinds = {n: KeepsNoAverages for n in range(18) if n != first and n not in holders}
    party.kinds |= dict.fromkeys(holders[:2], GivesNothing)
    party.organizer = holders[-1]

    async def story() -> None:
        keep_the_certificate(party.members[first])
        async with asyncio.timeout(LIMIT):
            assert await party.tasks[first] is None
        party.kill(first)

    outcomes = party.run(story)
    check(party, [number for number in range(18) if number != first], outcomes)
    assert torch.equal(party.averages[second], party.averages[first])
    voter = party.members[second]._voter
    assert voter.certified is not None
    assert voter.leader_of(voter.certified.ballot) == second, "it need not be given up"
