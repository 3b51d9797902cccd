"""Some answers of a host are compared with those of the other one that holds the same experts."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dedloc_kit.experts.bank import Bank
from dedloc_kit.swarm.experts import checking
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.checking import accused
from dedloc_kit.swarm.experts.offer import layers_of
from dedloc_kit.swarm.experts.service import Limits
from tests.swarm.experts.local_hosts import CELLS, GRID, LAYER, NAMES, Swarm, learn, offer, sums, swarm

MINE = [name for name in NAMES[::2] if name.layer == LAYER]
"""That host `a` keeps, of the layer that is asked."""


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Swarm]:
    """Host `c` stands in for what `a` keeps."""
    monkeypatch.setattr(checking, "ONE_IN", 1)
    monkeypatch.setattr(checking, "AGAIN_SECONDS", 0.05)
    with swarm() as made:
        stand_in(made, "c", NAMES[::2])
        yield made


def stand_in(made: Swarm, name: str, names: Any) -> None:
    made.add(name, names, Limits())
    made.offers[name] = offer([], copies=layers_of(names, GRID))


def trainer_of(made: Swarm, holds: str = "") -> RemoteExperts:
    """Who knows all hosts."""
    trainer = made.trainer("t", holds)
    made.until(lambda: sum(host.there for host in trainer._hosts._hosts.values()) == len(made.hosts))
    return trainer


def compared(made: Swarm, trainer: RemoteExperts) -> tuple[str, ...]:
    """Who is accused once everything has been compared."""
    assert trainer._checks is not None
    running = trainer._checks._running
    time.sleep(0.05)
    made.until(lambda: not running)
    return trainer._hosts.accuses


def lie(bank: Bank, what: str) -> None:
    """From now on a tenth more than is right."""
    right = getattr(bank, what)
    setattr(bank, what, lambda *given: right(*given) * 1.1)


def test_honest_hosts_are_not_accused_and_what_is_compared_is_learned_from_once(three: Swarm) -> None:
    trainer = trainer_of(three)
    answers = learn(trainer, 1, 2)
    assert [set(each) for each in answers] == [set(CELLS)] * 2
    assert compared(three, trainer) == ()
    assert not sums(three.hosts["c"].bank)
    assert three.hosts["c"].bank._kept.size == 0, "the backward call was compared, too"
    assert not three.failed


@pytest.mark.parametrize("what", ["output", "learn"])
@pytest.mark.parametrize("who", ["a", "c"])
def test_of_two_who_differ_both_are_named_and_both_go_on(three: Swarm, what: str, who: str) -> None:
    trainer = trainer_of(three)
    lie(three.hosts[who].bank, what)
    answers = learn(trainer, 1, 2)
    assert compared(three, trainer) == ("a", "c")
    assert [set(each) for each in answers] == [set(each) for each in learn(trainer, 2, 2)] == [set(CELLS)] * 2


def test_who_differs_from_several_is_named_alone(three: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    three.offers["c"] = offer([], copies=layers_of(MINE[:1], GRID))
    stand_in(three, "d", MINE[1:2])
    trainer = trainer_of(three)
    lie(three.hosts["a"].bank, "output")
    for place in (0, 1):
        monkeypatch.setattr(secrets, "randbelow", lambda most, place=place: min(place, most - 1))
        learn(trainer, place, 2)
        compared(three, trainer)
    assert trainer._hosts.accuses == ("a",)


def test_who_holds_a_copy_itself_knows_who_is_wrong(three: Swarm) -> None:
    trainer = trainer_of(three, holds="c")
    lie(three.hosts["a"].bank, "output")
    learn(trainer, 1, 2)
    assert compared(three, trainer) == ("a",)
    assert set(three.failed) == {("a", "unlike")}
    learn(trainer, 2, 2)
    assert sums(three.hosts["c"].bank), "who stands in is asked instead"


def test_while_two_keep_an_expert_nothing_is_compared(three: Swarm) -> None:
    three.offers["c"] = offer(NAMES[::2])
    trainer = trainer_of(three)
    lie(three.hosts["c"].bank, "output")
    learn(trainer, 1, 2)
    assert compared(three, trainer) == ()


def test_a_host_is_compared_with_another_after_the_same_step_alone(three: Swarm) -> None:
    trainer = trainer_of(three)
    a, c = (three.hosts[name].bank for name in "ac")
    for seed in (1, 2):
        learn(trainer, seed, 2, step=1)
    assert compared(three, trainer) == ()
    a.take(1, 4, 0.05)
    learn(trainer, 3, 2, step=2)  # `c` has not taken the step: what it would answer is not compared
    assert trainer._checks is not None
    assert trainer._checks._running
    assert trainer._hosts.accuses == ()
    for name in c.names:
        c.load(name, *a.state(name))
    assert compared(three, trainer) == ()
    for step in (2, 3):
        c.take(step, 4, 0.05)
    learn(trainer, 4, 2, step=2)
    assert compared(three, trainer) == (), "who stands in is further: nothing can be said"


def test_a_host_is_accused_whom_several_others_name() -> None:
    names = {"a": ("b", "c"), "b": ("c", "b"), "c": (), "d": ("b", "gone"), "e": ("gone", "c")}
    offers = {peer: offer([], accuses=named) for peer, named in names.items()}
    assert accused(offers) == {"c": 3, "b": 2}
