"""Optimizers that start without torch's compiler, and whose state others can take over before the first step."""

from inspect import unwrap
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Eager:
    """A base before an optimizer of torch: its methods without the decorator that keeps the compiler off them.

    Nobody compiles them here, and the decorator's first call imports the compiler, which takes about as long as all
    the rest of torch.
    """

    kept: tuple[str, ...]
    """The names of the state of each parameter."""
    param_groups: list[dict[str, Any]]
    state: Any

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    def state_tensors(self) -> list[Tensor]:
        """The live state, `kept` of each parameter in the order of the groups; without what is never needed."""
        states = (self.state[param] for group in self.param_groups for param in group["params"])
        return [state[name] for state in states for name in self.kept if name in state]
