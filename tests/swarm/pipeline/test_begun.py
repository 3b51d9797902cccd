"""Which samples make up a batch."""

import math

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.records.stages import Begun, StageOffer
from dedloc_kit.swarm.pipeline import begun
from dedloc_kit.swarm.pipeline.begun import Batches, Drivers, begun_for, wanted
from tests.swarm.pipeline.local_pipeline import offer


def said(samples: int, *, final: bool = True, step: int = 4) -> Begun:
    return Begun(step=step, samples=samples, final=final)


def test_a_batch_is_what_all_have_begun_once_that_is_final() -> None:
    assert wanted([said(5), said(7)], 4, 10) == 12
    assert wanted([said(5), said(7, final=False)], 4, 10) == math.inf
    assert wanted([said(5), said(9, step=3)], 4, 10) == math.inf, "one has not heard of this step yet"
    assert wanted([], 4, 10) == math.inf
    assert begun_for([said(5), said(7), said(9, step=3)], 4) == 12


def test_it_is_less_than_a_global_batch_only_if_another_stage_has_taken_the_step() -> None:
    assert wanted([said(5)], 4, 10) == 10
    assert wanted([said(5)], 4, 10, closed=True) == 5, "a driver has died that had begun more"
    assert wanted([said(0)], 4, 10, closed=True) == 0, "it had begun all of it"
    assert wanted([said(5, final=False)], 4, 10, closed=True) == math.inf
    assert wanted([said(12)], 4, 10, closed=True) == 12


def test_of_a_driver_counts_what_it_said_last_on_its_line_or_in_its_record() -> None:
    offers = {"a": offer(stage=None, begun=said(3)), "b": offer(stage=1), "c": offer(stage=0, begun=said(2))}
    drivers = Drivers(lambda: offers, most=100)
    drivers.heard("a", said(4))
    drivers.heard("d", said(1))
    assert drivers.told() == {"a": said(4), "d": said(1), "c": said(2)}
    offers["a"] = offer(stage=None, begun=said(0, step=5))
    assert drivers.told()["a"] == said(0, step=5)


def test_a_driver_whose_line_has_broken_is_gone_until_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, "GONE_SECONDS", 0.0)
    offers: dict[str, StageOffer] = {"a": offer(stage=None, begun=said(3))}
    drivers = Drivers(lambda: offers, most=100)
    drivers.heard("a", said(4))
    offers["a"] = offer(stage=None, begun=said(5, final=False), time=get_dht_time())
    drivers.broken("a")
    assert drivers.told() == {}
    offers["a"] = offer(stage=None, begun=said(5, final=False), time=get_dht_time())
    assert drivers.told() == {"a": said(5, final=False)}
    drivers.heard("a", said(6))
    assert drivers.told() == {"a": said(6)}


def test_what_a_driver_said_before_its_line_broke_says_nothing_though_it_comes_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until its record lapses all would wait for what it did not begin any more."""
    monkeypatch.setattr(begun, "GONE_SECONDS", 0.0)
    offers: dict[str, StageOffer] = {"a": offer(stage=None, begun=said(3), time=get_dht_time() - 2.0)}
    drivers = Drivers(lambda: offers, most=100)
    drivers.heard("a", said(4))
    last = offer(stage=None, begun=said(4, final=False), time=get_dht_time())
    drivers.broken("a")
    offers["a"] = last
    assert drivers.told() == {}


class Looking:
    """Batches of ten samples, looked at each second.

    :ivar now: seconds
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.batches = Batches(10, lambda: self.now)

    def look(self, *told: Begun, step: int = 4, seconds: int = 1, **how: bool) -> float | None:
        """How many samples are wanted at the end of so many seconds, in which this was said all the time."""
        for _ in range(seconds):
            self.now += 1.0
            found = self.batches.wanted(told, step, **how)
        return found


@pytest.mark.parametrize("claim", [said(4, final=False), said(40, final=True), said(7, step=3)])
def test_a_batch_that_is_full_waits_for_claims_as_long_as_it_took_to_fill_and_no_longer(claim: Begun) -> None:
    looking = Looking()
    waiting = math.inf if not claim.final or claim.step < 4 else 50
    assert looking.look(said(2), seconds=1000) == 10
    assert looking.look(said(10), claim, seconds=999) == waiting
    assert looking.look(said(10), claim, seconds=2) is None


def test_a_batch_that_is_still_filled_and_one_whose_stages_have_nobody_waits_as_long_as_it_takes() -> None:
    looking = Looking()
    assert looking.look(said(9, final=False), seconds=5000) == math.inf
    assert looking.look(said(10, final=False), seconds=5000, ready=False) == math.inf
    assert looking.look(said(10), seconds=100) == 10


def test_whoever_is_waited_for_in_vain_in_each_step_costs_less_and_less() -> None:
    looking, waited = Looking(), []
    for step in range(8):
        began = looking.now
        while looking.look(said(10, step=step), said(0, step=step, final=False), step=step) is not None:
            pass
        waited.append(looking.now - began)
    assert waited[0] == pytest.approx(300, abs=2)
    assert waited[-1] <= 12
    assert sum(waited) < 650
