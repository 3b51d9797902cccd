"""What a peer tells of the steps that it takes."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dedloc_kit.records import Contribution, GlobalStep, LeftOut
from dedloc_kit.swarm.averaging.group import RoundResult
from dedloc_kit.swarm.averaging.grouping import OneGroup
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer
from tests.swarm.harness import profile
from tests.swarm.rounds.test_rounds import Peer


def test_a_step_says_who_was_left_out_of_it(tmp_path: Path) -> None:
    me, told = Peer(tmp_path), list[GlobalStep]()

    def on_step(step: GlobalStep, _: dict[str, Contribution]) -> None:
        told.append(step)

    averager: Any = me.averager
    averager.put_back = lambda: None
    exchange: Any = SimpleNamespace(averager=averager, grouping=OneGroup(10), transfers=None, host=None)
    caller = Caller(threading.Event(), 1000, on_step, lambda *_: None)
    signer = Signer(Identity(tmp_path / "me"))
    optimizer = CollaborativeOptimizer(me.state, [], me.gradients, exchange, me.tracker, signer, profile(), caller)
    optimizer._rounds.left_out = LeftOut(count=1, some={"QmGone": "fell silent"})
    optimizer._apply(RoundResult("complete", "ab" * 20))
    assert [(step.step, step.left_out) for step in told] == [(1, LeftOut(count=1, some={"QmGone": "fell silent"}))]
