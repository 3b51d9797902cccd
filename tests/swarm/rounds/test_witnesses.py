"""Who is asked about a state, and what follows from the answers."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from hivemind.utils import MSGPackSerializer

from dedloc_kit.learning.train.state.sketch import sketch
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.rounds import witnesses
from dedloc_kit.swarm.rounds.witnesses import Witnesses
from dedloc_kit.swarm.transfer.protocol import Header
from tests.swarm.harness import belief, progress

VERSION = "10/aa"
RIGHT, WRONG = [torch.arange(9.0), torch.zeros(4)], [torch.arange(9.0) + 1.0, torch.zeros(4)]
Says = Callable[[str, bytes], Header | None]


def holds(state: list[torch.Tensor], version: str = VERSION) -> Says:
    def says(asked: str, seed: bytes) -> Header:
        if asked != version:
            return Header(answer="nothing", version=version)
        return Header(answer="here", version=version, metadata=MSGPackSerializer.dumps(sketch(state, seed)))

    return says


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(witnesses, "PATIENCE_SECONDS", 0.2)


class Swarm:
    """Peers that say this of their state. :ivar steps: to which they have come, as they tell; else to step 10"""

    def __init__(self, mine: Belief, **says: Says) -> None:
        self.belief, self.says = mine, says
        self.steps: dict[str, int] = {}
        self.asked: list[str] = []
        self.seeds: list[bytes] = []
        self.rejected: list[str] = []
        self.reject = self.rejected.append

    def others(self) -> dict[str, Progress]:
        return {peer: progress(step=self.steps.get(peer, 10), round="aa") for peer in self.says}

    def proves(self, peers: Any) -> bool:
        return self.belief.proves(peers, 1000.0)

    def ask(self, peer: str, version: str, seed: bytes) -> Any:
        self.asked.append(peer)
        self.seeds.append(seed)
        answer: Future[Header | None] = Future()
        answer.set_result(self.says[peer](version, seed))
        return answer

    def verdict(self, state: list[torch.Tensor], loose: frozenset[int] = frozenset()) -> str:
        as_tracker: Any = self
        asked = Witnesses(self.ask, as_tracker, threading.Event())
        return asked.judge(VERSION, state, loose) if asked.question(VERSION) else asked.verdict


def test_the_organizer_is_asked_and_nobody_else_where_it_is_there() -> None:
    swarm = Swarm(belief(), organizer=holds(RIGHT), x=holds(WRONG), y=holds(WRONG), z=holds(WRONG))
    assert swarm.verdict(RIGHT) == "right"
    assert swarm.verdict(WRONG) == "wrong"
    assert set(swarm.asked) == {"organizer"}


def test_an_organizer_that_is_behind_says_nothing_of_a_state_that_the_chain_has_proven() -> None:
    mine = belief()
    mine.took(9, 1000.0, {"asha": 6, "badal": 4})
    swarm = Swarm(mine, organizer=holds(WRONG, "3/cc"), asha=holds(RIGHT), badal=holds(WRONG))
    swarm.steps["organizer"] = 3
    assert swarm.verdict(RIGHT) == "right"
    assert set(swarm.asked) == {"asha", "badal"}


def test_without_it_a_newcomer_needs_three_holders_of_one_mind() -> None:
    assert Swarm(belief(), x=holds(RIGHT), y=holds(RIGHT)).verdict(RIGHT) == "unproven"
    three = Swarm(belief(), x=holds(RIGHT), y=holds(RIGHT), z=holds(RIGHT), liar=holds(WRONG))
    assert three.verdict(RIGHT) == "right"
    assert three.verdict(WRONG) == "wrong"
    assert Swarm(belief(), x=holds(RIGHT), y=holds(RIGHT), z=holds(WRONG)).verdict(RIGHT) == "unproven"
    assert len(set(three.seeds)) == len(three.seeds), "each of them has signs of its own"


def test_who_brought_most_of_the_last_step_proves_a_state_against_many() -> None:
    mine = belief()
    mine.took(9, 1000.0, {"asha": 6, "badal": 4})
    swarm = Swarm(mine, asha=holds(RIGHT), badal=holds(WRONG), x=holds(WRONG), y=holds(WRONG), z=holds(WRONG))
    assert swarm.verdict(RIGHT) == "right"
    assert swarm.verdict(WRONG) == "wrong"


def test_buffers_may_differ_from_peer_to_peer() -> None:
    assert Swarm(belief(), organizer=holds(RIGHT)).verdict(WRONG, loose=frozenset([0])) == "right"


def test_a_witness_that_has_gone_on_says_so_and_one_that_never_came_so_far_gives_the_lie() -> None:
    assert Swarm(belief(), organizer=holds(RIGHT, "11/bb")).verdict(RIGHT) == "moved on"
    assert Swarm(belief(), organizer=holds(RIGHT, "9/cc")).verdict(RIGHT) == "wrong"
    assert Swarm(belief(), organizer=holds(RIGHT, "10/ff")).verdict(RIGHT) == "wrong"


def test_a_busy_witness_is_asked_again_and_nonsense_is_no_answer() -> None:
    answers = iter([None, Header(answer="busy")])

    def late(version: str, seed: bytes) -> Header | None:
        return next(answers, holds(RIGHT)(version, seed))

    assert Swarm(belief(), organizer=late).verdict(RIGHT) == "right"
    swarm = Swarm(belief(), organizer=lambda *_: Header(answer="here", version=VERSION, metadata=b"\xc1"))
    assert swarm.verdict(RIGHT) == "unproven"
    assert "an answer about the state" in swarm.rejected[0]


def test_a_sketch_of_other_tensors_does_not_fit() -> None:
    assert Swarm(belief(), organizer=holds(RIGHT[:1])).verdict(RIGHT) == "wrong"
