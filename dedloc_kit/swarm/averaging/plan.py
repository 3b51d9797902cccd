"""Who reduces which values of the flat vector."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

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

    def __post_init__(self) -> None:
        pieces = self.layout.chunks(self.shares)
        object.__setattr__(self, "chunks", tuple(chunk for peer in pieces for chunk in peer))
        object.__setattr__(self, "first_owners", tuple(p for p, peer in enumerate(pieces) for _ in peer))

    @property
    def reducers(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.first_owners)))

    def ranking(self, group: str) -> tuple[int, ...]:
        """Who leads the round, best first: all members rank alike, and no two rounds need be led by the same."""
        return tuple(
            sorted(self.reducers, key=lambda r: hashlib.sha256(f"{group} {self.members[r]}".encode()).digest())
        )

    def owners(self, living: Collection[int]) -> tuple[int, ...]:
        """Who reduces each chunk if only these reducers live: the shares of the others are dealt out in turn."""
        heirs, dealt = sorted(living), 0
        owners = []
        for owner in self.first_owners:
            if owner not in living:
                owner, dealt = heirs[dealt % len(heirs)], dealt + 1
            owners.append(owner)
        return tuple(owners)
