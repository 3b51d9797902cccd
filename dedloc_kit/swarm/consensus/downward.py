"""What deciders have told all, at one member, and to whom of those below it that was handed down."""

from collections.abc import Iterable, Sequence

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.letters import MAX_LETTERS, BriefProposal, Certificate, Letter
from dedloc_kit.swarm.consensus.messages import Decided, Group, Prepare, Proposal

_OF_ANYBODY = frozenset(kind.wire for kind in (Group, Decided, Certificate))
"""They matter after their author has failed, too."""


class Downward:
    """Of each kind the last message of each author is kept for those who ask."""

    def __init__(self) -> None:
        self._told: dict[tuple[PeerId, str], list[Letter]] = {}
        self._given: dict[PeerId, set[str]] = {}

    def start(self) -> None:
        """With another group."""
        self._told = {key: told for key, told in self._told.items() if key[1] == Group.wire}

    def keep(self, letter: Letter) -> None:
        """An epoch that is opened takes the place of the last proposal."""
        if letter.kind == Prepare.wire:
            for kind in (Proposal, BriefProposal):
                self._told.pop((letter.author, kind.wire), None)
        told = self._told.setdefault((letter.author, letter.kind), [])
        if told and told[0].whole != letter.whole:
            told.clear()
        told.append(letter)

    def letters(self, root: PeerId) -> list[Letter]:
        """What those who follow this decider are to have."""
        some = (told for (author, kind), told in self._told.items() if author == root or kind in _OF_ANYBODY)
        return [each for told in some for each in told]

    def digests(self, root: PeerId) -> tuple[str, ...]:
        return tuple(each.digest for each in self.letters(root)[:MAX_LETTERS])

    def count(self, root: PeerId) -> int:
        """How many of them are the decider's own."""
        return min(MAX_LETTERS, sum(len(told) for (author, _), told in self._told.items() if author == root))

    # A stream loses nothing: what has gone to a member goes to it again only if its stream broke

    def gave(self, members: Iterable[PeerId], letter: Letter) -> None:
        for member in members:
            self._given.setdefault(member, set()).add(letter.digest)

    def give(self, member: PeerId, root: PeerId, have: Iterable[str] = ()) -> Sequence[Letter]:
        """What has not gone to a member yet. :param have: what it has from others"""
        told, given = self.letters(root), self._given.setdefault(member, set())
        given |= {each.digest for each in told}.intersection(have)
        missing = [each for each in told if each.digest not in given]
        given.update(each.digest for each in missing)
        return missing

    def forget(self, member: PeerId) -> None:
        """Its stream broke, or is another one."""
        self._given.pop(member, None)
