"""The learning rate of a global step."""

from dedloc_kit.run import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """The learning rate of the update that follows `step` finished updates (0 for the first update).

    Linear warm-up: the updates 0, 1, 2 ... take 1, 2, 3 ... parts of `warmup_steps + 1`, so that the first one
    already learns; update number `warmup_steps` takes `config.learning_rate`. From there it falls linearly to 0
    at `total_steps`, and stays 0.

    It depends on the global step alone: a peer that loads the state of step N gets everyone's number.
    """
    warm_up = (step + 1) / (config.warmup_steps + 1)
    decay = (config.total_steps - step) / (config.total_steps - config.warmup_steps)
    return config.learning_rate * max(0.0, min(warm_up, decay))
