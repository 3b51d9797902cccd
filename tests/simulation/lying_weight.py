"""`python -m tests.simulation.lying_weight`: how much weight may lie before a step can have two averages.

Rounds without a network. A voter that forgets its vote votes in two groups: that is what a lie can do. Several
identities of one owner lie as one voter of their common weight.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random

from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.records import Voter

COORDINATOR, LIAR = Voter("p0", 1), Voter("liar", 1)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5)
EXAMPLES = 300


@dataclass(frozen=True)
class Swarm:
    """Honest voters by weight, and what lies. :ivar coordinator: it takes part, and tells what is decided"""

    honest: tuple[int, ...]
    lying: int
    coordinator: bool

    @staticmethod
    def random(random: Random, share: float, coordinator: bool) -> "Swarm":
        """Of 3 to 9 honest machines whose speeds differ up to tenfold."""
        honest = tuple(random.randint(100, 1000) for _ in range(random.randint(3, 9)))
        return Swarm(honest, round(share / (1 - share) * sum(honest)), coordinator)

    @cached_property
    def electorate(self) -> Electorate:
        voters = {Voter(f"p{place}", 1): weight for place, weight in enumerate(self.honest, 1)}
        return Electorate({**voters, LIAR: self.lying}, COORDINATOR)

    def forks(self, side: Sequence[bool]) -> bool:
        """Whether both halves decide if the liar votes in both; the coordinator is with the first one."""
        electorate = self.electorate
        halves = [[Voter(f"p{place}", 1) for place, one in enumerate(side, 1) if one is half] for half in (True, False)]
        first = [*halves[0], LIAR, *([COORDINATOR] if self.coordinator else [])]
        return electorate.enough(first) and electorate.enough([*halves[1], LIAR])

    def sides(self) -> Iterator[tuple[bool, ...]]:
        """All ways in which the honest can be divided."""
        return product((True, False), repeat=len(self.honest))


def share_that_forks(share: float, coordinator: bool, chosen: bool, examples: int = EXAMPLES) -> float:
    """In how many swarms such a liar makes two averages.

    :param chosen: the liar divides the honest voters as it likes; else chance does
    """
    random = Random(f"{share} {coordinator}")
    found = 0
    for _ in range(examples):
        swarm = Swarm.random(random, share, coordinator)
        sides: Iterable[Sequence[bool]] = [[random.random() < 0.5 for _ in swarm.honest]]
        found += any(map(swarm.forks, swarm.sides() if chosen else sides))
    return found / examples


if __name__ == "__main__":
    sys.stdout.write("lying weight: by chance with the coordinator, without it; chosen with it, without it\n")
    for share in SHARES:
        cells = [share_that_forks(share, there, chosen) for chosen in (False, True) for there in (True, False)]
        sys.stdout.write(f"{share:.0%}: {', '.join(f'{cell:.0%}' for cell in cells)}\n")
