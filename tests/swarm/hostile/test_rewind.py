"""Somebody else than the organizer orders that the run goes back, or passes on a state with another rate: refused."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.state.orders import RATE, REWOUND
from dedloc_kit.learning.train.state.sketch import differ, sketch
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.swarm.consensus.records import PartReset, Reset, Voter
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.rounds.finished_step import check_signed, receipt_of, record_in
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID
from tests.tiny import TinyTask, tiny_run

PART = PartReset(part="", previous="ab" * 32, state="cd" * 32)


@pytest.fixture(scope="module")
def organizer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("organizer") / "identity.key"))


def a_reset(signer: Signer, voter: str) -> Reset:
    """That takes over an earlier state with step 9."""
    reset = Reset(run_id=RUN_ID, term=3, step=10, parts=(PART,), coordinator=Voter(voter, 1), chosen=True)
    return reset.signed(KeySigner(signer))


def test_the_organizers_reset_is_read_from_the_receipt_of_its_step(organizer: Signer) -> None:
    receipt = receipt_of(a_reset(organizer, organizer.peer), 1.0)
    assert receipt.step == 9
    check_signed(record_in(receipt), organizer.peer)


def test_a_reset_of_anybody_else_is_refused(organizer: Signer, tmp_path: Path) -> None:
    forger = Signer(an_identity(tmp_path / "identity.key"))
    genuine = a_reset(organizer, organizer.peer)
    for reset in (a_reset(forger, organizer.peer), genuine.changed(rate=0.5), genuine.changed(signature="")):
        with pytest.raises(ValueError, match="not signed by"):
            check_signed(record_in(receipt_of(reset, 1.0)), organizer.peer)


@pytest.mark.parametrize("changed", [{"step": 8}, {"round": "ef" * 32}], ids=lambda changed: next(iter(changed)))
def test_a_reset_is_not_that_of_another_step(organizer: Signer, changed: dict[str, object]) -> None:
    receipt = receipt_of(a_reset(organizer, organizer.peer), 1.0)
    with pytest.raises(ValueError, match="of another step"):
        record_in(receipt.model_copy(update=changed))


@pytest.mark.parametrize(("name", "value"), [(RATE, 0.5001), (REWOUND, 8)])
def test_witnesses_see_that_a_donor_passes_on_another_rate_or_another_step(name: str, value: float) -> None:
    run = tiny_run()
    state = TrainingState(TinyTask(run).model(), lambda model: _Still(model), run)
    tensors, info = state.copy()
    state.load_named(tensors | {RATE: torch.tensor([0.5], dtype=torch.float64), REWOUND: torch.tensor([9])}, info)
    told = sketch(state.tensors(), b"seed")
    assert differ(state.tensors(), b"seed", told) == []
    forged, _ = state.copy()
    forged[name][0] = value
    assert differ(list(forged.values()), b"seed", told) == [list(forged).index(name)]


class _Still:
    """An optimizer without a state."""

    def __init__(self, _model: torch.nn.Module) -> None:
        self.param_groups = [{"lr": 0.0}]

    def step(self) -> None:
        pass

    def state_tensors(self) -> list[torch.Tensor]:
        return []
