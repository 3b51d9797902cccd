"""Somebody else than the organizer orders that the learning rate falls and the run ends, or the organizer's order is
brought where it does not hold."""

from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.events import StepDone, Warned
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.orders import DECAY_START
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.finished_step import decay_in, decay_order
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, Swarm, assert_ledger_sums
from tests.tiny import tiny_run


@pytest.fixture(scope="module")
def organizer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("organizer") / "identity.key"))


def brought(*orders: str) -> list[Contribution]:
    values: dict[str, Any] = {"run_id": RUN_ID, "step": 9, "session": "ab", "loss": 1.0, "name": "x", "time": 1.0}
    return [Contribution(**values, samples=4, session_samples=4, decay_order=order) for order in orders]


def test_the_organizers_order_is_taken_whoever_brings_it_and_whatever_others_bring(organizer: Signer) -> None:
    order = decay_order(organizer, RUN_ID, 40, 5)
    for orders in ([order], ["", order, order], ["AAAA", "AAA", order]):
        assert decay_in(organizer, RUN_ID, brought(*orders), organizer.peer, 5) == 40
    assert decay_in(organizer, RUN_ID, brought("", ""), organizer.peer, 5) == 0


def test_an_order_of_anybody_else_is_none(organizer: Signer, tmp_path: Path) -> None:
    forged = decay_order(Signer(an_identity(tmp_path / "identity.key")), RUN_ID, 40, 5)
    spoiled = decay_order(organizer, RUN_ID, 40, 5)
    other = "B" if spoiled[-40] == "A" else "A"
    for order in (forged, spoiled[:-40] + other + spoiled[-39:], spoiled[:400]):
        assert decay_in(organizer, RUN_ID, brought(order), organizer.peer, 5) == 0


@pytest.mark.parametrize(("run_id", "rewound"), [("other-0123456789abcdef", 5), (RUN_ID, 4), (RUN_ID, 6)])
def test_an_order_does_not_hold_anywhere_else(organizer: Signer, run_id: str, rewound: int) -> None:
    order = decay_order(organizer, run_id, 40, rewound)
    assert decay_in(organizer, RUN_ID, brought(order), organizer.peer, 5) == 0, "in another run, or before a rewind"


@pytest.mark.soak  # `receipts.decay_in` is tested by itself
def test_a_member_that_orders_the_run_to_decay_with_every_step_moves_nobody(tmp_path: Path) -> None:
    steady = {"learning_rate": 0.01, "schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}
    with Swarm(tiny_run("decays", global_batch=64, optimizer=steady), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        honest = swarm.volunteer("honest", {"TINY_PAUSE": "0.1"}, microbatch=4)
        fault = {"TINY_PAUSE": "0.1", "TINY_FAULT": "orders a decay"}
        mallory = swarm.volunteer("mallory", fault, microbatch=4).joined.peer
        first = coordinator.wait_for(StepDone, lambda event: mallory in event.contributions).step.step
        for peer in (coordinator, honest):
            peer.wait_for_step(first + 3)
            assert not [event for event in peer.events if isinstance(event, Warned) and "rate fall" in event.text]
        coordinator.worker.stop()
        newest = max((coordinator.config.folder / "checkpoints").glob("step-*.safetensors"))
    assert int(checkpoint.load(newest)[0][DECAY_START]) == 0
    assert_ledger_sums(coordinator, 64)
