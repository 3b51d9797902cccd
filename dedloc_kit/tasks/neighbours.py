"""What features know about classes that nobody told them: a vote among the nearest neighbours."""

import torch
from torch import Tensor
from torch.nn import functional

_TEMPERATURE = 0.07
_AT_ONCE = 1024


def knn_accuracy(features: Tensor, labels: Tensor, neighbours: int) -> float:
    """The share of samples whose nearest other samples vote for their class, each vote weighted by its closeness.

    As Wu et al. 2018 (arXiv 1805.01978, section 3.4): votes count exp(cosine / 0.07). The cosines are those of the
    differences to the mean: what all samples have in common, and pooled rectified features have much of it, tells no
    two of them apart. Every sample is asked in turn, all others answer.

    :param features: [samples, width], of any length
    :param labels: [samples], from 0 on
    """
    features = functional.normalize(features.float() - features.float().mean(0))
    classes = int(labels.max()) + 1
    right = 0
    for begin in range(0, len(features), _AT_ONCE):
        cosines = features[begin : begin + _AT_ONCE] @ features.T
        asked = torch.arange(len(cosines), device=cosines.device)
        cosines[asked, begin + asked] = -torch.inf  # a sample does not vote on itself
        nearest, who = cosines.topk(min(neighbours, len(features) - 1), dim=1)
        votes = torch.zeros(len(cosines), classes, device=cosines.device)
        votes.scatter_add_(1, labels[who], (nearest / _TEMPERATURE).exp())
        right += int((votes.argmax(1) == labels[begin : begin + _AT_ONCE]).sum())
    return right / len(features)
