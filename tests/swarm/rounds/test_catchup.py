"""What a peer takes of steps that others made without it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.records import Contribution, Receipt
from dedloc_kit.swarm.rounds import catchup
from dedloc_kit.swarm.rounds.catchup import CatchUp
from dedloc_kit.swarm.rounds.optimizer import CollaborativeOptimizer

BATCH = 10


@pytest.mark.parametrize(("samples", "taken"), [(BATCH, True), (BATCH - 1, False)])
def test_a_late_average_of_too_few_samples_is_not_taken(
    samples: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {
        "run_id": "tiny-0123456789abcdef",
        "step": 5,
        "session": "ab",
        "loss": 1.0,
        "name": "",
        "time": 9.0,
    }
    given = Contribution(**values, samples=samples, session_samples=samples)
    monkeypatch.setattr(catchup, "opened", lambda *_: {"p": given})
    monkeypatch.setattr(catchup, "unpack", lambda _: ())
    monkeypatch.setattr(catchup, "decode_all", lambda *_: torch.ones(3))
    applied: list[Receipt] = []
    me: Any = SimpleNamespace(
        _state=SimpleNamespace(
            step=4, layout=SimpleNamespace(size=3), apply=lambda average, receipt: applied.append(receipt)
        ),
        _run=SimpleNamespace(run_id=values["run_id"], global_batch=BATCH),
        _tracker=SimpleNamespace(belief=SimpleNamespace(reached=lambda *_: None)),
        _signer=None,
    )
    found: Any = SimpleNamespace(step=5, round="cd", metadata=b"", parts=())
    if taken:
        CatchUp._take(me, found)
    else:
        with pytest.raises(ValueError, match="too few samples"):
            CatchUp._take(me, found)
    assert [(receipt.step, receipt.round) for receipt in applied] == [(5, "cd")] * taken


def test_samples_in_doubt_are_settled_by_the_steps_that_the_swarm_took_and_by_the_state_it_is_in() -> None:
    settled: list[list[str]] = []
    receipt = SimpleNamespace(round="aa")
    me: Any = SimpleNamespace(
        _catch_up=SimpleNamespace(follow=lambda: [(receipt, {})]),
        gradients=SimpleNamespace(settle=lambda rounds: settled.append(list(rounds))),
        state=SimpleNamespace(rounds=("99", "bb"), rewound=0),
        _rounds=SimpleNamespace(drop_stale=lambda: None),
        _tell=lambda *_: None,
        _report=lambda: None,
    )
    CollaborativeOptimizer._follow_the_swarm(me)
    assert settled == [["aa"], ["99", "bb"]]
