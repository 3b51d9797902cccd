"""What a peer takes of steps that others made without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.finished_step import decay_order, receipt_of, record_in
from dedloc_kit.swarm.rounds.missed_steps import MissedStep
from tests.identities import an_identity
from tests.swarm.harness import progress
from tests.swarm.rounds.chained import BATCH, Chains, Coordinator, Follower, chains
from tests.tiny import tiny_run

STEADY = {"learning_rate": 0.1, "schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Signer]:
    """The organizer's, and a peer's."""
    folder: Path = tmp_path_factory.mktemp("keys")
    return Signer(an_identity(folder / "organizer")), Signer(an_identity(folder / "peer"))


@pytest.fixture
def among(signers: tuple[Signer, Signer]) -> Iterator[Chains]:
    with chains(signers[0]) as made:
        yield made


@pytest.fixture
def coordinator(among: Chains) -> Coordinator:
    return Coordinator(among, tiny_run(global_batch=BATCH, optimizer=STEADY))


@pytest.fixture
def follower(among: Chains, coordinator: Coordinator, signers: tuple[Signer, Signer]) -> Follower:
    """At the beginning, where the coordinator is as well."""
    made = Follower(among, coordinator, signers[1])
    assert made.catch_up.load()
    return made


def told(missed: list[MissedStep]) -> list[tuple[int, str]]:
    return [(step.receipt.step, step.receipt.round) for step in missed]


def test_missed_steps_are_taken_one_after_the_other_each_with_its_average(
    coordinator: Coordinator, follower: Follower
) -> None:
    commits = [coordinator.step() for _ in range(3)]
    assert follower.catch_up.behind()
    missed = follower.catch_up.follow()
    assert told(missed) == [(number, commit.link) for number, commit in enumerate(commits, 1)]
    assert [list(step.weights.values()) for step in missed] == [[BATCH]] * 3
    assert [record_in(receipt) for receipt in follower.state.receipts] == commits
    assert follower.is_there()
    assert follower.asked == ["average"] * 3
    assert not follower.catch_up.behind()


def test_a_late_average_is_taken_with_what_the_organizer_ordered(coordinator: Coordinator, follower: Follower) -> None:
    coordinator.step(decay_order=decay_order(coordinator.signer, coordinator.run.run_id, 7, 0))
    coordinator.step()
    assert coordinator.state.decay is not None
    follower.catch_up.follow()
    assert follower.state.decay == coordinator.state.decay
    assert follower.is_there()


def test_names_of_the_gradients_that_count_come_with_a_missed_step(
    coordinator: Coordinator, follower: Follower
) -> None:
    commit = coordinator.step()
    (missed,) = follower.catch_up.follow()
    assert missed.pieces == {piece.hash for entry in commit.value.counted for piece in entry.pieces}
    assert len(missed.pieces) == 1


def test_where_an_average_is_gone_the_state_is_loaded_and_its_receipts_tell_what_was_missed(
    coordinator: Coordinator, follower: Follower
) -> None:
    commits = [coordinator.step() for _ in range(3)]
    follower.gives = lambda after: coordinator.kept_average(after) if after == commits[0].previous else None
    missed = follower.catch_up.follow()
    assert follower.asked == ["average", "average", "state"]
    assert told(missed) == [(number, commit.link) for number, commit in enumerate(commits, 1)]
    assert follower.is_there()


def test_a_peer_that_reaches_nobody_stays_and_tries_again(coordinator: Coordinator, follower: Follower) -> None:
    commit = coordinator.step()
    follower.reachable = False
    assert follower.catch_up.follow() == []
    assert follower.state.step == 0
    assert follower.catch_up.behind()
    follower.reachable = True
    assert told(follower.catch_up.follow()) == [(1, commit.link)]
    assert follower.is_there()


def test_a_rollback_takes_the_whole_state_of_the_organizer(coordinator: Coordinator, follower: Follower) -> None:
    coordinator.step()
    tensors, info = coordinator.state.copy()
    coordinator.step()
    follower.catch_up.follow()
    link = coordinator.roll_back(tensors, info, rate=0.5)
    commit = coordinator.step()
    follower.asked.clear()
    missed = follower.catch_up.follow()
    assert follower.asked == ["state"]
    assert told(missed) == [(3, link), (4, commit.link)]
    assert [step.is_step for step in missed] == [True, True]
    assert [step.rollback and step.rollback.rate for step in missed] == [0.5, None]
    assert (follower.state.rate, follower.state.rewound) == (0.5, 3)
    assert follower.is_there()


def test_steps_that_the_swarm_took_in_place_of_ours_are_told_with_those_after_ours(
    among: Chains, coordinator: Coordinator, follower: Follower
) -> None:
    """The coordinator has lost its disk and returns with an older checkpoint."""
    coordinator.step()
    tensors, info = coordinator.state.copy()
    coordinator.step()
    coordinator.step()
    follower.catch_up.follow()
    again = Coordinator(among, coordinator.run, checkpoint=(tensors, info))
    follower.coordinator = again
    follower.gives = again.kept_average
    commits = [again.step(name="again") for _ in range(4)]
    missed = follower.catch_up.follow()
    assert told(missed) == [(number, commit.link) for number, commit in enumerate(commits, 2)]
    assert [receipt.round for receipt in follower.state.receipts] == [commit.link for commit in commits]
    assert follower.is_there()


def test_nobody_asks_who_holds_no_state_for_one_nor_thinks_that_it_has_gone_elsewhere(
    coordinator: Coordinator, follower: Follower
) -> None:
    me = coordinator.signer.peer
    lender = progress(step=0, round=coordinator.state.round, sketch=(), holds_state=False)
    follower.others = lambda: {"lender": lender}
    assert not follower.catch_up.behind()
    drifted = progress(step=0, round=coordinator.state.round, sketch=(9.0, 9.0, 9.0, 9.0))
    follower.others = lambda: {"lender": lender, me: drifted}
    assert follower.catch_up.behind()
    coordinator.step()
    newest = coordinator.state.position
    follower.others = lambda: {"lender": progress(step=1, round=newest.round, sketch=(), holds_state=False)}
    follower.gives = lambda _: None
    follower.catch_up.follow()
    assert "state" not in follower.asked


@pytest.mark.parametrize("case", ["same", "another model", "not there", "does not answer", "beyond"])
def test_where_a_run_begins_nobody_downloads_what_the_organizer_says_that_it_has_as_well(
    among: Chains, coordinator: Coordinator, signers: tuple[Signer, Signer], case: str
) -> None:
    """A hundred who come at once would wait for hours for its line."""
    model = torch.nn.Linear(100, 50) if case == "another model" else None
    newcomer = Follower(among, coordinator, signers[1], model)
    if case == "another model":
        newcomer.state.flat.zero_()
        newcomer.state.load(newcomer.state.tensors(), newcomer.state.info)  # its sketch
    elif case == "not there":
        here = newcomer.there()
        newcomer.others = lambda: {"peer": here}
    elif case == "does not answer":
        newcomer.header = lambda: None
    elif case == "beyond":
        coordinator.step()
    assert newcomer.catch_up.load()
    assert newcomer.asked == ([] if case == "same" else ["state"])
    assert newcomer.is_there()


def test_a_newcomer_is_where_the_coordinator_is_though_voters_were_replaced_before_the_first_step(
    among: Chains, coordinator: Coordinator, follower: Follower
) -> None:
    """A reset of the electorate is no step, and moves no parameters."""
    before = follower.state.position
    coordinator.replace_voters()
    commit = coordinator.step()
    missed = follower.catch_up.follow()
    assert [step.is_step for step in missed] == [False, True]
    assert told(missed)[1] == (1, commit.link)
    assert follower.is_there()
    assert follower.state.position != before


def test_receipts_that_nobody_has_signed_are_not_kept(coordinator: Coordinator, follower: Follower) -> None:
    for _ in range(2):
        coordinator.step()
    first, second = coordinator.state.receipts
    commit = record_in(first)
    assert isinstance(commit, Commit)
    (entry,) = commit.value.counted
    another = commit.changed(value=commit.value.changed(counted=(entry.changed(orders=("ab" * 32,)),)))
    forged = receipt_of(another, 1.0)
    coordinator.state.receipts = (forged, second)
    follower.gives = lambda _: None
    missed = follower.catch_up.follow()
    assert told(missed) == [(2, second.round)]
    assert follower.state.receipts == (second,)
    assert len(follower.rejected) == 1
    assert follower.rejected[0].startswith("the receipt of a step")
    assert follower.is_there()


def test_a_state_whose_place_in_the_chain_is_not_signed_is_refused(
    coordinator: Coordinator, follower: Follower, signers: tuple[Signer, Signer]
) -> None:
    coordinator.step()
    right = coordinator.state.anchor
    with chains(signers[0]) as elsewhere:
        other = Coordinator(elsewhere, coordinator.run)
        other.step()
        coordinator.state.anchor = other.state.anchor
    follower.gives = lambda _: None
    assert follower.catch_up.follow() == []
    assert follower.state.position == Position(0, follower.state.round)
    coordinator.state.anchor = right
    follower.catch_up.follow()
    assert follower.is_there()


def test_who_claims_to_be_far_ahead_is_not_followed_and_told_of_once(
    coordinator: Coordinator, follower: Follower
) -> None:
    claim = follower.there().model_copy(update={"step": 900, "round": "f" * 64})
    follower.others = lambda: {coordinator.signer.peer: follower.there(), "liar": claim}
    for _ in range(3):
        assert not follower.catch_up.behind()
    assert follower.rejected == ["Progress: liar claims step 900, which nothing proves"]
    commit = coordinator.step()
    assert told(follower.catch_up.follow()) == [(1, commit.link)]
    assert follower.is_there()


def test_who_is_behind_all_records_takes_the_state_as_a_newcomer_does(
    coordinator: Coordinator, follower: Follower
) -> None:
    commits = [coordinator.step() for _ in range(3)]
    coordinator.forget_records()
    missed = follower.catch_up.follow()
    assert follower.asked == ["state"]
    assert told(missed) == [(number, commit.link) for number, commit in enumerate(commits, 1)]
    assert follower.is_there()


def test_who_says_that_it_keeps_nothing_is_followed_nowhere_without_somebody_whose_word_counts(
    coordinator: Coordinator, follower: Follower
) -> None:
    before = follower.state.position
    coordinator.step()
    coordinator.forget_records()
    follower.newest = lambda own: own
    assert follower.catch_up.behind()
    assert follower.catch_up.follow() == []
    assert (follower.asked, follower.state.position) == ([], before)


def test_a_coordinator_that_has_lost_its_chain_goes_where_the_others_are(
    among: Chains, coordinator: Coordinator, signers: tuple[Signer, Signer]
) -> None:
    """They have taken steps without it, of which its own reset knows nothing."""
    coordinator.step()
    checkpoint = coordinator.state.copy()
    coordinator.step()
    with chains(signers[0]) as elsewhere:
        returned = Follower(elsewhere, coordinator, signers[0])
        returned.state.load_named(*checkpoint)
        returned.others = lambda: {"volunteer": returned.there()}
        returned.branch.begin()
        assert returned.branch.term > coordinator.branch.term
        assert returned.catch_up.behind()
        assert told(returned.catch_up.follow())[-1] == (2, coordinator.state.round)
        assert returned.is_there()
        assert not returned.catch_up.behind()
