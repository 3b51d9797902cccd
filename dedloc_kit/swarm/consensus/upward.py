"""Letters on their way up to one decider, at one member."""

from collections.abc import Mapping

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.letters import Letter


class Upward:
    """Keeps what was handed up until the decider says that it has come: its way may turn out to be gone.

    :ivar received: how many letters of each author have come, as the decider says
    """

    def __init__(self) -> None:
        self.received: dict[PeerId, int] = {}
        self._waiting: list[Letter] = []
        self._carried: dict[PeerId, list[tuple[float, Letter]]] = {}

    def add(self, letter: Letter, now: float) -> None:
        self._waiting.append(letter)
        self._carried.setdefault(letter.author, []).append((now, letter))

    @property
    def waits(self) -> bool:
        """Whether anything has come together for a packet."""
        return bool(self._waiting)

    def take(self) -> tuple[Letter, ...]:
        """What has come together for a packet."""
        found, self._waiting = tuple(self._waiting), []
        return found

    def again(self, me: PeerId) -> None:
        """Hand up once more what is not known to have come; of this member's own everything."""
        self._waiting = []
        for author, letters in self._carried.items():
            came = self.received.get(author, 0) if author != me else 0
            self._waiting += [letter for _, letter in letters[came:]]

    def have_come(self, author: PeerId, written_by: float) -> bool:
        """Whether the decider has all letters of an author that were handed up by then."""
        due = sum(at <= written_by for at, _ in self._carried.get(author, ()))
        return self.received.get(author, 0) >= due

    def told(self, received: Mapping[PeerId, int]) -> None:
        """The decider says how many letters of each author have come."""
        self.received = dict(received)
