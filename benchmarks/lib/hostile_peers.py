"""What hostile members of a round send in place of their gradients, name as their work, and answer when they are asked.

They know what the honest ones send in the same step, and what all had of the steps before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dedloc_kit.learning.task import Batch

DELAY = 50
EVERY = 10
CLAIMED = 64
"""Times the samples that there are: `MAX_BATCHES` is what nobody believes any more."""
HUGE = 2e37
"""Such numbers, added up, are none any more."""


@dataclass
class Sight:
    """What hostile members know at one step.

    :ivar own: of each hostile peer, the gradient that it should send, float32 [size]
    :ivar honest: what the honest ones send, float32 [peers, size]
    :ivar before: `own` of the earlier steps, the last one last, as far as they are kept
    :ivar last: the last average that all got
    :ivar chunk: begin and end of one chunk
    """

    own: list[Tensor]
    honest: Tensor
    before: list[list[Tensor]]
    last: Tensor
    chunk: tuple[int, int]
    generator: torch.Generator


Send = Callable[[Sight], list[Tensor]]


@dataclass(frozen=True)
class Attack:
    """One way to be hostile. Asked for its own work, each accounts for what it sent.

    :ivar send: what each hostile peer sends
    :ivar claims: times the samples that it has; it names those that come next in its data, which it did not compute
    :ivar every: it attacks in one step of so many
    :ivar data: what it computes with, in place of its batch, which it names all the same
    """

    send: Send = lambda sight: sight.own
    claims: int = 1
    every: int = 1
    data: Callable[[Batch], Batch] | None = None
    first_batch: Literal["", "hidden", "named"] = ""
    """It computes with its first batch again and again: and names what it should have computed with, or says so."""
    twice: bool = False
    """For what it claims it names the same microbatch again and again."""
    answers: Literal["own", "covers", "accuses", "nothing"] = "own"
    """Of others it computes what it is asked for; or says of other hostile ones what they sent; or says of honest ones
    the opposite of what is true; or shows nothing and answers nobody."""
    excuse: Literal["", "before", "after"] = ""
    """What compression had lost before or after is said to be what makes a gradient of what it sent."""


def _flipped(sight: Sight, times: float = 1.0) -> list[Tensor]:
    return [-times * own for own in sight.own]


def _random(sight: Sight) -> list[Tensor]:
    noise = [torch.randn(len(own), generator=sight.generator) for own in sight.own]
    return [each * (own.norm() / each.norm()) for each, own in zip(noise, sight.own, strict=True)]


def _constant(sight: Sight) -> list[Tensor]:
    direction = torch.randn(len(sight.last), generator=torch.Generator().manual_seed(1))
    return [direction * (1000 * own.norm() / direction.norm()) for own in sight.own]


def _delayed(sight: Sight) -> list[Tensor]:
    return sight.before[-min(DELAY, len(sight.before))] if sight.before else sight.own


def _manipulated(times: float) -> Send:
    """Inner-product manipulation (Xie et al. 2020): all send this much of the honest mean, backwards."""
    return lambda sight: [-times * sight.honest.mean(0)] * len(sight.own)


def _added(times: float) -> Send:
    """The same on top of an honest gradient."""

    def send(sight: Sight) -> list[Tensor]:
        backwards = -times * sight.honest.mean(0)
        return [own + backwards for own in sight.own]

    return send


def _a_little(deviations: float) -> Send:
    """A little is enough (Baruch et al. 2019): as far from the mean as honest ones are."""
    return lambda sight: [sight.honest.mean(0) - deviations * sight.honest.std(0)] * len(sight.own)


def _one_chunk(sight: Sight) -> list[Tensor]:
    sent = [own.clone() for own in sight.own]
    for values in sent:
        values[slice(*sight.chunk)] *= -1000
    return sent


def _filled(value: float) -> Send:
    return lambda sight: [torch.full_like(own, value) for own in sight.own]


def _other_labels(batch: Batch) -> Batch:
    """Every masked token is another one, every order of sentences the other one."""
    labels, order = batch["labels"], batch["sentence_order_label"]
    masked = labels >= 0
    flipped = torch.where(masked, labels[masked].max() - labels, labels)
    return {**batch, "labels": flipped, "sentence_order_label": 1 - order}


ATTACKS = {
    "none": Attack(),
    "sign": Attack(_flipped),
    "sign x1000": Attack(lambda sight: _flipped(sight, 1000.0)),
    "random": Attack(_random),
    "constant x1000": Attack(_constant),
    "label": Attack(data=_other_labels),
    "delayed": Attack(_delayed),
    "IPM x1.1": Attack(_manipulated(1.1)),
    "IPM added": Attack(_added(2.0)),
    "ALIE 0.76": Attack(_a_little(0.76)),
    "ALIE 1.5": Attack(_a_little(1.5)),
    "claims": Attack(_flipped, claims=CLAIMED),
    "not a number": Attack(_filled(float("nan"))),
    "infinite": Attack(_filled(float("inf"))),
    "huge": Attack(_filled(HUGE)),
    "copies": Attack(lambda sight: [sight.last] * len(sight.own)),
    "half": Attack(claims=2),
    "own data": Attack(first_batch="hidden"),
    "same data": Attack(first_batch="named"),
    "one chunk": Attack(_one_chunk),
    "every tenth": Attack(_flipped, every=EVERY),
    "twice": Attack(claims=2, twice=True),
    "lost before": Attack(_flipped, excuse="before"),
    "lost after": Attack(_flipped, excuse="after"),
    "covers": Attack(_flipped, answers="covers"),
    "accuses": Attack(answers="accuses"),
    "silent": Attack(_flipped, answers="nothing"),
}
"""By what hostile peers do, from some step on."""
