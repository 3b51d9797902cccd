"""Text that breaks no rule, made of words that nobody knows."""

import numpy as np

_SYLLABLES = ["ba", "de", "lo", "mi", "nu", "ra", "si", "to", "ve", "ka", "pen", "gar", "hul", "jo", "wim"]
WORDS = [a + b + c for a in _SYLLABLES for b in _SYLLABLES for c in ("", "n", "s", "ta")]


def prose(generator: np.random.Generator, words: int = 80) -> list[str]:
    """So many words, in sentences of eight, some to a line."""
    chosen = [str(word) for word in generator.choice(WORDS, size=words)]
    for place in range(7, words, 8):
        chosen[place] += ".\n" if place % 3 == 0 else "."
    chosen[-1] = chosen[-1].rstrip(".\n") + "."
    return chosen


def changed(words: list[str], number: int, generator: np.random.Generator) -> list[str]:
    """The same words but for so many, far from each other."""
    result = list(words)
    for place in np.linspace(5, len(words) - 6, number).astype(int):
        result[place] = str(generator.choice(WORDS)) + "x"
    return result
