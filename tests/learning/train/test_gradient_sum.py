"""Gradients are added up in place, in one vector at aligned addresses, and nothing of a sum is lost on its way."""

import threading

import pytest
import torch
from torch import Tensor, nn

from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.aligned import AlignedLayout
from dedloc_kit.learning.train.copies import Copies
from dedloc_kit.learning.train.flat import ALIGNED
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import GradientSum, LossSum
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.state.replica import copy_all
from tests.learning.counting_device import DEVICE, counting
from tests.learning.train.by_hand import CPU, give, model_of


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 7))


def test_parameters_and_gradients_are_parts_of_one_vector_each_at_aligned_addresses() -> None:
    model = network()
    before = [each.detach().clone() for each in model.parameters()]
    flat = FlatModel(model, CPU)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is not None
        for tensor, vector in ((parameter, flat.vector), (parameter.grad, flat.gradients.vector)):
            assert (tensor.data_ptr() - vector.data_ptr()) % ALIGNED == 0
            assert tensor.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
    assert torch.equal(flat.read(), torch.cat([each.flatten() for each in before]))


def test_what_peers_exchange_has_no_padding_and_goes_there_and_back() -> None:
    layout = AlignedLayout.of([torch.zeros(3), torch.zeros(9000), torch.zeros(2, 2)])
    assert layout.wire.size == 9007 < layout.size
    flat, vector = torch.arange(9007.0), torch.full((layout.size,), torch.nan)
    layout.from_wire(vector, flat)
    assert vector.isfinite().all()
    assert float(vector.sum()) == float(flat.sum()), "the padding is zero"
    again = torch.zeros(9007)
    layout.to_wire(vector, again)
    assert torch.equal(again, flat)


def test_a_gradient_that_was_replaced_instead_of_added_to_is_noticed() -> None:
    flat = FlatModel(network(), CPU)
    for parameter in flat.model.parameters():
        parameter.grad = None
    flat.model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"set no \.grad"):
        flat.gradients.add(Loss.of(torch.ones(()), 2), 2, 0)


def test_a_microbatch_that_is_not_finite_leaves_nothing_even_where_most_of_its_gradient_is() -> None:
    flat = model_of(*(nn.Parameter(torch.zeros(size)) for size in (3, 20)))
    assert give(flat, 1.0, samples=2)
    assert not give(flat, [torch.ones(3), torch.tensor([*[1.0] * 19, torch.inf])], samples=3)
    assert give(flat, 4.0, samples=1)
    assert flat.gradients.samples == 3
    cut = flat.gradients.cut()
    assert cut is not None
    snapshot = cut.fetch()
    assert (snapshot.samples, snapshot.loss) == (3, LossSum(3.0, 3.0))
    assert [each.tolist() for each in snapshot.gradients] == [[6.0] * 3, [6.0] * 20]


def test_of_what_is_added_while_sums_are_fetched_nothing_is_lost_or_counts_twice() -> None:
    """Whoever adds is another thread than who cuts."""
    replica = model_of(nn.Parameter(torch.zeros(3)))
    gradients, mean, total = Gradients([replica]), torch.zeros(3), 0.0

    def add() -> None:
        for number in range(400):
            give(replica, float(number), samples=1 + number % 3, loss=float("nan") if number % 7 == 3 else 1.0)

    adding = threading.Thread(target=add)
    adding.start()
    going = True
    while going:
        going = adding.is_alive()
        gradients.load_in_flight(mean)
        total += float(mean[0]) * gradients.counter.in_flight
        gradients.mark_applied()
    counted = [(number, 1 + number % 3) for number in range(400) if number % 7 != 3]
    assert gradients.counter.applied == sum(samples for _, samples in counted)
    assert gradients.counter.samples == 0
    assert total == pytest.approx(sum(number * samples for number, samples in counted), rel=1e-5)


class Lost(Copies):
    """Those of a device that has failed."""

    def to_host(self, values: Tensor, mark: object) -> Tensor:
        raise RuntimeError("CUDA error: unspecified launch failure")


def test_a_round_goes_on_without_the_sum_of_a_device_that_has_failed() -> None:
    replicas = [model_of(nn.Parameter(torch.zeros(3))) for _ in range(2)]
    replicas[0].gradients = GradientSum(list(replicas[0].model.parameters()), Lost(CPU))
    gradients, mean = Gradients(replicas), torch.zeros(3)
    for number, replica in enumerate(replicas):
        give(replica, 1.0 + number, samples=4)
    gradients.load_in_flight(mean)
    assert mean.tolist() == [2.0] * 3
    assert (gradients.counter.in_flight, gradients.counter.pending) == (4, 0)


def test_buffers_go_from_device_to_device_in_one_copy_for_each_type() -> None:
    there, here = network().to(DEVICE), network()
    for number, buffer in enumerate(there.buffers()):
        buffer.fill_(number + 2)
    with counting() as counts:
        copy_all(list(here.buffers()), list(there.buffers()))
    assert counts.waits.total() == 2, counts.waits
    assert [float(buffer.max()) for buffer in here.buffers()] == [2.0, 3.0, 4.0]
