"""Which microbatches have counted in which stages, by what stage peers have added."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from typing import NamedTuple


class Added(NamedTuple):
    """A microbatch that has counted in a global step of a stage."""

    step: int
    stage: int
    driver: str
    number: int


class Counts(NamedTuple):
    """Microbatches that counted in one stage and not in another: `lost` though their driver lives, `partly` of those
    that died. `twice`: that counted more than once in a stage."""

    lost: int
    twice: int
    partly: int


def count(added: Iterable[Added], stages: int, living: Set[str]) -> Counts:
    """:param living: drivers"""
    times = Counter(added)
    where: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    for each in times:
        where[each.step, each.driver, each.number].add(each.stage)
    missed = [driver for (_, driver, _), found in where.items() if len(found) < stages]
    lost = sum(driver in living for driver in missed)
    return Counts(lost, sum(times.values()) - len(times), len(missed) - lost)
