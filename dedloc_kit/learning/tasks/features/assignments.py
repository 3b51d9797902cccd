"""The numerical pieces of SwAV: which prototypes a picture belongs to, and the loss that swaps the answers.

Caron et al. 2020, "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (arXiv 2006.09882),
section 3.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments of samples to prototypes that use all prototypes alike (equations 3 to 5).

    The logarithm of the paper's iteration: `exp(scores / epsilon)` leaves float32's range at a small epsilon.

    :param scores: cosines [samples, prototypes]
    :returns: shares [samples, prototypes], each row with the sum 1
    """
    shares = scores.float() / epsilon
    for _ in range(iterations):
        shares = shares - shares.logsumexp(dim=0, keepdim=True)  # as much for each prototype
        shares = shares - shares.logsumexp(dim=1, keepdim=True)  # as much for each sample
    return shares.exp()


def swapped_loss(scores: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float) -> Tensor:
    """How badly each crop's scores predict the assignments of the others (equations 2 and 6): a scalar.

    :param scores: cosines [samples, prototypes] of each crop, those of the large ones first
    :param assignments: shares [samples, prototypes] of each large crop
    """
    predictions = [functional.log_softmax(each.float() / temperature, dim=1) for each in scores]
    terms = [
        -(shares * prediction).sum(1).mean()
        for number, shares in enumerate(assignments)
        for other, prediction in enumerate(predictions)
        if other != number
    ]
    return torch.stack(terms).mean()


class FeatureQueue:
    """The latest features of one peer, so that few samples at a time still spread over many prototypes (section 4.3).

    It is never shared: features of the last few microbatches are as good here as anyone's, and a newcomer has filled
    its own after `length` samples. Until then it adds nothing.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: list[Tensor] = []
        """Of each large crop [length, width], the latest features last; what is not filled yet is 0."""
        self._most = 0
        """At most so many of them are filled, which is so if all were finite."""
        self._filled: Tensor | None = None
        """How many are, on the device."""
        self._step = 0

    def before(self, step: int) -> list[Tensor]:
        """For each large crop the features [length, width] that came before; nothing until there can be so many.

        Whether there are so many says `full`. A peer that has skipped global steps has caught up with other weights:
        what it kept is thrown away.
        """
        if step - self._step > 1:
            self._kept, self._most, self._filled = [], 0, None
        self._step = step
        return self._kept if self._most >= self.length else []

    @property
    def full(self) -> Tensor:
        """Whether it holds as many features as it is long: a bool on their device, for which nobody has to wait."""
        assert self._filled is not None
        return self._filled >= self.length

    def add(self, features: list[Tensor]) -> None:
        """Keep the features [samples, width] of each large crop in the place of the oldest, if all are finite.

        One number that is not would be in all assignments, and so in all losses, for as long as the queue holds it.
        Chosen on the device, which nobody waits for.
        """
        features = [each.detach() for each in features]
        finite = torch.stack([each.isfinite().all() for each in features]).all()
        kept = self._kept or [each.new_zeros(self.length, each.shape[1]) for each in features]
        newer = [torch.cat(pair)[-self.length :] for pair in zip(kept, features, strict=True)]
        self._kept = [torch.where(finite, new, old) for new, old in zip(newer, kept, strict=True)]
        self._filled = (0 if self._filled is None else self._filled) + finite * len(features[0])
        self._most += len(features[0])
