"""What is signed, linked and refused; and what it looks like on the wire."""

import pytest

from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import (
    KINDS,
    Acceptance,
    Decided,
    Prepare,
    Promised,
    Proposal,
    Report,
    TooFew,
    decode,
    encode,
)
from dedloc_kit.swarm.consensus.records import (
    Accepted,
    Commit,
    Entry,
    Epoch,
    Goodbye,
    PartReset,
    Piece,
    Promise,
    Reset,
    Value,
    Vote,
)
from dedloc_kit.swarm.consensus.signing import MAX_BYTES
from tests.swarm.consensus.table import HEAD, VERIFIER, decided, digest, entry, group, instance, signer, voter

WHERE = instance({"p1": 4, "p2": 4, "p3": 4})
ENTRIES = tuple(entry(WHERE, name) for name in ("p1", "p2", "p3"))
COMMIT = decided(WHERE, ENTRIES, "p1 p2 p3")
ZERO = PartReset(part="", previous="", state=digest("zero"))
GENESIS = Reset(run_id="run", term=0, step=0, parts=(ZERO,), coordinator=voter("p0")).signed(signer("organizer"))


def test_names_on_the_wire_are_no_names_of_classes() -> None:
    kinds = (Entry, Value, Accepted, Promise, Commit, Reset, Goodbye, Vote, *KINDS.values())
    assert [kind.wire for kind in kinds] == [
        *("consensus/entry", "consensus/value", "consensus/accepted", "consensus/promise", "consensus/commit"),
        *("consensus/reset", "consensus/goodbye", "consensus/vote", "consensus/prepare", "consensus/promised"),
        *("consensus/report", "consensus/proposal", "consensus/acceptance", "consensus/decided", "consensus/too-few"),
    ]


def test_a_link_depends_on_who_counts_and_on_the_average_alone() -> None:
    other_voters = decided(WHERE, ENTRIES, "p1 p2")
    later = [
        WHERE.accepted(voter(name), Epoch(9, "p2", digest("another group")), COMMIT.value).signed(signer(name))
        for name in ("p2", "p3")
    ]
    assert COMMIT.link == other_voters.link == COMMIT.changed(accepted=tuple(later)).link
    assert decided(WHERE, ENTRIES[:2], "p1 p2 p3").link != COMMIT.link
    assert decided(WHERE, ENTRIES, "p1 p2 p3", nonce=1).link != COMMIT.link
    ordered = (entry(WHERE, "p1", orders=(digest("an order"),)), *ENTRIES[1:])
    assert decided(WHERE, ordered, "p1 p2 p3").link != COMMIT.link


def test_what_an_entry_is_about_is_signed_and_linked() -> None:
    about = ENTRIES[0].changed(about='{"name": "Ada", "loss": 2.5}')
    with pytest.raises(ValueError, match="not signed by p1"):
        WHERE.check_entry(about, VERIFIER)
    named = decided(WHERE, (about.signed(signer("p1")), *ENTRIES[1:]), "p1 p2")
    WHERE.check_commit(named, VERIFIER)
    assert named.link != COMMIT.link
    assert Commit.from_bytes(named.to_bytes()).value.counted[0].about == about.about


def test_weights_are_linked_and_at_most_what_the_entries_claim() -> None:
    value = COMMIT.value
    assert value.weights == (4, 4, 4)
    assert value.changed(weights=(4, 4, 3)).link != value.link
    assert value.changed(weights=(1, 4, 3)).samples == 8
    for weights in ((4, 4), (4, 4, 4, 4), (4, 5, 4), (4, 4, -1)):
        with pytest.raises(ValueError, match=r"one weight|greater than or equal"):
            value.changed(weights=weights)


def test_orders_of_a_commit_are_those_of_its_entries() -> None:
    first, second = sorted((digest(1), digest(2)))
    ordered = (entry(WHERE, "p1", orders=(first,)), entry(WHERE, "p2", orders=(first, second)), ENTRIES[2])
    assert decided(WHERE, ordered, "p1 p2").value.orders == (first, second)


def test_a_valid_commit_leads_to_the_next_instance() -> None:
    after = WHERE.after(COMMIT, VERIFIER)
    assert (after.step, after.previous) == (8, COMMIT.link)
    assert after.electorate.weights.keys() == {voter("p1"), voter("p2"), voter("p3")}
    assert after.electorate.coordinator == voter("p0")


def test_the_coordinators_incarnation_is_the_one_that_a_commit_counts() -> None:
    counted = (entry(WHERE, "p0", 0, incarnation=77), *ENTRIES)
    assert WHERE.after(decided(WHERE, counted, "p1 p2"), VERIFIER).electorate.coordinator == voter("p0", 77)
    mute = (entry(WHERE, "p0", 0, incarnation=0), *ENTRIES)
    assert WHERE.after(decided(WHERE, mute, "p1 p2"), VERIFIER).electorate.coordinator == voter("p0")


def bad_commits() -> dict[str, Commit]:
    vote = COMMIT.accepted[0]
    other = decided(WHERE, ENTRIES[:2], "p1 p2 p3")
    elsewhere = instance({"p1": 4}, step=8)
    later_epoch = vote.changed(epoch=Epoch(2, "p1", digest("group", 0))).signed(signer("p1"))
    return {
        "no quorum": decided(WHERE, ENTRIES, "p1"),
        "twice": COMMIT.changed(accepted=(vote, vote, COMMIT.accepted[1])),
        "not for one value": COMMIT.changed(accepted=other.accepted),
        "in one epoch": COMMIT.changed(accepted=(later_epoch, *COMMIT.accepted[1:])),
        "not signed by p1": COMMIT.changed(accepted=(vote.changed(signature="AAAA"), *COMMIT.accepted[1:])),
        "another step": decided(elsewhere, tuple(entry(elsewhere, n) for n in ("p1", "p2")), "p1 p2"),
        "a contribution to another": decided(
            WHERE, (ENTRIES[0].changed(previous=digest("elsewhere")).signed(signer("p1")), *ENTRIES[1:]), "p1 p2 p3"
        ),
        "counts twice": decided(WHERE, (*ENTRIES, ENTRIES[0]), "p1 p2 p3"),
        "entry: not signed": decided(WHERE, (ENTRIES[0].changed(signature=""), *ENTRIES[1:]), "p1 p2 p3"),
    }


@pytest.mark.parametrize("reason", bad_commits())
def test_a_commit_that_is_not_valid_is_refused(reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WHERE.after(bad_commits()[reason], VERIFIER)


def test_a_reset_is_the_organizers_follows_its_previous_and_has_a_higher_term() -> None:
    start = Instance.genesis(GENESIS, "", "organizer", VERIFIER)
    assert (start.step, start.previous, start.term) == (0, GENESIS.link, (0, GENESIS.link))
    part = PartReset(part="", previous=GENESIS.link, state=digest("zero"), voters=((voter("p1"), 3),))
    good = GENESIS.changed(term=5, parts=(part,)).signed(signer("organizer"))
    after = start.after(good, VERIFIER)
    assert after.electorate.weights == {voter("p1"): 3}
    assert (after.term, after.previous) == ((5, good.link), good.link)
    for changes, reason in (
        ({"term": 0}, "no higher term"),
        ({"step": 3}, "only a person"),
        ({"run_id": "other"}, "does not follow"),
        ({"parts": (part.model_copy(update={"previous": HEAD}),)}, "does not follow"),
        ({"parts": (part.model_copy(update={"part": "stage1"}),)}, "does not name the part"),
    ):
        with pytest.raises(ValueError, match=reason):
            start.after(good.changed(**changes).signed(signer("organizer")), VERIFIER)
    with pytest.raises(ValueError, match="not signed by organizer"):
        start.after(good.signed(signer("p1")), VERIFIER)


def test_a_person_lets_a_reset_stand_for_a_step_and_nothing_lets_it_stand_for_one_before() -> None:
    start = Instance.genesis(GENESIS.changed(step=5).signed(signer("organizer")), "", "organizer", VERIFIER)
    part = PartReset(part="", previous=start.previous, state=digest("checkpoint"))
    chosen = GENESIS.changed(term=1, step=7, parts=(part,), chosen=True)
    assert start.after(chosen.signed(signer("organizer")), VERIFIER).step == 7
    with pytest.raises(ValueError, match="does not follow"):
        start.after(chosen.changed(step=4).signed(signer("organizer")), VERIFIER)


def messages() -> list[Prepare | Promised | Report | Proposal | Acceptance | Decided | TooFew]:
    made, epoch = group(WHERE, "p1 p2 p3", "p1 p2"), Epoch(3, "p1", digest("group"))
    accepted = COMMIT.accepted[1]
    vote = WHERE.first_vote(voter("p2")).model_copy(update={"promised": epoch, "accepted": accepted})
    promise = WHERE.promise(vote).signed(signer("p2"))
    return [
        Prepare(group=made.id, epoch=epoch, reducers=("p1",)),
        Promised(group=made.id, promise=promise, value=COMMIT.value),
        Report(group=made.id, epoch=epoch, complete=(0, 2), lacking=("p2",)),
        Proposal(group=made.id, epoch=epoch, reducers=("p1",), value=COMMIT.value, holders=("p2",), proof=(promise,)),
        Acceptance(group=made.id, accepted=accepted),
        Decided(group=made.id, commit=COMMIT),
        TooFew(group=made.id, epoch=epoch),
    ]


@pytest.mark.parametrize("message", messages(), ids=lambda message: str(message.wire))
def test_a_message_arrives_as_it_was_sent(message: Decided) -> None:
    assert decode(encode(message)) == message


def test_records_come_back_from_their_bytes() -> None:
    vote = WHERE.first_vote(voter("p1")).model_copy(update={"accepted": COMMIT.accepted[0], "value": COMMIT.value})
    assert Vote.from_bytes(vote.to_bytes()) == vote
    assert Reset.from_bytes(GENESIS.to_bytes()).link == GENESIS.link
    assert Commit.from_bytes(COMMIT.to_bytes()).link == COMMIT.link


GOOD = encode(messages()[0])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"consensus/none\n{}",
        b"consensus/prepare",
        b"\xff" * 100,
        GOOD + b" ",
        GOOD.replace(b'"group"', b'"Group"'),
        GOOD.replace(b"[3,", b"[-3,"),
        GOOD.replace(b"[3,", b"[3.0,"),
        GOOD.replace(b"[3,", b"[99999999999999,"),
        GOOD.replace(b'["p1"]', b'["' + b"p" * 200 + b'"]'),
        GOOD.replace(b'["p1"]', b"[" * 10_000 + b"]" * 10_000),
        GOOD.replace(b'["p1"]', b"[" + b",".join([b'"p1"'] * 5000) + b"]"),
        b"consensus/prepare\n" + b" " * (MAX_BYTES + 1),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"consensus|no such message"):
        decode(data)


def test_an_entry_has_twelve_pieces_at_most_each_once_and_sorted_orders() -> None:
    pieces = tuple(Piece(hash=digest(place), samples=1, weight=1) for place in range(13))
    for changes in (
        {"pieces": pieces},
        {"pieces": (pieces[0], pieces[0])},
        {"orders": (digest(1), digest(1))},
        {"orders": tuple(sorted((digest(1), digest(2)), reverse=True))},
        {"voter": ("p1", -1)},
        {"about": "x" * 4097},
        {"previous": "zz"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            ENTRIES[0].changed(**changes)
