"""Letters in a large group: they reach whom they are for, whoever dies or lies on their way."""

from collections import Counter

import pytest

from dedloc_kit.swarm.consensus.events import Send
from dedloc_kit.swarm.consensus.letters import (
    BriefPromised,
    BriefProposal,
    BriefValue,
    Certificate,
    Joining,
    Letter,
    Packet,
    Pieces,
    Post,
    write,
)
from dedloc_kit.swarm.consensus.messages import Decided, Group, Prepare, Promised, Proposal, Report
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Value
from dedloc_kit.swarm.consensus.signing import sha256
from dedloc_kit.swarm.consensus.tree import FANOUT, HEADS, Tree
from tests.swarm.consensus.relays import PATIENCE, WHERE, Net, members_of, names, tree
from tests.swarm.consensus.table import HEAD, VERIFIER, decided, digest, entry, signer, voter

PULSE = PATIENCE / 6


def report(made: Group, name: str) -> Report:
    """One that is nobody else's."""
    return Report(group=made.id, epoch=Epoch(1, "p0", made.id), complete=(made.peers.index(name),))


def prepare(made: Group, number: int = 2, decider: str = "p0") -> Prepare:
    return Prepare(group=made.id, epoch=Epoch(number, decider, made.id), reducers=made.reducers)


def proposal(made: Group) -> Proposal:
    return Proposal(group=made.id, epoch=Epoch(1, "p0", made.id), reducers=made.reducers, counted=(0, 1))


def promised(made: Group, value: Value) -> Promised:
    """By one that has voted for this value."""
    accepted = WHERE.accepted(voter("p9"), Epoch(1, "p0", made.id), value).signed(signer("p9"))
    vote = WHERE.first_vote(voter("p9")).model_copy(update={"promised": accepted.epoch, "accepted": accepted})
    return Promised(group=made.id, promise=WHERE.promise(vote).signed(signer("p9")), value=value)


# The tree


@pytest.mark.parametrize("root", ["p0", "p16", "p63"])
@pytest.mark.parametrize("shape", [(1, 5, 2), (1, 64, 19), (4, 16, 6), (2, 30, 1), (2, 8, 0)])
def test_each_member_has_one_place_below_the_root(shape: tuple[int, int, int], root: str) -> None:
    where = tree(*shape)
    if root not in where.reducers:
        where = Tree(where.rows, (*where.reducers, root)) if root in where.members else where
    root = root if root in where.members else where.members[0]
    children = {member: where.below(member, root) for member in where.members}
    assert Counter(child for some in children.values() for child in some) == Counter(set(where.members) - {root})
    assert all(member in where.relays or member == root for member, some in children.items() if some)
    for member, some in children.items():
        assert all(where.above(child, root)[0] == member for child in some)


def test_of_a_thousand_peers_nobody_has_more_than_a_few_below_it() -> None:
    where = tree(16, 64, 19)
    below = {member: len(where.below(member, "p0")) for member in where.members}
    assert max(below.values()) == FANOUT + HEADS
    assert max(len(where.above(member, "p0")) for member in where.members) == 4


def test_those_below_a_relay_that_is_passed_over_come_in_its_place() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]
    orphans = set(where.below(relay, "p0"))
    assert orphans
    assert set(where.below("p0", "p0", {relay})) == {*where.below("p0", "p0"), *orphans} - {relay}


# Letters


def test_what_the_decider_tells_reaches_all_once_and_over_few_streams() -> None:
    net = Net(tree())
    made = net.form()
    net.tell(prepare(made))
    net.run(0.2)
    others = set(net.tree.members) - {"p0"}
    assert all(net.heard(name, Group) == ["p0"] and net.heard(name, Prepare) == ["p0"] for name in others)
    assert net.told["p0"] == []
    assert len({target for source, target in net.packets if source == "p0"}) <= FANOUT + 3


def test_what_members_tell_the_decider_comes_in_few_packets() -> None:
    net = Net(tree())
    made = net.form()
    before = net.packets.copy()
    for name in net.tree.members[1:]:
        net.send(name, report(made, name))
    net.run(0.4)
    assert Counter(net.heard("p0", Report)) == Counter(net.tree.members[1:])
    assert {message for _, message in net.told["p0"]} == {report(made, name) for name in net.tree.members[1:]}
    packets = {pair: number - before[pair] for pair, number in net.packets.items() if pair[1] == "p0"}
    assert sum(packets.values()) <= 3 * len(packets) < 3 * (FANOUT + 4)


def test_a_member_hears_itself_without_the_network() -> None:
    net = Net(tree())
    made = net.form()
    net.send("p0", report(made, "p0"))
    assert net.heard("p0", Report) == ["p0"]


def test_members_join_before_there_is_a_group() -> None:
    net = Net(tree())
    for name in net.tree.members:
        joining = Joining(entry=entry(WHERE, name))
        net.do(name, net.relays[name].join(joining, net.now))
    net.run(0.4)
    assert Counter(net.heard("p0", Joining)) == Counter(net.tree.members)


def test_a_proof_goes_to_the_one_who_asks() -> None:
    net = Net(tree())
    made = net.form()
    promise = WHERE.promise(WHERE.first_vote(voter("p1"))).signed(signer("p1"))
    asker = net.tree.members[-1]
    assert len(net.tree.above(asker, "p0")) > 1
    net.send("p0", proposal(made).model_copy(update={"proof": (promise,)}), asker)
    net.run(0.2)
    assert [name for name in net.tree.members if net.heard(name, Proposal)] == [asker]


def test_the_next_decider_is_followed_and_told() -> None:
    net = Net(tree())
    made = net.form()
    net.silent = {"p0"}
    heir = net.tree.reducers[1]
    net.tell(prepare(made, 3, heir), heir)
    net.run(0.2)
    others = set(net.tree.members) - {"p0", heir}
    assert all(net.heard(name, Prepare) == [heir] for name in others)
    for name in others:
        net.send(name, report(made, name), heir)
    net.run(0.4)
    assert set(net.heard(heir, Report)) == others


def test_an_heir_that_missed_the_group_gets_it_from_those_that_turn_to_it() -> None:
    net = Net(tree())
    heir = net.tree.reducers[1]
    net.silent = {heir}
    net.form()
    net.silent = {"p0"}
    for name in net.tree.members[1:]:
        joining = Joining(entry=entry(WHERE, name))
        net.do(name, net.relays[name].await_group(heir, joining, net.now))
    net.run(PULSE)
    assert net.heard(heir, Group) == ["p0"]
    net.run(2 * PATIENCE)
    assert all(net.heard(name, Group) == ["p0"] for name in net.tree.members[1:])


# Relays that die


@pytest.mark.parametrize("depth", [1, 2])
def test_a_silent_relay_delays_those_below_it_by_half_the_patience(depth: int) -> None:
    net = Net(tree())
    made = net.form()
    relay = next(m for m in net.tree.reducers if len(net.tree.above(m, "p0")) == depth and net.tree.below(m, "p0"))
    net.silent = {relay}
    net.run(0.1)
    net.tell(prepare(made))
    for name in net.tree.below(relay, "p0"):
        net.send(name, report(made, name))
    net.run(PATIENCE / 2 + 5 * PULSE)
    assert [m for m in net.tree.members[1:] if net.heard(m, Prepare) != ["p0"]] == [relay]
    assert set(net.heard("p0", Report)) == set(net.tree.below(relay, "p0"))


def test_a_relay_that_breaks_off_is_passed_over_at_once() -> None:
    net = Net(tree())
    made = net.form()
    relay = net.tree.below("p0", "p0")[0]
    net.silent = {relay}
    for name in (*net.tree.below(relay, "p0"), "p0"):
        net.do(name, net.relays[name].failed(relay, net.now))
    net.tell(prepare(made))
    for name in net.tree.below(relay, "p0"):
        net.send(name, report(made, name))
    net.run(0.2)
    assert [m for m in net.tree.members[1:] if net.heard(m, Prepare) != ["p0"]] == [relay]
    assert set(net.heard("p0", Report)) == set(net.tree.below(relay, "p0"))


def test_who_missed_the_group_asks_for_it() -> None:
    net = Net(tree())
    relay = net.tree.below("p0", "p0")[0]
    net.run(0.1)
    net.silent = {relay}
    net.form()
    net.run(PATIENCE / 2 + 5 * PULSE)
    assert [m for m in net.tree.members[1:] if net.heard(m, Group) != ["p0"]] == [relay]


def test_a_relay_whose_way_is_gone_sends_again_what_it_carried() -> None:
    net = Net(tree())
    made = net.form()
    relay = next(m for m in net.tree.reducers if len(net.tree.above(m, "p0")) == 2 and net.tree.below(m, "p0"))
    above, author = net.tree.above(relay, "p0")[0], net.tree.below(relay, "p0")[0]
    net.silent = {above}
    net.send(author, report(made, author))
    net.run(0.1)
    net.do(relay, net.relays[relay].failed(above, net.now))
    net.run(0.1)
    assert net.heard("p0", Report) == [author]


# What was handed down


def asks(net: Net, made: Group, asker: str) -> list[str]:
    """The kinds of letters that the decider gives it."""
    posts = net.relays["p0"].receive(asker, Packet(scope=made.id, root="p0", have=()), net.now)
    return [each.kind for post in posts if isinstance(post, Post) for each in post.packet.letters]


def test_who_asks_again_gets_nothing_twice() -> None:
    net = Net(tree())
    made = net.form()
    assert asks(net, made, "p13") == [Group.wire]
    assert asks(net, made, "p13") == []
    net.do("p0", net.relays["p0"].failed("p13", net.now))
    assert asks(net, made, "p13") == [Group.wire]


def test_a_liar_that_opens_epochs_takes_the_place_of_nothing_that_the_decider_told() -> None:
    net = Net(tree())
    made = net.form()
    net.tell(prepare(made))
    liar = net.tree.reducers[1]
    lies = letter(made, liar, root=liar, body=prepare(made, 9, liar).to_bytes().decode())
    net.relays["p0"].receive(liar, Packet(scope=made.id, root=liar, letters=(lies,)), net.now)
    assert asks(net, made, "p13") == [Group.wire, Prepare.wire]


def test_who_lacks_more_letters_than_a_packet_names_asks_all_the_same() -> None:
    net = Net(tree())
    made = net.form()
    many = [letter(made, "p1", root="p1", kind=Decided.wire, whole=HEAD, body=str(n)) for n in range(1023)]
    net.relays["p9"].receive("p1", Packet(scope=made.id, root="p1", letters=tuple(many)), net.now)
    net.tell(prepare(made))
    net.silent = {"p0"}
    net.run(PATIENCE)


def test_a_relay_that_swallows_what_goes_down_and_hands_on_pulses_is_gone_around() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]
    below = set(where.below(relay, "p0"))

    def swallow(source: str, target: str, packet: Packet) -> Packet:
        return packet.model_copy(update={"letters": ()}) if source == relay and target in below else packet

    net = Net(where)
    made = net.form()
    net.change = swallow
    net.tell(prepare(made))
    net.run(2 * PATIENCE)
    assert all(net.heard(name, Prepare) == ["p0"] for name in below)


def test_who_only_waits_for_its_own_letter_to_come_up_is_not_given_what_it_has() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]
    below = where.below(relay, "p0")
    net = Net(where)
    made = net.form()
    net.change = lambda source, target, packet: (
        packet.model_copy(update={"letters": ()}) if (source, target) == (relay, "p0") else packet
    )
    net.send(below[0], report(made, below[0]))
    net.run(2 * PATIENCE)
    assert net.heard("p0", Report) == [below[0]]
    assert below[0] not in net.relays["p0"].neighbours


# Signs of life


def test_the_decider_hears_of_all_and_all_hear_of_the_decider() -> None:
    net = Net(tree())
    net.form()
    net.run(4 * PULSE)
    others = set(net.tree.members) - {"p0"}
    assert set(net.alive["p0"]) == others
    assert all(net.alive[name]["p0"] >= 3 for name in others)


def test_two_that_know_that_a_decider_is_gone_do_not_tell_each_other_for_ever() -> None:
    net = Net(tree())
    made = net.form()
    net.silent = {"p0"}
    heir = net.tree.reducers[1]
    for name in net.tree.members[1:]:
        net.do(name, net.relays[name].failed("p0", net.now))
        net.relays[name].follow(heir, net.now)
    net.packets.clear()
    stale = Packet(scope=made.id, root="p0", broken=(net.tree.places["p0"],))
    net.do("p9", net.relays["p9"].receive("p10", stale, net.now))
    net.run(PULSE / 2)
    assert net.packets["p9", "p10"] == 0


def test_the_decider_hears_who_is_gone_and_nothing_more_of_them() -> None:
    net = Net(tree())
    net.form()
    gone = net.tree.members[-1]
    net.silent = {gone}
    above = net.tree.above(gone, "p0")[0]
    net.do(above, net.relays[above].failed(gone, net.now))
    net.run(0.2)
    assert net.lost["p0"] == [gone]
    net.run(2 * PULSE)
    net.alive.clear()
    net.run(3 * PULSE)
    assert net.lost["p0"] == [gone]
    assert set(net.alive["p0"]) == set(net.tree.members) - {"p0", gone}


# Liars


def test_a_relay_that_swallows_letters_is_gone_around() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]

    def swallow(source: str, target: str, packet: Packet) -> Packet:
        return packet.model_copy(update={"letters": ()}) if source == relay else packet

    net = Net(where)
    made = net.form()
    net.change = swallow
    for name in where.below(relay, "p0"):
        net.send(name, report(made, name))
    net.run(2 * PATIENCE)
    assert set(net.heard("p0", Report)) >= set(where.below(relay, "p0"))
    assert not net.forged


def test_a_relay_cannot_change_a_letter() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]

    def change(source: str, target: str, packet: Packet) -> Packet:
        if source != relay:
            return packet
        letters = tuple(each.changed(body=each.body.replace("p1", "p2")) for each in packet.letters)
        return packet.changed(letters=letters)

    net = Net(where)
    made = net.form()
    net.change = change
    net.tell(prepare(made))
    net.run(0.2)
    below = set(where.below(relay, "p0"))
    assert set(net.forged) == {(name, relay) for name in below}
    assert not any(net.heard(name, Prepare) for name in below)


def test_a_relay_speaks_for_those_below_it_only() -> None:
    where = tree()
    relay = where.below("p0", "p0")[0]
    everybody = tuple(range(len(where.members)))

    def claim(source: str, target: str, packet: Packet) -> Packet:
        return packet.model_copy(update={"broken": everybody}) if (source, target) == (relay, "p0") else packet

    net = Net(where, claim)
    net.form()
    net.run(3 * PULSE)
    below = {member for member in where.members if relay in where.above(member, "p0")}
    assert set(net.lost["p0"]) == below
    assert len(below) < len(where.members) / 2


def letter(made: Group, author: str, **changes: str) -> Letter:
    message = prepare(made)
    body = changes.get("body", message.to_bytes().decode())
    values = {"scope": made.id, "root": "p0", "author": author, "kind": message.wire, "whole": sha256(body.encode())}
    return Letter.model_validate({**values, "body": body, **changes}).signed(signer(author))


@pytest.mark.parametrize(
    "changes",
    [
        {"author": "p0"},  # signed by another
        {"author": "p1"},  # of one that does not decide
        {"author": "stranger"},
        {"author": "p0", "kind": "consensus/nothing"},
        {"author": "p0", "body": "{}"},
        {"author": "p0", "kind": Report.wire},
        {"author": "p0", "whole": HEAD},
        {"author": "p63", "root": "p63"},  # nobody reaches it
    ],
)
def test_a_letter_that_nobody_may_write_is_not_delivered(changes: dict[str, str]) -> None:
    net = Net(tree())
    made = net.form()
    author = changes["author"]
    honest = author == "p0" and len(changes) > 1
    each = letter(made, **changes) if honest else letter(made, **changes).model_copy(update={"signature": "AAAA"})
    if author == "p1":
        each = letter(made, "p1", root="p0")
    found = net.relays["p5"].receive("p4", Packet(scope=made.id, root="p0", letters=(each,)), net.now)
    net.do("p5", found)
    assert not net.heard("p5", Prepare)
    assert net.forged == [("p5", "p0" if honest else "p4")]


def test_letters_of_another_group_or_a_stranger_are_ignored() -> None:
    net = Net(tree())
    made = net.form()
    other = letter(made, "p0", scope=HEAD)
    assert net.relays["p5"].receive("p4", Packet(scope=made.id, root="p0", letters=(other,)), net.now) == []
    good = Packet(scope=made.id, root="p0", letters=(letter(made, "p0"),))
    assert net.relays["p5"].receive("stranger", good, net.now) == []


@pytest.mark.parametrize(("reducers", "most"), [(1, 1000), (1000, 420)])
def test_one_author_has_so_many_letters_in_a_round_fewer_if_they_are_long(reducers: int, most: int) -> None:
    net = Net(tree())
    made = net.form()
    sends = [
        Send("p0", Report(group=made.id, epoch=Epoch(n, "p0", made.id), lacking=("p" * 20,) * reducers))
        for n in range(1100)
    ]
    net.do("p1", net.relays["p1"].send(sends, net.now))
    net.run(0.3)
    assert most <= len(net.heard("p0", Report)) < most + 24


def test_a_long_message_travels_in_pieces_and_only_lost_ones_again() -> None:
    where, sent = tree(), Counter[str]()

    def lose(source: str, target: str, packet: Packet) -> Packet | None:
        sent.update(each.digest for each in packet.letters if target == "p13")
        lost = any(each.piece == 1 for each in packet.letters) and target == "p13" and source != "p0"
        return None if lost else packet

    net = Net(where, lose)
    above = where.above("p13", "p0")[0]
    assert above != "p0"
    net.change = lambda source, target, packet: lose("" if source == above else "p0", target, packet)
    made = members_of(where)
    long = made.changed(
        members=tuple(each.changed(about="x" * 2000).signed(signer(each.peer)) for each in made.members)
    )
    net.do("p0", net.relays["p0"].tell(long, 0.0))
    net.run(0.2)
    assert net.heard("p12", Group) == ["p0"]
    assert not net.heard("p13", Group)
    net.change = lambda source, target, packet: lose("p0", target, packet)
    net.run(PATIENCE)
    assert net.heard("p13", Group) == ["p0"]
    assert sorted(sent.values())[-2:] == [1, 2]


# Values, certificates


def old(made: Group, *more: Entry) -> Value:
    entries = (*made.members[:40], *more)
    return WHERE.value(entries, [each.samples for each in entries], digest("average"))


@pytest.mark.parametrize("author", ["p0", "p9"])
def test_an_old_value_travels_without_the_entries_that_members_have(author: str) -> None:
    made = members_of(tree())
    value = old(made)
    message = promised(made, value) if author == "p9" else proposal(made).changed(counted=(), value=value)
    letters, pieces = write(made.id, "p0", "", message, made, signer(author)), Pieces()
    assert {each.kind for each in letters} == {BriefPromised.wire if author == "p9" else BriefProposal.wire}
    assert [pieces.add(each, made) for each in letters][-1] == message
    assert len(letters[0].body) < len(message.to_bytes()) / 3
    with pytest.raises(ValueError, match="another group"):
        BriefValue(counted=(64,), weights=(1,), average=HEAD).expand(made)


def test_an_old_value_of_another_groups_entries_travels_whole() -> None:
    made = members_of(tree())
    message = promised(made, old(made, entry(WHERE, "p50", samples=7)))
    assert {each.kind for each in write(made.id, "p0", "p0", message, made, signer("p9"))} == {Promised.wire}


def test_who_asks_gets_no_proposal_of_an_epoch_before() -> None:
    net = Net(tree())
    made = net.form()
    kinds = []
    for asker, message in (("p13", proposal(made).changed(counted=(), value=old(made))), ("p14", prepare(made))):
        net.tell(message)
        kinds.append(set(asks(net, made, asker)))
    assert kinds == [{Group.wire, BriefProposal.wire}, {Group.wire, Prepare.wire}]


def test_a_commit_travels_without_what_members_have() -> None:
    made = members_of(tree())
    whole = Decided(group=made.id, commit=decided(WHERE, made.members[:40], " ".join(names(0, 33))))
    brief = Certificate.of(whole, made)
    assert brief is not None
    assert brief.expand(made) == whole
    WHERE.check_commit(brief.expand(made).commit, VERIFIER)
    assert len(brief.to_bytes()) < len(whole.to_bytes()) / 5
    with pytest.raises(ValueError, match="another group"):
        brief.expand(made.model_copy(update={"nonce": "1" * 32}).changed())
    with pytest.raises(ValueError, match="another group"):
        brief.changed(value=brief.value.model_copy(update={"counted": (64,)})).expand(made)


def test_a_commit_of_another_groups_entries_travels_whole() -> None:
    net = Net(tree())
    made = net.form()
    old = entry(WHERE, "p9", samples=7)
    commit = decided(WHERE, (*made.members[:9], old), " ".join(names(0, 33)))
    net.tell(Decided(group=made.id, commit=commit))
    net.run(0.2)
    assert net.told["p63"][-1] == ("p0", Decided(group=made.id, commit=commit))


def test_what_is_told_after_the_group_needs_the_group() -> None:
    made = members_of(tree())
    commit = Decided(group=made.id, commit=decided(WHERE, made.members[:9], "p0 p1"))
    letters = write(made.id, "p0", "", commit, made, signer("p0"))
    assert {each.kind for each in letters} == {Certificate.wire}
    with pytest.raises(ValueError, match="before its group"):
        [Pieces().add(each, None) for each in letters]
    pieces = Pieces()
    assert [pieces.add(each, made) for each in letters][-1] == commit
