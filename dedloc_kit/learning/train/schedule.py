"""The learning rate of a global step."""

import math

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.records.orders import Decay


def learning_rate(config: OptimizerConfig, step: int, decay: Decay | None = None) -> float:
    """The learning rate of the update that follows `step` finished updates (0 for the first update).

    Linear warm-up: the updates 0, 1, 2 ... have gone 1, 2, 3 ... parts of `warmup_steps + 1` of the way from
    `config.start_learning_rate`, so that the first one already learns; update number `warmup_steps` takes
    `config.learning_rate`. From there it falls, on a line or half a cosine (Loshchilov and Hutter 2017, arXiv
    1608.03983, section 3, without restarts), to `config.end_learning_rate` at `total_steps`, and stays there.

    With `warmup-stable-decay` (Hu et al. 2024, arXiv 2404.06395, section 4) it stays where it is until the organizer
    orders the decay, whose n updates have gone 1, 2, ... n parts of n + 1 of the way to `config.end_learning_rate`, so
    that the last one still learns.

    :param decay: as it stands in the state
    It depends on the global step and the decay alone: a peer that loads the state of step N gets everyone's number.
    """
    peak, start, end = config.learning_rate, config.start_learning_rate, config.end_learning_rate
    if decay is not None and step + 1 >= decay.start:
        done = min(step + 2 - decay.start, decay.steps)
        before = learning_rate(config, decay.start - 1)
        return before + (end - before) * done / (decay.steps + 1)
    if step < config.warmup_steps:
        return start + (peak - start) * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "warmup-stable-decay":
        return peak
    left = max(0.0, (config.total_steps - step) / (config.total_steps - config.warmup_steps))
    if config.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return end + (peak - end) * left
