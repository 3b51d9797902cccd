"""The training state: what is handed over is one global step's, whatever the background does meanwhile."""

import threading

import torch

from dedloc_kit.records import Receipt
from dedloc_kit.swarm.transfer.contents import StateLayout
from dedloc_kit.training.lamb import Lamb
from dedloc_kit.training.state import TrainingState
from tests.tiny import TinyTask, tiny_run

DEADLINE = 30.0


def test_a_step_that_falls_due_while_the_state_is_handed_over_waits_for_it() -> None:
    run = tiny_run()
    state = TrainingState(TinyTask(run).build_model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
    before = state.flat.clone()
    receipt = Receipt(step=1, round="ab", time=1.0, seconds=0.0, signed=())
    step = threading.Thread(target=state.apply, args=(torch.ones_like(state.flat), receipt))
    with state.for_newcomer() as (metadata, tensors):
        step.start()
        step.join(timeout=0.2)
        layout = StateLayout(tensors)
        packed = layout.pack(tensors)
        assert step.is_alive()
        assert metadata["info"]["step"] == 0
    step.join(DEADLINE)
    assert state.step == 1
    assert not torch.equal(state.flat, before)
    handed_over = torch.cat([tensor.flatten() for tensor in layout.views(packed)[: len(state.parameters)]])
    assert torch.equal(handed_over, before)
