"""How large a model some text carries, how often it is read, and how several languages share a run."""

from collections.abc import Sequence
from dataclasses import dataclass

TOKENS_A_WORD = (1.3, 1.8)
"""What a vocabulary made for a language needs, from and to; in between is reckoned with."""
TOKENS_A_PARAMETER = 20
"""From there on a larger model is worth more than more text (Chinchilla, Hoffmann et al. 2022)."""
MOST_PASSES = 4
"""Text that is read so often is worth nearly as much as so much new text (Muennighoff et al. 2023)."""
MEAN_PASSES = 2
"""Of several languages, so that those with less text can be read more often than those with more."""
EXPONENT = 0.3
"""A language's share of a run goes with that power of its text (XLM-R, Conneau et al. 2020; mT5, Xue et al. 2021)."""
FEWEST_STEPS = 100
"""Fewer steps than that teach little, however large they are."""
_SMALLEST_BATCH = 64


@dataclass(frozen=True)
class Schedule:
    """The numbers of run.toml that say how long a run is."""

    global_batch: int
    total_steps: int
    warmup_steps: int
    sequence_length: int

    @property
    def tokens(self) -> int:
        """That are read until the end."""
        return self.global_batch * self.total_steps * self.sequence_length


def tokens_in(words: float) -> float:
    return words * sum(TOKENS_A_WORD) / 2


def parameters(tokens: float, passes: int = 1) -> float:
    """The size of the largest model that gets the best out of so much text, read so often."""
    return tokens * passes / TOKENS_A_PARAMETER


def within(schedule: Schedule, tokens: float, languages: int = 1) -> Schedule:
    """A schedule that reads so much text no more often than is worth it; one that is shorter stays as it is.

    With little text the batch becomes smaller too, so that there are steps enough.
    """
    most = tokens * (MOST_PASSES if languages == 1 else MEAN_PASSES)
    if schedule.tokens <= most:
        return schedule
    batch = schedule.global_batch
    while batch % 2 == 0 and batch > _SMALLEST_BATCH and batch * schedule.sequence_length * FEWEST_STEPS > most:
        batch //= 2
    steps = max(1, int(most / (batch * schedule.sequence_length)))
    return Schedule(batch, steps, min(schedule.warmup_steps, steps // 10), schedule.sequence_length)


def shares(texts: Sequence[float], planned: float) -> list[float]:
    """The share of each language in a run that reads `planned` tokens, by the tokens that there are of each.

    Each goes with a power of its text (`EXPONENT`), but none is read more than `MOST_PASSES` times, as long as the
    others have enough; what it cannot fill goes to them.
    """
    most = [MOST_PASSES * text / planned for text in texts]
    if sum(most) <= 1:
        return [text / sum(texts) for text in texts]
    full: set[int] = set()
    while True:
        left = 1 - sum(most[place] for place in full)
        powers = {place: text**EXPONENT for place, text in enumerate(texts) if place not in full}
        wanted = {place: left * power / sum(powers.values()) for place, power in powers.items()}
        over = {place for place, share in wanted.items() if share > most[place]}
        if not over:
            return [wanted.get(place, most[place]) for place in range(len(texts))]
        full |= over
