"""Optimizers that start without torch's compiler."""

from inspect import unwrap

from torch.optim import Optimizer


class Eager:
    """A base before an optimizer of torch: its methods without the decorator that keeps the compiler off them.

    Nobody compiles them here, and the decorator's first call imports the compiler, which takes about as long as all
    the rest of torch.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)


class EagerOptimizer(Eager, Optimizer):
    """Parameters and their groups, without an update."""
