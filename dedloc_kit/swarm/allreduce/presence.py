"""Which members still take part in a round, and why the others do not."""

from collections.abc import Collection, Iterable, Sequence

from dedloc_kit.records.steps import Absence


class Presence:
    """As one member sees it.

    :ivar lost: members from which no more parts come
    :ivar failed: members from which nothing more comes at all
    :ivar culprits: peers that fell silent, broke off or sent nonsense, as this peer saw it
    :ivar named: peers that did so as others say
    :ivar why: what happened last
    """

    def __init__(self, members: Sequence[str]) -> None:
        self._members = members
        self.lost: set[int] = set()
        self.failed: set[int] = set()
        self.culprits: set[str] = set()
        self.named: set[str] = set()
        self.why = ""
        self._absences: dict[int, Absence] = {}

    def lose(self, member: int, why: str, absence: Absence, *, blame: bool) -> bool:
        """No more parts come from this member; returns whether that is new."""
        new = member not in self.lost
        if new:
            self.lost.add(member)
            self._note(member, why, absence, blame=blame)
        return new

    def fail(self, member: int, why: str, absence: Absence, *, blame: bool) -> bool:
        """Nothing more comes from this member at all; returns whether that is new."""
        new = member not in self.failed
        if new:
            self.failed.add(member)
            self.lost.add(member)
            self._note(member, why, absence, blame=blame)
        return new

    def blame(self, member: int, reason: str) -> None:
        """It did something that no honest member does."""
        self.why = f"{self._members[member]}: {reason}"
        self.culprits.add(self._members[member])

    def _note(self, member: int, why: str, absence: Absence, *, blame: bool) -> None:
        self.why = f"{self._members[member]} {why}"
        self._absences.setdefault(member, absence)
        if blame:
            self.culprits.add(self._members[member])

    def name(self, peers: Iterable[str]) -> None:
        """Others blame these."""
        self.named.update(peers)

    def absent(self, counted: Collection[str]) -> dict[str, Absence]:
        """Members that are not among these, and why."""
        members = enumerate(self._members)
        return {peer: self._absences.get(m, "was not counted") for m, peer in members if peer not in counted}

    @property
    def suspects(self) -> set[str]:
        """Whom this peer would not gather with again at once."""
        return self.culprits | self.named
