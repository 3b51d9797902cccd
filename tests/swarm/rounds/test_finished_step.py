"""What a peer can have given, and what a step was."""

from pathlib import Path
from typing import Any, cast

import pytest

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.branch import Anchored
from dedloc_kit.swarm.directory.contributions import collect, possible, publish
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.finished_step import check_signed, global_step, receipt_of, record_in
from dedloc_kit.swarm.trust.pledge import nothing_pledged
from tests.identities import an_identity
from tests.swarm.harness import PlainDHT
from tests.swarm.rounds.chained import Coordinator, chains
from tests.tiny import tiny_run

RUN, BATCH = "tiny-0123456789abcdef", 10
MAX_SAMPLES = MAX_BATCHES * BATCH


def given(**values: Any) -> Contribution:
    usual = {"run_id": RUN, "step": 2, "session": "ab", "samples": 3, "session_samples": 5, "loss": 1.0, "name": "x"}
    return Contribution(**{**usual, "time": 9.0, **values})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"samples": MAX_SAMPLES, "session_samples": MAX_SAMPLES},
        {"samples": 0, "session_samples": 0, "loss": None},
        {"session_samples": 2 * MAX_SAMPLES},
    ],
)
def test_what_an_honest_peer_may_have_given_is_taken(values: dict[str, Any]) -> None:
    assert possible(given(**values), RUN, BATCH) == given(**values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"run_id": "other-0123456789abcdef"}, "of another run"),
        ({"step": 0, "samples": 2**53, "session_samples": 2**53}, "no step 0"),
        ({"samples": MAX_SAMPLES + 1, "session_samples": MAX_SAMPLES + 1}, "claims 641 samples for a batch of 10"),
        ({"session_samples": 2 * MAX_SAMPLES + 1}, "cannot have given 1281 samples"),
        ({"samples": 3, "session_samples": 2}, "cannot have given 2 samples"),
    ],
)
def test_what_no_honest_peer_can_have_given_is_not(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        possible(given(**values), RUN, BATCH)


def test_a_receipt_holds_the_record_that_it_names(tmp_path: Path) -> None:
    run, signer = tiny_run(global_batch=BATCH), Signer(an_identity(tmp_path / "key"))
    with chains(signer) as among:
        coordinator = Coordinator(among, run)
        assert coordinator.branch.head is not None
        first, second = (receipt_of(coordinator.step(), time=9.0, seconds=0.5) for _ in range(2))
    assert (first.step, second.step, second.time, second.seconds) == (1, 2, 9.0, 0.5)
    assert record_in(second).link == second.round
    check_signed(record_in(second), signer.peer)
    for lie in (
        second.model_copy(update={"record": first.record}),
        second.model_copy(update={"step": 3}),
        second.model_copy(update={"round": first.round}),
        second.model_copy(update={"record": second.record[:-1]}),
        second.model_copy(update={"record": b""}),
    ):
        with pytest.raises(ValueError, match=r"another step|JSON|only consensus/commit"):
            record_in(lie)


def test_a_record_without_its_chain_has_to_be_signed_by_those_that_it_names(tmp_path: Path) -> None:
    run, signer = tiny_run(global_batch=BATCH), Signer(an_identity(tmp_path / "key"))
    with chains(signer) as among:
        coordinator = Coordinator(among, run)
        assert coordinator.branch.head is not None
        reset = files.decode(coordinator.branch.head.anchor, Anchored).anchor.reset
        commit = coordinator.step()
    check_signed(reset, signer.peer)
    with pytest.raises(ValueError, match="not signed"):
        check_signed(reset, "another")
    with pytest.raises(ValueError, match="not signed"):
        check_signed(reset.changed(step=5), signer.peer)
    entry = commit.value.counted[0]
    forged = commit.changed(value=commit.value.changed(counted=(entry.changed(about=""),)))
    with pytest.raises(ValueError, match="not signed"):
        check_signed(forged, signer.peer)


def test_the_directory_learns_of_a_pledge_what_it_learns_of_any_contribution(tmp_path: Path) -> None:
    dht, signer = cast(Any, PlainDHT()), Signer(an_identity(tmp_path / "key"))
    publish(dht, signer, nothing_pledged(given(), "ab"))
    assert collect(dht, RUN, BATCH, pytest.fail) == {signer.peer: given()}


def test_the_loss_of_a_step_is_the_mean_over_its_samples() -> None:
    receipt = Receipt(step=2, round="ab", time=1.0, seconds=0.5, record=b"")
    follower = given(samples=0, session_samples=0, loss=None)
    step = global_step(receipt, {"a": given(samples=1, loss=4.0), "b": given(samples=3, loss=8.0), "c": follower})
    assert (step.samples, step.peers, step.loss) == (4, 3, 7.0)
    assert global_step(receipt, {"c": follower}).loss is None
