"""The loss that a language model reaches by its size and its data: published scaling laws."""

import math

MIN_PARAMETERS = 10_000_000
"""The laws were fitted to models of 44 million parameters and more; a bit below they are continued."""
SPREAD = 0.15
"""Assumed error in each direction: text, language and tokenizer differ from those the laws were fitted to (English
text, a vocabulary of 32,000)."""
UNIQUE_DECAY = 15.4
"""R* of Muennighoff et al. 2023 (arXiv 2305.16264, equation 5): how soon repeated data stops helping."""
# E, A, alpha, B, beta of L(N, D) = E + A / N^alpha + B / D^beta
_LAWS = (
    (1.69, 406.4, 0.34, 410.7, 0.28),  # Hoffmann et al. 2022 (arXiv 2203.15556), approach 3
    (1.8172, 482.01, 0.3478, 2085.43, 0.3658),  # Besiroglu et al. 2024 (arXiv 2404.10102), the same data fitted anew
)


def expected_loss(parameters: int, tokens: float, unique_tokens: float | None = None) -> tuple[float, float] | None:
    """The lowest and the highest loss in nats a token to expect after a training run.

    :param tokens: that the model is trained on, repetitions included
    :param unique_tokens: of these, how many differ; none: all

    None for models that are too small for the laws.
    """
    if parameters < MIN_PARAMETERS or tokens <= 0:
        return None
    worth = effective_tokens(tokens, unique_tokens or tokens)
    losses = [e + a / parameters**alpha + b / worth**beta for e, a, alpha, b, beta in _LAWS]
    return min(losses) * (1 - SPREAD), max(losses) * (1 + SPREAD)


def effective_tokens(tokens: float, unique_tokens: float) -> float:
    """What repeated tokens are worth in new ones (Muennighoff et al. 2023, equation 5)."""
    unique = min(unique_tokens, tokens)
    repeats = tokens / unique - 1
    return unique * (1 + UNIQUE_DECAY * (1 - math.exp(-repeats / UNIQUE_DECAY)))
