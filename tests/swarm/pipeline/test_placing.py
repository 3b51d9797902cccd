"""A newcomer chooses its stage by what others say, of those that it can hold."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.blocks.plans.stages import Stage
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.reach import Reach
from dedloc_kit.swarm.pipeline import placing
from dedloc_kit.swarm.pipeline.placing import Newcomer
from tests.identities import an_identity
from tests.tiny import tiny_run


def test_a_newcomer_takes_no_stage_that_it_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = list[int]()

    class Nobody:
        """A directory in which nobody is."""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def look(self, **_: Any) -> dict[str, Any]:
            return {}

        def store(self, _: Any, offer: Any, **__: Any) -> Any:
            announced.append(offer.stage)
            return self

        def result(self, _: float) -> None: ...

    monkeypatch.setattr(placing, "Directory", Nobody)
    monkeypatch.setattr(placing, "addresses_of", lambda _: ())
    signer, stop = Signer(an_identity(tmp_path / "key")), threading.Event()
    stop.set()
    for alone in range(4):
        stages = [Stage(0.25, 0.25)] * 4
        node: Any = SimpleNamespace(reach=Reach(client_mode=True))
        newcomer = Newcomer(tiny_run(), node, signer, PeerConfig(folder=tmp_path), stages, frozenset({alone}))
        assert newcomer.choose(stop) == alone
    assert announced == [0, 1, 2, 3]
