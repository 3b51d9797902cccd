"""Gradients are averaged by what they are over; no sample is lost by a failed round, and none counts twice."""

import math
import random

import pytest
import torch

from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradients.gradients import Gradients
from tests.learning.train.by_hand import give, model_of


@pytest.fixture
def replica() -> FlatModel:
    return model_of(torch.nn.Parameter(torch.zeros(3)))


def test_uneven_microbatches_count_by_what_they_are_over(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=2, weight=10, loss=4.0)
    give(replica, 5.0, samples=2, weight=30, loss=8.0)
    gradients.load_in_flight(mean)
    assert mean.tolist() == [4.0] * 3
    assert gradients.counter.in_flight == 4
    assert gradients.counter.loss == 7.0


def test_what_a_failed_round_did_not_average_goes_into_the_next(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 2.0, samples=2)
    gradients.load_in_flight(mean)
    give(replica, 6.0, samples=6)  # accumulated while the round failed
    gradients.load_in_flight(mean)
    assert mean.tolist() == pytest.approx([5.0] * 3)
    assert gradients.counter.in_flight == 8
    gradients.mark_applied()
    assert (gradients.counter.applied, gradients.counter.samples) == (8, 0)


def test_a_follower_sends_zeros_whatever_the_last_average_was(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.full((3,), 7.0)
    gradients.load_in_flight(mean)
    assert mean.tolist() == [0.0] * 3
    assert gradients.counter.loss is None


@pytest.mark.parametrize(("loss", "value"), [(math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_numbers_that_are_not_finite_are_left_out(replica: FlatModel, loss: float, value: float) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=2)
    assert not give(replica, value, samples=2, loss=loss)
    gradients.load_in_flight(mean)
    assert mean.tolist() == [1.0] * 3
    assert gradients.counter.in_flight == 2


def test_samples_in_doubt_count_once_if_the_round_succeeded_for_others(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=4)
    gradients.load_in_flight(mean)
    gradients.mark_unconfirmed("aa")
    gradients.confirm(["99", "aa"])
    assert (gradients.counter.applied, gradients.counter.samples) == (4, 0)


def test_samples_of_a_round_that_failed_for_all_are_kept(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=4)
    gradients.load_in_flight(mean)
    gradients.mark_unconfirmed("aa")
    gradients.confirm(["99", "bb"])
    assert (gradients.counter.applied, gradients.counter.samples) == (0, 4)


def test_of_a_doubtful_round_that_counted_only_what_was_in_it_is_taken_out(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=4, loss=2.0)
    gradients.load_in_flight(mean)
    gradients.mark_unconfirmed("aa")
    give(replica, 7.0, samples=2, loss=5.0)
    gradients.load_in_flight(mean)  # a second try, before the first one's success was known
    gradients.mark_unconfirmed("bb")
    gradients.confirm(["aa"])
    assert (gradients.counter.applied, gradients.counter.samples) == (4, 2)
    give(replica, 9.0, samples=2, loss=3.0)
    gradients.load_in_flight(mean)
    assert mean.tolist() == pytest.approx([8.0] * 3)
    assert (gradients.counter.in_flight, gradients.counter.loss) == (4, 4.0)


def test_only_gradients_of_parameters_that_are_too_old_are_dropped(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    give(replica, 1.0, samples=4, step=3)
    gradients.load_in_flight(mean)
    give(replica, 5.0, samples=2, step=4)
    assert gradients.drop_older_than(3) == 0
    assert gradients.drop_older_than(4) == 4
    gradients.load_in_flight(mean)
    assert mean.tolist() == [5.0] * 3
    assert gradients.drop_older_than(5) == 2


def test_adding_goes_on_while_a_snapshot_is_made(replica: FlatModel) -> None:
    gradients, mean = Gradients([replica]), torch.zeros(3)
    for value in (1.0, 2.0, 3.0):  # both buffers take their turn
        give(replica, value, samples=1)
        gradients.load_in_flight(mean)
        assert mean.tolist() == [value] * 3
        gradients.mark_applied()


class Host:
    """Two replicas whose gradients tell in a line of work how large they are, of how many samples, and their weight."""

    def __init__(self) -> None:
        self.replicas = [model_of(torch.nn.Parameter(torch.zeros(3))) for _ in range(2)]
        self.gradients = Gradients(self.replicas)
        self.mean = torch.zeros(3)
        self.given = 0
        self.step = 0
        self.rounds: list[str] = []

    def give(self, replica: int, samples: int, weight: int | None = None) -> None:
        self.given += 1
        weight = samples if weight is None else weight
        line = f"{self.given} {samples} {weight}".encode()
        assert give(self.replicas[replica], self.given, samples, step=self.step, work=line, weight=weight)

    def doubt(self) -> None:
        self.rounds.append(f"{len(self.rounds):02x}")
        self.gradients.mark_unconfirmed(self.rounds[-1])

    def outgoing(self) -> list[tuple[int, int, int]]:
        """The gradient, the samples and the weight of each line."""
        lines = map(bytes.split, self.gradients.counter.work)
        return [(int(each), int(samples), int(weight)) for each, samples, weight in lines]


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_work_follow_their_samples_whatever_becomes_of_rounds(seed: int) -> None:
    chance, host = random.Random(seed), Host()
    for turn in range(300):
        match chance.choice(["give", "give", "send", "send", "doubt", "settle", "count", "age", "lose", "forget"]):
            case "give":
                host.give(chance.randrange(2), chance.randint(1, 4), chance.randint(0, 9))
            case "send":
                host.gradients.load_in_flight(host.mean)
                lines = host.outgoing()
                total = sum(weight for *_, weight in lines)
                mean = sum(each * weight for each, _, weight in lines) / total if total else 0.0
                assert host.mean.tolist() == pytest.approx([mean] * 3, rel=1e-4), f"turn {turn}"
            case "doubt":
                host.doubt()
            case "settle" if host.rounds:
                host.gradients.confirm([chance.choice(host.rounds)])
            case "count":
                host.gradients.mark_applied()
            case "age":
                host.step += 1
                host.gradients.drop_older_than(host.step - 2)
            case "lose" if chance.random() < 0.3:
                host.gradients.leave_out(chance.randrange(2))
            case "forget" if chance.random() < 0.3:
                assert host.gradients.forget() >= 0
        assert sum(samples for _, samples, _ in host.outgoing()) == host.gradients.counter.in_flight, f"turn {turn}"


def test_of_a_doubt_that_is_settled_only_the_lines_that_were_outgoing_then_have_counted() -> None:
    host = Host()
    host.give(0, 2)
    host.give(1, 3)
    host.gradients.load_in_flight(host.mean)
    host.doubt()
    host.give(0, 4)
    host.gradients.load_in_flight(host.mean)
    assert host.outgoing() == [(1, 2, 2), (2, 3, 3), (3, 4, 4)]
    host.gradients.confirm(host.rounds)
    assert host.outgoing() == [(3, 4, 4)]
