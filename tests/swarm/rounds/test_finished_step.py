"""What a peer can have given, and what a step was."""

from pathlib import Path
from typing import Any, cast

import pytest

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.directory.contributions import collect, possible, publish
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.finished_step import global_step, opened
from dedloc_kit.swarm.trust.pledge import nothing_pledged
from tests.identities import an_identity
from tests.swarm.harness import PlainDHT
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


def test_what_was_pledged_to_another_round_or_not_at_all_is_in_no_receipt(tmp_path: Path) -> None:
    run, signer = tiny_run(global_batch=BATCH, trust={"checks": "on"}), Signer(an_identity(tmp_path / "key"))
    plain = given(run_id=run.run_id)
    pledged = nothing_pledged(plain, "ab")
    assert opened(signer, run, "", 2, "ab", (signer.sign(pledged),)) == {signer.peer: pledged}
    for signed, step, round, why in (
        (pledged, 2, "cd", "another round"),
        (pledged, 3, "ab", "another step"),
        (plain, 2, "ab", "Pledged: "),
    ):
        with pytest.raises(ValueError, match=why):
            opened(signer, run, "", step, round, (signer.sign(signed),))


def test_the_directory_learns_of_a_pledge_what_it_learns_of_any_contribution(tmp_path: Path) -> None:
    dht, signer = cast(Any, PlainDHT()), Signer(an_identity(tmp_path / "key"))
    publish(dht, signer, nothing_pledged(given(), "ab"))
    assert collect(dht, RUN, BATCH, pytest.fail) == {signer.peer: given()}


def test_the_loss_of_a_step_is_the_mean_over_its_samples() -> None:
    receipt = Receipt(step=2, round="ab", time=1.0, seconds=0.5, signed=())
    follower = given(samples=0, session_samples=0, loss=None)
    step = global_step(receipt, {"a": given(samples=1, loss=4.0), "b": given(samples=3, loss=8.0), "c": follower})
    assert (step.samples, step.peers, step.loss) == (4, 3, 7.0)
    assert global_step(receipt, {"c": follower}).loss is None
