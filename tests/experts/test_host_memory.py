"""How much memory the experts of a host take."""

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.calls import ExpertName, Microbatch
from dedloc_kit.experts.expert import Pinned
from dedloc_kit.experts.keeping import Keeping, News, Stepped
from dedloc_kit.learning.train.flat import placed_together
from dedloc_kit.machine.memory_model import HOST_BYTES_PER_PARAMETER
from dedloc_kit.swarm.experts.copies import Coder
from dedloc_kit.swarm.network.host import _give_back_freed
from tests.peak import Peak
from tests.tiny_mixed import mixed_run

EXPERTS, SAMPLES, TOKENS = 12, 4, 8
OF_ONE = 36
"""Bytes for each parameter of an expert that comes, and of one that takes a step."""


def run_of(width: int, hidden: int) -> RunConfig:
    experts = {"layers": [0], "grid": [3, EXPERTS // 3], "width": width, "hidden": hidden}
    return mixed_run(
        experts=experts, optimizer={"name": "lamb", "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 100}
    )


def all_that_a_host_does(run: RunConfig) -> None:
    """It gets experts, keeps them, is asked, takes steps and tells followers, who fall behind; in the middle of that a
    checkpoint is made that takes long, and one expert goes and comes back."""
    assert run.experts is not None
    keeping, inputs = Keeping.of_host(run, lambda step: 0.01), torch.ones(TOKENS, run.experts.width)
    bank, news = keeping.bank, list[News]()
    coder = Coder(bank.like(), run.experts.width, "8bit")
    keeping.tell_in(coder.code)

    def come(name: ExpertName, step: int) -> None:
        tensors = dict(zip(first, placed_together(first.values(), torch.zeros), strict=True))
        bank.check(name, tensors)
        keeping.hold(name, (tensors, step))
        keeping.keep(name)
        assert keeping.followed_by(name, news.append) is not None

    def told(step: int) -> None:
        for name in keeping.names:
            bank.learn(bank.keep(name, inputs, Microbatch(step, SAMPLES)), bank.output(name, inputs))

    bank.hold(keeping.names[:1])
    first, _ = bank.state(keeping.names[0])
    keeping.clear()
    for name in keeping.names:
        come(name, 0)
    told(1)
    pinned = list[Pinned]()
    for step in (1, 2, 3, 4):
        told(step + 1)  # trainers hear of a step before a host does
        keeping.stepped(step, SAMPLES)
        assert sum(isinstance(each, Stepped) for each in news) == EXPERTS
        news.clear()
        pinned = pinned or [bank.pin(name, step) for name in keeping.names]
    assert {pin.state()[1] for pin in pinned} == {1}
    keeping.drop(keeping.names[0])
    come(keeping.names[0], 4)


def test_the_experts_of_a_host_take_no_more_memory_than_it_is_asked_for() -> None:
    all_that_a_host_does(run_of(8, 8))  # libraries take some
    large = run_of(256, 512)
    _give_back_freed()
    peak = Peak()
    peak.start()
    all_that_a_host_does(large)
    assert large.experts is not None
    of_each = 3 * large.experts.width * large.experts.hidden
    assert peak.end() < (HOST_BYTES_PER_PARAMETER * EXPERTS + 2 * OF_ONE) * of_each
