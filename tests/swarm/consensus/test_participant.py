"""Rounds told on purpose, message by message: what each rule is for."""

from collections.abc import Sequence
from itertools import count
from random import Random

import pytest

from dedloc_kit.swarm.consensus.events import (
    Abort,
    Assign,
    AverageComplete,
    Blame,
    Effect,
    Finish,
    Heard,
    PartsComplete,
    PeerFailed,
    Persist,
    Received,
    Send,
    ShareComplete,
    Tick,
    VoteLost,
)
from dedloc_kit.swarm.consensus.messages import (
    Acceptance,
    Decided,
    Message,
    Options,
    Prepare,
    Promised,
    Proposal,
    Report,
    TooFew,
)
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Entry, Epoch
from tests.swarm.consensus.table import OPTIONS, VERIFIER, Change, Table, group, instance, signer, voter

THREE = {"p1": 4, "p2": 4, "p3": 4}


def without(*kinds: type[Message]) -> Change:
    return lambda source, target, message: None if isinstance(message, kinds) else message


def participant(name: str = "p2", members: str = "p1 p2 p3", reducers: str = "p1 p2 p3") -> Participant:
    where = instance(THREE)
    made = group(where, members, reducers)
    started = Participant(where, made, where.first_vote(voter(name)), OPTIONS, signer(name), VERIFIER)
    started.start(0.0)
    return started


def test_a_round_without_faults_ends_with_one_commit_at_all() -> None:
    where = instance(THREE)
    table = Table(where, "p0 p1 p2 p3")
    table.round(group(where, "p0 p1 p2 p3", "p1 p2 p3"))
    assert table.commits.keys() == {"p0", "p1", "p2", "p3"}
    assert len(table.links) == 1
    where.check_commit(table.commits["p2"], VERIFIER)
    assert [each.peer for each in table.commits["p1"].value.counted] == ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("seed", range(60))
def test_in_any_order_of_messages_there_is_one_commit(seed: int) -> None:
    random, where = Random(seed), instance(THREE)
    table = Table(where, "p0 p1 p2 p3")
    losses = random.uniform(0, 0.4)
    for attempt in range(4):
        first = 1 + max(vote.promised.number for vote in table.votes.values())
        members = random.choice(["p0 p1 p2 p3", "p1 p2 p3", "p1 p2", "p0 p2 p3", "p0 p1 p3"])
        reducers = members.replace("p0 ", "").split()
        random.shuffle(reducers)
        table.round(
            group(where, members, " ".join(reducers), attempt, random.choice([1, first])),
            change=lambda source, target, message: None if random.random() < losses else message,
            holds=lambda name: random.random() < 0.8,
            order=lambda queue: random.randrange(len(queue)),
        )
    assert len(table.links) <= 1
    assert not table.blames


def test_what_a_quorum_has_voted_for_is_decided_by_the_next_group() -> None:
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p1", 1), without(Decided))
    first = table.commits["p1"]
    table.round(group(where, "p2 p3", "p2", 2, first=2))
    assert table.commits["p2"].link == table.commits["p3"].link == first.link
    assert [each.peer for each in first.value.counted] == ["p1", "p2", "p3"]


def test_groups_that_begin_with_one_number_never_share_an_epoch() -> None:
    """p1 votes in the first group; p2 decides another value with p3 under the same number; then p1 and p3 go on."""
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p2", 2), without(Acceptance), holds=lambda name: name == "p1")
    table.round(group(where, "p2 p3", "p2", 1), without(Decided))
    table.round(group(where, "p1 p3", "p1", 3))
    assert len(table.links) == 1
    assert len(table.commits) == 3


def ignores_votes(source: str, target: str, message: Message) -> Message | None:
    """A decider that proposes a new value although one was voted for."""
    if isinstance(message, Proposal) and message.value is not None:
        return message.changed(value=None, counted=(0, 1), holders=())
    return message


def test_a_voter_without_proof_does_not_vote_for_another_value() -> None:
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p1", 1), without(Decided))
    table.round(group(where, "p2 p3", "p2", 2, first=2), ignores_votes)
    assert len(table.links) == 1


def test_a_voter_that_voted_for_what_no_quorum_holds_is_convinced_by_the_proof() -> None:
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p1", 1), without(Acceptance), holds=lambda name: name == "p3")
    assert table.votes["p3"].accepted is not None
    late = count()

    def loses_first_promise(source: str, target: str, message: Message) -> Message | None:
        return None if source == "p3" and isinstance(message, Promised) and next(late) == 0 else message

    table.round(group(where, "p1 p2 p3", "p1", 2, first=2), loses_first_promise, holds=lambda name: name != "p2")
    assert table.commits.keys() == {"p1", "p2", "p3"}
    assert len(table.links) == 1
    assert table.votes["p3"].accepted is not None
    assert table.votes["p3"].accepted.link in table.links


def test_a_late_voter_gets_no_proof_for_the_value_that_it_has_voted_for() -> None:
    where, proofs = instance(THREE), list[str]()
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p1", 1), without(Acceptance))

    def watch(source: str, target: str, message: Message) -> Message:
        if isinstance(message, Proposal) and message.proof:
            proofs.append(target)
        return message

    table.round(group(where, "p1 p2 p3", "p1", 2, first=2), watch)
    assert table.commits.keys() == {"p1", "p2", "p3"}
    assert len(table.links) == 1
    assert not proofs


def voted_before(name: str) -> Participant:
    """A member whose vote file names a vote, in a new group's first epoch, which p2 decides."""
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")
    table.round(group(where, "p1 p2 p3", "p1", 1), without(Acceptance), holds=lambda each: each == name)
    made = group(where, "p1 p2 p3", "p2", 2, first=2)
    started = Participant(where, made, table.votes[name], OPTIONS, signer(name), VERIFIER)
    started.start(0.0)
    return started


@pytest.mark.parametrize(("epoch", "convinced"), [(2, True), (1, False)])
def test_promises_for_another_epoch_prove_nothing(epoch: int, convinced: bool) -> None:
    started = voted_before("p3")
    promised = started.epoch._replace(number=epoch)
    proof = []
    for name in ("p1", "p2"):
        vote = started.instance.first_vote(voter(name)).model_copy(update={"promised": promised})
        proof.append(started.instance.promise(vote).signed(signer(name)))
    effects = started.handle(Received("p2", proposal(started, counted=(0, 1), proof=tuple(proof))), 1.0)
    assert (started.proposal is not None) is convinced
    assert bool([effect for effect in effects if isinstance(effect, Blame)]) is not convinced


def test_promises_that_name_a_vote_prove_no_other_value() -> None:
    started = voted_before("p3")
    votes = (started.vote, started.instance.first_vote(voter("p1")))
    promised = [vote.model_copy(update={"promised": started.epoch}) for vote in votes]
    proof = tuple(started.instance.promise(vote).signed(signer(vote.voter.peer)) for vote in promised)
    effects = started.handle(Received("p2", proposal(started, counted=(0, 1), proof=proof)), 1.0)
    assert started.proposal is None
    assert Blame("p2", "the proof does not fit the proposal") in effects


def test_nobody_votes_in_an_epoch_below_what_it_has_promised() -> None:
    where = instance(THREE)
    made = group(where, "p1 p2 p3", "p1")
    for promised, votes in ((Epoch(1, "p1", made.id), True), (Epoch(2, "p3", "0" * 64), False)):
        vote = where.first_vote(voter("p2")).model_copy(update={"promised": promised})
        started = Participant(where, made, vote, OPTIONS, signer("p2"), VERIFIER)
        started.start(0.0)
        started.handle(Received("p1", proposal(started)), 1.0)
        effects = started.handle(AverageComplete(started.epoch, "0" * 64), 2.0)
        assert bool(effects) is votes


def test_promises_and_votes_go_out_only_with_the_vote_that_is_written_before() -> None:
    where = instance(THREE)
    made = group(where, "p1 p2 p3", "p1 p2 p3")
    started = Participant(where, made, where.first_vote(voter("p2")), OPTIONS, signer("p2"), VERIFIER)
    effects = started.start(0.0)
    [persist] = [effect for effect in effects if isinstance(effect, Persist)]
    assert persist.vote.promised == Epoch(1, "p1", made.id)
    assert [type(send.message) for send in persist.then] == [Promised]
    assert not [effect for effect in effects if isinstance(effect, Send)]


def test_a_peer_without_weight_writes_no_vote() -> None:
    where = instance(THREE)
    made = group(where, "p1 p2 p4", "p1 p2")
    started = Participant(where, made, where.first_vote(voter("p4")), OPTIONS, signer("p4"), VERIFIER)
    assert [type(effect) for effect in started.start(0.0)] == [Assign]


def proposal(started: Participant, **changes: object) -> Proposal:
    values = {"group": started.group.id, "epoch": started.epoch, "reducers": started.reducers, "counted": (0, 1, 2)}
    return Proposal.model_validate(values | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counted": (0, 0, 1)}, "no members"),
        ({"counted": (0, 7)}, "no members"),
        ({"counted": ()}, "fewer samples than a batch"),
        ({"reducers": ("p1", "p9")}, "no reducers of the group"),
        ({"reducers": ()}, "no reducers of the group"),
    ],
)
def test_a_proposal_that_no_honest_decider_makes_is_blamed(changes: dict[str, object], reason: str) -> None:
    started = participant()
    effect, *_ = started.handle(Received("p1", proposal(started, **changes)), 1.0)
    assert isinstance(effect, Blame)
    assert reason in effect.reason


def test_a_second_proposal_in_one_epoch_is_blamed() -> None:
    started = participant()
    started.handle(Received("p1", proposal(started)), 1.0)
    assert started.handle(Received("p1", proposal(started)), 1.0) == []
    effect, *others = started.handle(Received("p1", proposal(started, counted=(0, 1))), 1.0)
    assert effect == Blame("p1", "two proposals in one epoch")
    assert [effect.to for effect in others if isinstance(effect, Send)] == ["p3"]  # without p1
    assert started.decider == "p2"


def test_only_the_epochs_decider_is_heard() -> None:
    started = participant()
    assert started.handle(Received("p3", proposal(started)), 1.0) == []
    assert started.handle(Received("p9", proposal(started)), 1.0) == []
    assert started.handle(Received("p3", TooFew(group=started.group.id, epoch=started.epoch)), 1.0) == []
    far = Epoch(2**39, "p1", started.group.id)
    prepare = Prepare(group=started.group.id, epoch=far, reducers=("p1",))
    assert started.handle(Received("p1", prepare), 1.0) == []
    foreign = prepare.changed(epoch=Epoch(5, "p1", "0" * 64))
    assert started.handle(Received("p1", foreign), 1.0) == []


def test_a_forged_promise_or_vote_does_not_count() -> None:
    where = instance(THREE)
    table = Table(where, "p1 p2 p3")

    def forge(source: str, target: str, message: Message) -> Message | None:
        if source == "p3" and isinstance(message, Promised):
            return message.changed(promise=message.promise.changed(signature="AAAA"))
        if source == "p2" and isinstance(message, Acceptance):
            return Acceptance(group=message.group, accepted=message.accepted.signed(signer("p3")))
        return message

    table.round(group(where, "p1 p2 p3", "p1"), forge)
    assert {(member, blamed) for member, blamed, _ in table.blames} == {("p1", "p2"), ("p1", "p3")}
    assert table.links == set() or len(table.links) == 1


def test_a_member_may_accuse_one_reducer_in_a_round() -> None:
    started = participant("p1")
    accusation = Report(group=started.group.id, epoch=started.epoch, lacking=("p3",))
    assert started.handle(Received("p2", accusation), 1.0)
    assert started.reducers == ("p1", "p2")
    again = Report(group=started.group.id, epoch=started.epoch, lacking=("p2",))
    assert started.handle(Received("p2", again), 1.0) == []


def test_an_accused_reducer_remains_a_voter() -> None:
    """Liars that accuse one each would else keep honest voters from a quorum."""
    started = participant("p1")
    accusation = Report(group=started.group.id, epoch=started.epoch, lacking=("p3",))
    effects = started.handle(Received("p2", accusation), 1.0)
    assert {effect.to for effect in effects if isinstance(effect, Send)} == {"p2", "p3"}
    effects = started.handle(PeerFailed("p2", "broke off"), 2.0)
    assert {effect.to for effect in effects if isinstance(effect, Send)} == {"p3"}
    assert started.reducers == ("p1",)


def test_a_member_whose_vote_cannot_be_written_leaves_the_round() -> None:
    started = participant("p2")
    assert started.handle(VoteLost(), 1.0) == [Abort("the vote cannot be written")]
    assert started.ended


def test_too_few_samples_end_the_round_for_all() -> None:
    where = instance(THREE)
    made = group(where, "p1 p2 p3", "p1 p2 p3")
    table = Table(where, "p1 p2 p3")
    table.round(made, options=Options(minimum=13))
    assert table.aborts == dict.fromkeys(("p1", "p2", "p3"), "too few samples")
    assert not table.commits


def at_most_two(entries: Sequence[Entry]) -> tuple[int, ...]:
    return tuple(min(entry.samples, 2) for entry in entries)


def test_a_batch_is_full_by_what_counts_and_the_commit_says_so() -> None:
    where = instance(THREE)
    made = group(where, "p1 p2 p3", "p1 p2 p3")
    table = Table(where, "p1 p2 p3")
    table.round(made, options=Options(minimum=7, weigh=at_most_two))
    assert not table.commits
    table.round(made.changed(nonce="1" * 32, first=2), options=Options(minimum=6, weigh=at_most_two))
    assert table.commits["p2"].value.weights == (2, 2, 2)


def test_who_was_there_is_told_if_they_are_too_few() -> None:
    started = participant("p2")
    over = TooFew(group=started.group.id, epoch=started.epoch, counted=(0, 2))
    effect, *_ = started.handle(Received("p1", over.changed(counted=(2, 0))), 1.0)
    assert effect == Blame("p1", "those who count are no members of the group")
    started = participant("p2")
    assert started.handle(Received("p1", over), 1.0) == [Abort("too few samples", (0, 2))]


@pytest.mark.parametrize(
    ("weights", "options", "reason"),
    [
        ((4, 4, 3), OPTIONS, "other weights"),
        ((2, 2, 2), Options(minimum=7, weigh=at_most_two), "fewer samples than a batch"),
    ],
)
def test_a_value_that_no_honest_voter_accepts_is_neither_proposed_nor_voted_for(
    weights: tuple[int, ...], options: Options, reason: str
) -> None:
    """A liar says that it has accepted it; nobody else need have seen it."""
    where = instance(THREE)
    made = group(where, "p1 p2 p3", "p1")
    value = where.value(made.members, weights, "0" * 64)
    machines = {
        name: Participant(where, made, where.first_vote(voter(name)), options, signer(name), VERIFIER)
        for name in ("p1", "p2")
    }
    for machine in machines.values():
        machine.start(0.0)
    epoch = machines["p1"].epoch
    accepted = where.accepted(voter("p3"), Epoch(0, "", ""), value).signed(signer("p3"))
    vote = where.first_vote(voter("p3")).model_copy(update={"promised": epoch, "accepted": accepted})
    promised = Promised(group=made.id, promise=where.promise(vote).signed(signer("p3")), value=value)
    effect, *_ = machines["p1"].handle(Received("p3", promised), 1.0)
    assert isinstance(effect, Blame)
    assert reason in effect.reason
    old = proposal(machines["p2"], value=value, counted=(), holders=("p3",))
    effect, *_ = machines["p2"].handle(Received("p1", old), 1.0)
    assert isinstance(effect, Blame)
    assert reason in effect.reason


def ticks(started: Participant, until: float, *heard: str) -> list[tuple[float, Effect]]:
    """What it does at its deadlines, while these are heard every two seconds."""
    found: list[tuple[float, Effect]] = []
    now = 0.0
    while not started.ended and (at := started.deadline) <= until:
        while now + 2 <= at:
            now += 2
            for member in heard:
                assert started.handle(Heard(member), now) == []
        found += [(at, effect) for effect in started.handle(Tick(), at)]
    return found


def when(effects: list[tuple[float, Effect]], kind: type[Message]) -> list[float]:
    """At which times messages of this kind are sent."""
    return sorted({at for at, effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)})


def test_a_silent_decider_is_replaced_by_the_next_in_rank() -> None:
    started = participant("p2")
    effects = ticks(started, 30, "p3")
    assert when(effects, Prepare) == [2 * OPTIONS.patience]
    assert started.epoch.number == 2
    assert started.decider == "p2"
    assert {send.to for _, send in effects if isinstance(send, Send) and isinstance(send.message, Prepare)} == {"p3"}


def test_the_second_in_rank_has_its_own_time() -> None:
    started = participant("p3")
    assert ticks(started, 60)[-1] == (4 * OPTIONS.patience, Abort("too few voters are left"))
    started = participant("p3")
    assert when(ticks(started, 60, "p2"), Prepare) == []
    assert not started.ended


def test_a_reducer_waits_for_a_slow_member_and_not_for_a_silent_one() -> None:
    for heard, waits in (("p3", OPTIONS.limit / 6), ("p1", OPTIONS.patience)):
        started = participant("p2")
        for member in ("p1", "p2"):
            started.handle(PartsComplete(started.epoch, member), 0.5)
        [at] = when(ticks(started, 60, "p1", heard), Report)
        assert waits <= at < waits + OPTIONS.patience / 4 + 1


def test_a_decider_waits_for_a_slow_reducer_and_not_for_a_silent_one() -> None:
    for heard, waits in (("p3", OPTIONS.limit / 3), ("p2", 2 * OPTIONS.patience)):
        started = promised_by_all()
        answer(started, "p2", Report(group=started.group.id, epoch=started.epoch, complete=(0, 1, 2)))
        effects = ticks(started, 100, "p2", heard)
        assert waits <= when(effects, Prepare)[0] < waits + OPTIONS.patience / 4 + 1
        assert started.reducers == ("p1", "p2")


def test_a_member_accuses_a_reducer_only_if_that_is_silent() -> None:
    for heard, waits in (("p3", OPTIONS.limit / 6), ("p1", OPTIONS.patience)):
        started = participant("p2")
        started.handle(Received("p1", proposal(started)), 0.0)
        for reducer in ("p1", "p2"):
            started.handle(ShareComplete(started.epoch, reducer), 0.0)
        effects = ticks(started, 60, "p1", heard)
        assert waits <= when(effects, Report)[0] < waits + OPTIONS.patience / 4 + 1
        assert [e.message.lacking for _, e in effects if isinstance(e, Send) and isinstance(e.message, Report)] == [
            ("p3",)
        ]


def test_a_member_that_has_voted_waits_for_a_decider_that_is_alive() -> None:
    started = participant("p2")
    started.handle(Received("p1", proposal(started)), 0.0)
    assert started.handle(AverageComplete(started.epoch, "0" * 64), 0.0)
    assert when(ticks(started, OPTIONS.limit, "p1", "p3"), Prepare) == [OPTIONS.limit / 2]


def rival(started: Participant, name: str) -> Received:
    epoch = Epoch(started.epoch.number + 1, name, started.group.id)
    return Received(name, Prepare(group=started.group.id, epoch=epoch, reducers=("p3",)))


def test_an_epoch_of_one_behind_a_living_decider_waits_until_that_is_gone() -> None:
    for failure in (PeerFailed("p1", "broke off"), None):
        started = participant("p2", reducers="p1 p3 p2")
        assert started.handle(rival(started, "p3"), 0.0) == []
        if failure is not None:
            assert [type(effect) for effect in started.handle(failure, 1.0)] == [Assign, Persist]
        else:
            [at] = [at for at, effect in ticks(started, 15, "p3") if isinstance(effect, Assign)]
            assert at == OPTIONS.patience
        assert started.decider == "p3"


def test_one_that_ranks_before_the_decider_takes_over_at_once() -> None:
    started = participant("p3")
    started.handle(PeerFailed("p1", "broke off"), 0.0)
    assert started.handle(rival(started, "p2"), 0.0)
    assert started.decider == "p2"
    assert started.handle(rival(started, "p1"), 0.0)
    assert started.decider == "p1"


def test_a_round_ends_at_its_limit_however_alive_its_members_are() -> None:
    started = participant("p3")
    effects = ticks(started, 1000, "p1", "p2")
    assert effects[-1] == (OPTIONS.limit, Abort("it took too long"))
    assert started.ended


def answer(started: Participant, member: str, message: Message) -> list[Effect]:
    return started.handle(Received(member, message), 0.0)


def promised_by_all() -> Participant:
    """The decider p1."""
    started = participant("p1")
    where = started.instance
    for name in ("p1", "p2", "p3"):
        vote = where.first_vote(voter(name)).model_copy(update={"promised": started.epoch})
        promised = Promised(group=started.group.id, promise=where.promise(vote).signed(signer(name)))
        answer(started, name, promised)
    return started


def voting() -> Participant:
    """The decider p1, whose proposal is out, and which has voted for an average of zeros."""
    started = promised_by_all()
    for name in ("p1", "p2", "p3"):
        answer(started, name, Report(group=started.group.id, epoch=started.epoch, complete=(0, 1, 2)))
    answer(started, "p1", proposal(started))
    for effect in started.handle(AverageComplete(started.epoch, "0" * 64), 0.0):
        if isinstance(effect, Persist):
            for send in effect.then:
                answer(started, "p1", send.message)
    return started


def acceptance(started: Participant, name: str, average: str) -> Acceptance:
    where = started.instance
    value = where.value(started.group.members, [4] * len(started.group.members), average)
    accepted = where.accepted(voter(name), started.epoch, value).signed(signer(name))
    return Acceptance(group=started.group.id, accepted=accepted)


def test_a_decider_waits_for_slow_votes() -> None:
    started = voting()
    assert ticks(started, OPTIONS.limit / 3 - 3, "p2", "p3") == []
    effects = answer(started, "p3", acceptance(started, "p3", "0" * 64))
    assert [type(effect) for effect in effects][-1] is Finish


def test_a_decider_gives_up_if_votes_are_split() -> None:
    started = voting()
    assert answer(started, "p2", acceptance(started, "p2", "1" * 64)) == []
    assert answer(started, "p2", acceptance(started, "p2", "0" * 64)) == []  # a member has one vote
    assert answer(started, "p3", acceptance(started, "p3", "2" * 64)) == [Abort("no quorum can come")]


def test_a_decider_gives_up_if_voters_fail_that_are_no_reducers() -> None:
    where = instance({"p1": 4, "p2": 4, "p3": 4, "p4": 4})
    made = group(where, "p1 p2 p3 p4", "p1")
    started = Participant(where, made, where.first_vote(voter("p1")), OPTIONS, signer("p1"), VERIFIER)
    started.start(0.0)
    assert started.handle(PeerFailed("p2", "broke off"), 1.0) == []
    assert started.handle(PeerFailed("p3", "broke off"), 1.0) == [Abort("too few voters are left")]
    started = Participant(where, made, where.first_vote(voter("p1")), OPTIONS, signer("p1"), VERIFIER)
    started.start(0.0)
    assert ticks(started, 100)[-1] == (2 * OPTIONS.patience, Abort("too few voters are left"))


def test_a_member_votes_once_in_an_epoch() -> None:
    started = participant("p2")
    started.handle(Received("p1", proposal(started)), 0.0)
    assert started.handle(AverageComplete(started.epoch, "0" * 64), 0.0)
    assert started.handle(AverageComplete(started.epoch, "1" * 64), 0.0) == []


def test_a_round_ends_when_those_left_are_no_quorum() -> None:
    started = participant("p3")
    assert started.handle(PeerFailed("p1", "broke off"), 1.0) == []
    assert started.handle(PeerFailed("p2", "broke off"), 1.0) == [Abort("too few voters are left")]


def test_a_group_without_a_quorum_or_with_forged_members_does_not_begin() -> None:
    where = instance(THREE)
    vote = where.first_vote(voter("p1"))
    with pytest.raises(ValueError, match="no quorum"):
        Participant(where, group(where, "p1 p4", "p1"), vote, OPTIONS, signer("p1"), VERIFIER)
    made = group(where, "p1 p2 p3", "p1")
    forged = made.members[1].changed(signature="AAAA")
    pretended = made.changed(members=(made.members[0], forged, made.members[2]))
    with pytest.raises(ValueError, match="not signed by p2"):
        Participant(where, pretended, vote, OPTIONS, signer("p1"), VERIFIER)
    with pytest.raises(ValueError, match="another step"):
        Participant(instance(THREE, step=8), made, vote, OPTIONS, signer("p1"), VERIFIER)
    far = group(where, "p1 p2 p3", "p1", first=10**6)
    with pytest.raises(ValueError, match="too far ahead"):
        Participant(where, far, vote, OPTIONS, signer("p1"), VERIFIER)
    with pytest.raises(ValueError, match="another voter"):
        Participant(where, made, where.first_vote(voter("p1", 9)), OPTIONS, signer("p1"), VERIFIER)
