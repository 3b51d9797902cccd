"""Branches: which one wins, and what becomes of samples and orders of the one that is left."""

import pytest

from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord, samples_of
from dedloc_kit.swarm.consensus.contributions import Contributions, Orders
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Entry, PartReset, Piece, Reset
from tests.swarm.consensus.table import VERIFIER, decided, digest, entry, signer, voter

START = Reset(
    run_id="run",
    term=0,
    step=0,
    parts=(PartReset(part="", previous="", state=digest("zero"), voters=((voter("p1"), 1), (voter("p2"), 1))),),
    coordinator=voter("p0"),
).signed(signer("organizer"))
GENESIS = Instance.genesis(START, "", "organizer", VERIFIER)


def commits(count: int, after: Instance = GENESIS, entries: tuple[Entry, ...] | None = None) -> list[ChainRecord]:
    """So many in a row; what they count is `entries`, of the first one, and p1 and p2 later."""
    found: list[ChainRecord] = []
    for _ in range(count):
        counted = entries or (entry(after, "p1"), entry(after, "p2"))
        commit = decided(after, counted, "p1 p2")
        found.append(commit)
        after, entries = after.after(commit, VERIFIER), None
    return found


def reset(after: Instance, term: int, note: str = "", chosen: bool = False) -> Reset:
    part = PartReset(
        part="", previous=after.previous, state=digest("state", note), voters=((voter("p1"), 1), (voter("p2"), 1))
    )
    made = Reset(run_id="run", term=term, step=after.step, parts=(part,), coordinator=voter("p0"), chosen=chosen)
    return made.signed(signer("organizer"))


def chain(records: list[ChainRecord]) -> Chain:
    made = Chain(GENESIS, VERIFIER)
    made.adopt(records)
    return made


def test_a_branch_grows_by_what_follows_and_ignores_what_it_has() -> None:
    records = commits(3)
    made = chain(records[:2])
    assert made.head.step == 2
    change = made.adopt(records)
    assert (change.left, change.taken) == ((), tuple(records[2:]))
    assert made.adopt(records[1:]).taken == ()
    assert made.records == tuple(records)
    assert made.since(records[0].link) == tuple(records[1:])
    assert made.head.previous == records[2].link


def test_what_is_not_valid_or_begins_elsewhere_changes_nothing() -> None:
    records = commits(4)
    made = chain(records[:1])
    with pytest.raises(ValueError, match="do not begin"):
        made.adopt(records[2:])
    third = chain(records[:2]).head
    forged = decided(third, (entry(third, "p1"), entry(third, "p2")), "p1")
    with pytest.raises(ValueError, match="no quorum"):
        made.adopt([records[1], forged])
    assert made.records == tuple(records[:1])


def test_a_higher_term_wins_over_more_steps() -> None:
    records = commits(4)
    made = chain(records)
    rollback = reset(made.at(records[0].link), 1)
    change = made.adopt([*records[:1], rollback])
    assert change.left == tuple(records[1:])
    assert made.records == (records[0], rollback)
    assert made.adopt(records).taken == ()
    assert made.adopt([rollback, *commits(2, made.head)]).taken


def test_one_reset_moves_all_parts_of_a_model() -> None:
    """One record for each part would leave them apart."""
    parts = ("first", "second")
    start = Reset(
        run_id="run",
        term=0,
        step=0,
        parts=tuple(PartReset(part=part, previous="", state=digest(part)) for part in parts),
        coordinator=voter("p0"),
    ).signed(signer("organizer"))
    chains = {part: Chain(Instance.genesis(start, part, "organizer", VERIFIER), VERIFIER) for part in parts}
    heads = {part: decided(made.head, (entry(made.head, "p0", 0),), "p0") for part, made in chains.items()}
    for part, made in chains.items():
        made.adopt([heads[part]])
        with pytest.raises(ValueError, match="another step"):
            made.adopt([decided(chains[parts[1 - parts.index(part)]].at(start.link), (entry(GENESIS, "p0", 0),), "p0")])
    rollback = start.changed(
        term=1, parts=tuple(PartReset(part=part, previous=start.link, state=digest(part)) for part in parts)
    ).signed(signer("organizer"))
    for made in chains.values():
        assert len(made.adopt([rollback]).left) == 1
        assert (made.head.previous, made.head.term, made.head.step) == (rollback.link, (1, rollback.link), 0)


def test_of_two_resets_with_one_term_all_follow_the_same() -> None:
    one, other = sorted((reset(GENESIS, 1, note) for note in ("one", "other")), key=lambda each: each.link)
    first, second = chain([one]), chain([other])
    first.adopt([other])
    second.adopt([one])
    assert first.head.previous == second.head.previous == other.link


def test_of_old_records_only_as_many_are_kept_as_asked() -> None:
    records = commits(5)
    made = chain(records)
    assert made.trim(2) == tuple(records[:3])
    assert made.records == tuple(records[3:])
    assert records[1].link not in made
    assert made.since(records[3].link) == (records[4],)
    longer = commits(2, made.head)
    assert made.adopt(longer).taken == tuple(longer)


def brought(contributions: Contributions, after: Instance) -> Entry:
    return contributions.entry(after, voter("p1"), ()).signed(signer("p1"))


def test_a_failed_round_offers_the_old_piece_unchanged_and_a_further_one() -> None:
    mine = Contributions()
    offered: list[Piece] = []
    for number in range(200):
        mine.add(3, 30)
        mine.freeze(digest("piece", number))
        made = brought(mine, GENESIS)
        assert made.pieces[: len(offered)] == tuple(offered)
        offered = list(made.pieces)
    assert [piece.samples for piece in offered] == [3, 3, 3, 3, 12, 24, 48, 96, 192]  # later ones double what waits
    assert made.weight == 3840
    assert (mine.fresh, mine.samples) == (216, 384)


def test_samples_are_waiting_counted_or_rolled_back() -> None:
    mine, made = Contributions(), Chain(GENESIS, VERIFIER)
    mine.add(3, 30)
    first = mine.freeze(digest("first"))
    records = commits(2, entries=(brought(mine, GENESIS), entry(GENESIS, "p2")))
    assert mine.follow(made.adopt(records), digest("rest")).counted == (first,)
    assert mine.counted == (first,)
    mine.add(2, 20)
    second = mine.freeze(digest("second"))
    mine.add(1, 10)
    moved = mine.follow(made.adopt([reset(GENESIS, 1)]), digest("rest"))
    assert moved.rolled_back == (first, Piece(hash=digest("rest"), samples=1, weight=10), second)
    assert mine.samples == 0
    assert len(mine.counted) == 0
    again = mine.follow(made.adopt([*records, reset(made_after(records), 2)]), digest("none"))
    assert again.counted == (first,)
    assert again.rolled_back == ()


def made_after(records: list[ChainRecord]) -> Instance:
    return chain(records).head


def test_a_commit_without_a_piece_leaves_it_waiting() -> None:
    mine, made = Contributions(), Chain(GENESIS, VERIFIER)
    mine.add(3, 30)
    piece = mine.freeze(digest("mine"))
    assert mine.follow(made.adopt(commits(1)), digest("rest")).counted == ()
    assert mine.waiting == [piece]


def test_an_order_is_carried_out_once_on_a_branch_and_offered_again_after_a_rollback() -> None:
    order, orders, made = digest("order"), Orders(), Chain(GENESIS, VERIFIER)
    orders.add(order)
    records = commits(2, entries=(entry(GENESIS, "p1", orders=(order,)), entry(GENESIS, "p2")))
    assert orders.follow(made.adopt(records)) == ((order, records[0].link),)
    orders.add(order)
    assert not orders.waiting
    orders.follow(made.adopt([reset(GENESIS, 1)]))
    assert orders.waiting == {order}
    assert not orders.done


def test_samples_of_a_branch_are_those_of_its_commits() -> None:
    records = commits(2)
    assert samples_of([*records, reset(made_after(records), 1)]) == 16


def test_a_copy_of_a_chain_follows_it_without_checking_again_and_begins_anew_with_it() -> None:
    records = commits(3)
    there, copy = chain(records), chain([])
    for record in records:
        copy.append(record, there.at(record.link))
    assert (copy.head, copy.last, copy.records) == (there.head, there.last, there.records)
    assert copy.locator() == (records[2].link, records[1].link, GENESIS.previous)
    assert copy.parting([*records, reset(there.head, 1)]) == (records[2].link, (reset(there.head, 1),))
    shorter = chain(records[:2])
    copy.restart(shorter.head, shorter.last)
    assert (copy.head.previous, copy.last, copy.records) == (records[1].link, records[1], ())
    assert copy.locator() == (records[1].link,)
    assert records[0].link not in copy
