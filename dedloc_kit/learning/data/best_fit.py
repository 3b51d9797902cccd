"""Best-fit packing: rows of whole items, of which none is divided."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_OPEN = 32
"""Rows that are filled at a time."""


def best_fit(items: Iterable[Item], size: Callable[[Item], int], room: int) -> Iterator[list[Item]]:
    """The items in rows of at most `room`, each in the open row where it leaves the least room.

    The same items in the same order make the same rows. An item larger than `room` raises ValueError.
    """
    rows: list[tuple[int, list[Item]]] = []
    """Room that is left, and what is in."""
    for item in items:
        needed = size(item)
        if needed > room:
            raise ValueError(f"an item of {needed} does not fit into a row of {room}")
        fitting = [(left, place) for place, (left, _) in enumerate(rows) if left >= needed]
        if fitting:
            left, place = min(fitting)
            rows[place][1].append(item)
            rows[place] = left - needed, rows[place][1]
            if left == needed:
                yield rows.pop(place)[1]
            continue
        if len(rows) == _OPEN:
            fullest = min(range(len(rows)), key=lambda place: rows[place][0])
            yield rows.pop(fullest)[1]
        rows.append((room - needed, [item]))
    yield from (row for _, row in rows)
