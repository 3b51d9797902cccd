"""Who reduces which values of the flat vector."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from dedloc_kit.training.flat import FlatLayout


@dataclass(frozen=True)
class Plan:
    """The flat vector in chunks, in the order of the members."""

    members: tuple[str, ...]
    layout: FlatLayout
    shares: tuple[int, ...]
    """How many values each member reduces; 0 for clients."""
    chunks: tuple[tuple[int, int], ...] = field(init=False)
    """Begin and end of each."""
    first_owners: tuple[int, ...] = field(init=False)
    """Who reduces it if all live."""
    _owners: dict[frozenset[int], tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """It is asked for with each average."""

    def __post_init__(self) -> None:
        pieces = self.layout.chunks(self.shares)
        object.__setattr__(self, "chunks", tuple(chunk for peer in pieces for chunk in peer))
        object.__setattr__(self, "first_owners", tuple(p for p, peer in enumerate(pieces) for _ in peer))

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.first_owners)))

    def ranking(self, group: str) -> tuple[int, ...]:
        """Who leads the round, best first: all members rank alike, and no two rounds need be led by the same."""
        return tuple(
            sorted(self.reducers, key=lambda r: hashlib.sha256(f"{group} {self.members[r]}".encode()).digest())
        )

    def owners(self, living: Collection[int]) -> tuple[int, ...]:
        """Who reduces each chunk if only these reducers live.

        A chunk of one that is gone goes to the first that lives in an order of its own, so that it stays there whoever
        else dies: its values are sent anew as seldom as can be.
        """
        key = frozenset(living)
        if key not in self._owners:
            self._owners[key] = self._owners_if(key)
        return self._owners[key]

    def _owners_if(self, living: frozenset[int]) -> tuple[int, ...]:
        reducers, owners = self.reducers, []
        for number, owner in enumerate(self.first_owners):
            order = (reducers[(number + place) % len(reducers)] for place in range(len(reducers)))
            owners.append(owner if owner in living else next(reducer for reducer in order if reducer in living))
        return tuple(owners)
