"""Somebody else than the organizer orders that the run goes back, or passes on a state with another rate: refused."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.state.orders import RATE, REWOUND
from dedloc_kit.learning.train.state.sketch import differ, sketch
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Rewind
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.rounds.finished_step import rewind_in
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID
from tests.tiny import TinyTask, tiny_run

ORDER = Rewind(run_id=RUN_ID, step=9, round="ab", checkpoint=4, rate=0.5, time=1.0)


@pytest.fixture(scope="module")
def organizer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("organizer") / "identity.key"))


def receipt(signer: Signer, order: Rewind = ORDER, step: int = 9, signed: tuple[bytes, ...] = ()) -> Receipt:
    return Receipt(step=step, round="ab", time=1.0, seconds=0.0, signed=signed, rewind=signer.sign(order))


def test_the_organizers_order_is_read_from_the_receipt_of_its_step(organizer: Signer) -> None:
    assert rewind_in(organizer, RUN_ID, receipt(organizer), organizer.peer) == ORDER
    usual = Receipt(step=9, round="ab", time=1.0, seconds=0.0, signed=())
    assert rewind_in(organizer, RUN_ID, usual, organizer.peer) is None


def test_an_order_of_anybody_else_is_refused(organizer: Signer, tmp_path: Path) -> None:
    forger = Signer(an_identity(tmp_path / "identity.key"))
    with pytest.raises(ValueError, match="the organizer did not order"):
        rewind_in(organizer, RUN_ID, receipt(forger), organizer.peer)
    whole = receipt(organizer)
    spoiled = whole.model_copy(update={"rewind": whole.rewind[:-9] + bytes([whole.rewind[-9] ^ 1]) + whole.rewind[-8:]})
    with pytest.raises(ValueError, match="Rewind"):
        rewind_in(organizer, RUN_ID, spoiled, organizer.peer)


@pytest.mark.parametrize(
    "changed",
    [{"run_id": "other-0123456789abcdef"}, {"step": 8}, {"round": "cd"}],
    ids=lambda changed: next(iter(changed)),
)
def test_an_order_does_not_hold_anywhere_else(organizer: Signer, changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="of another step"):
        rewind_in(organizer, RUN_ID, receipt(organizer, ORDER.model_copy(update=changed)), organizer.peer)


def test_an_order_does_not_stand_beside_contributions(organizer: Signer) -> None:
    with pytest.raises(ValueError, match="of another step"):
        rewind_in(organizer, RUN_ID, receipt(organizer, signed=(b"x",)), organizer.peer)


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
