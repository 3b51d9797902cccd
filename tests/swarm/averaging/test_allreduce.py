"""One all-reduce in one process: the mean by samples, the same bits for all, or the same refusal for all."""

import torch

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.averaging.handshake import GroupRefused
from tests.swarm.averaging.in_process import Party


def test_all_end_with_the_mean_by_samples_and_the_same_bits_with_and_without_compression() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(300_001) for _ in range(4)]
    samples = [1, 5, 0, 10]
    mean = torch.tensor(samples, dtype=torch.float32) @ torch.stack(gradients) / 16.0
    for compression, error in (("none", 1e-5), ("8bit", 0.02), ("4bit", 0.2)):
        party = Party(gradients, samples, global_batch=16, compression=compression)
        assert in_own_loop(party.meet()) == [None] * 4
        assert all(torch.equal(average, party.averages[0]) for average in party.averages)
        assert float((party.averages[0] - mean).norm() / mean.norm()) < error, compression
        assert all(member.messages == party.members[0].messages for member in party.members)


def test_a_group_with_too_few_samples_is_refused_alike_by_all() -> None:
    party = Party([torch.ones(1000)] * 3, [4, 4, 4], global_batch=13)
    outcomes = in_own_loop(party.meet())
    assert [str(outcome) for outcome in outcomes] == ["12 of 13 samples"] * 3
    assert all(isinstance(outcome, GroupRefused) for outcome in outcomes)
    assert not any(member.culprits or member.named for member in party.members)
