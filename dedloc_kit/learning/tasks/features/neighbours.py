"""What features know about classes that nobody told them: whom they put next to whom."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dedloc_kit.records.evaluation import MAX_PICTURE_SIDE, Neighbour, Neighbours, Picture

_TEMPERATURE = 0.07
_AT_ONCE = 1024
_MAX_NAME = 64


def directions(features: Tensor) -> Tensor:
    """Features [samples, width] of any length as what they are compared by: their differences to the mean, of length 1.

    What all samples have in common, and pooled rectified features have much of it, tells no two of them apart.
    """
    return functional.normalize(features.float() - features.float().mean(0))


def nearest(directions: Tensor, asked: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The cosines and the numbers of the nearest other samples, nearest first: both [asked, at most `count`].

    :param asked: the numbers of the samples whose neighbours are wanted
    """
    cosines = directions[asked] @ directions.T
    cosines[torch.arange(len(asked), device=asked.device), asked] = -torch.inf  # none is its own neighbour
    found, who = cosines.topk(min(count, len(directions) - 1), dim=1)
    return found, who


def knn_accuracy(features: Tensor, labels: Tensor, neighbours: int) -> float:
    """The share of samples whose nearest other samples vote for their class, each vote weighted by its closeness.

    As Wu et al. 2018 (arXiv 1805.01978, section 3.4): votes count exp(cosine / 0.07), the cosines of `directions`.
    Every sample is asked in turn, all others answer.

    :param features: [samples, width], of any length
    :param labels: [samples], from 0 on
    """
    compared = directions(features)
    classes = int(labels.max()) + 1
    right = 0
    for asked in torch.arange(len(features), device=features.device).split(_AT_ONCE):
        cosines, who = nearest(compared, asked, neighbours)
        votes = torch.zeros(len(asked), classes, device=features.device)
        votes.scatter_add_(1, labels[who], (cosines / _TEMPERATURE).exp())
        right += int((votes.argmax(1) == labels[asked]).sum())
    return right / len(features)


def neighbour_samples(
    features: Tensor, pictures: Tensor, classes: Sequence[str], asked: Tensor, count: int
) -> tuple[tuple[Neighbours, ...], tuple[Picture, ...]]:
    """Some pictures with their nearest `count` others, for viewers, and all that these name, made small.

    :param features: [samples, width]
    :param pictures: uint8 [samples, 3, size, size]
    :param classes: the name of each sample's class; empty where none is known
    :param asked: the numbers of the pictures whose neighbours are wanted
    """
    cosines, who = nearest(directions(features), asked, count)
    small = {number: small_picture(pictures[number]) for number in {*asked.tolist(), *who.flatten().tolist()}}
    digests = {number: picture.digest for number, picture in small.items()}
    labels = {number: classes[number][:_MAX_NAME] for number in small}
    samples = []
    # A model that has diverged has no cosines.
    for number, others, near in zip(
        asked.tolist(), who.tolist(), cosines.nan_to_num().clamp(-1, 1).tolist(), strict=True
    ):
        nearest_ones = tuple(
            Neighbour(picture=digests[other], label=labels[other], similarity=similarity)
            for other, similarity in zip(others, near, strict=True)
        )
        samples.append(Neighbours(picture=digests[number], label=labels[number], nearest=nearest_ones))
    return tuple(samples), tuple(small.values())


def small_picture(picture: Tensor) -> Picture:
    """For viewers, of a picture uint8 [3, size, size]."""
    side = min(MAX_PICTURE_SIDE, picture.shape[-1])
    shrunk = functional.interpolate(picture[None].float(), size=(side, side), mode="area")[0]
    return Picture(pixels=shrunk.round().byte().permute(1, 2, 0).cpu().numpy().tobytes())
