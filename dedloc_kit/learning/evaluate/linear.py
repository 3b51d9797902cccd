"""A linear classifier on frozen features, with one recipe for all kinds of them."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.learning.evaluate.settings import ProbeSettings

_MOMENTUM = 0.9


def linear_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, settings: ProbeSettings, seed: int
) -> float:
    """The share of test samples whose class is told by a linear classifier that has learned from the training samples.

    Softmax regression from zero weights by SGD with momentum and a rate that falls along half a cosine, as in SwAV's
    linear evaluation (Caron et al. 2020), without augmentation and without weight decay. The features are first
    standardised by the training samples and divided by the root of their number, so that one rate suits any.

    :param train: float [samples, width]
    :param train_labels: [samples], from 0 on
    :param seed: decides the order of the samples
    """
    mean, scale = train.mean(0), train.std(0).clamp_min(1e-6) * math.sqrt(train.shape[1])
    train, test = (train - mean) / scale, (test - mean) / scale
    classifier = nn.Linear(train.shape[1], int(torch.cat([train_labels, test_labels]).max()) + 1).to(train.device)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.SGD(classifier.parameters(), settings.learning_rate, momentum=_MOMENTUM)
    total = settings.epochs * math.ceil(len(train) / settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    order = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        for some in torch.randperm(len(train), generator=order).to(train.device).split(settings.batch):
            functional.cross_entropy(classifier(train[some]), train_labels[some]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    with torch.no_grad():
        return float((classifier(test).argmax(1) == test_labels).float().mean())
