"""The loss that a language model reaches by its size and its data: published scaling laws."""

MIN_PARAMETERS = 10_000_000
"""The laws were fitted to models of 44 million parameters and more; a bit below they are continued."""
SPREAD = 0.15
"""Assumed error in each direction: text, language and tokenizer differ from those the laws were fitted to (English
text, a vocabulary of 32,000)."""
# E, A, alpha, B, beta of L(N, D) = E + A / N^alpha + B / D^beta
_LAWS = (
    (1.69, 406.4, 0.34, 410.7, 0.28),  # Hoffmann et al. 2022 (arXiv 2203.15556), approach 3
    (1.8172, 482.01, 0.3478, 2085.43, 0.3658),  # Besiroglu et al. 2024 (arXiv 2404.10102), the same data fitted anew
)


def expected_loss(parameters: int, tokens: float) -> tuple[float, float] | None:
    """The lowest and the highest loss in nats a token to expect after training on so many tokens.

    Text that is read up to four times counts as new (Muennighoff et al. 2023, arXiv 2305.16264). None for models that
    are too small for the laws.
    """
    if parameters < MIN_PARAMETERS or tokens <= 0:
        return None
    losses = [e + a / parameters**alpha + b / tokens**beta for e, a, alpha, b, beta in _LAWS]
    return min(losses) * (1 - SPREAD), max(losses) * (1 + SPREAD)
