"""How long gathering takes in this swarm, and what follows for the next time."""

from collections import deque

KEPT = 8
"""Groups that the next one is judged by."""
FIRST_LEAD, MIN_LEAD, MAX_LEAD = 3.0, 2.0, 30.0
FIRST_WINDOW, MIN_WINDOW, MAX_WINDOW = 20.0, 8.0, 60.0
"""Seconds. A group stands as soon as all that it expects are there, so this is only what a peer may be late."""


class GatheringTimes:
    """Remembers what recent groups took. All times in seconds."""

    def __init__(self) -> None:
        self._slack = 0.0
        self._took: deque[float] = deque(maxlen=KEPT)
        self._late: deque[float] = deque(maxlen=KEPT)
        self._failures = 0

    def may_need(self, slack: float) -> None:
        """A peer may be unable to begin for so long: in exact training it finishes a microbatch first."""
        self._slack = slack

    def stood(self, seconds: float, late: float) -> None:
        """A group stands with all that were expected.

        :param seconds: since this peer began to look for it
        :param late: since the batch was full
        """
        self._took.append(seconds)
        self._late.append(late)

    def ended(self, commit: bool) -> None:
        """A round has ended, or a group was given up."""
        self._failures = 0 if commit else self._failures + 1

    @property
    def lead(self) -> float:
        """How long before the batch is full a group gathers, so that nobody waits for it.

        It follows from how late groups were, not from what gathering took: a peer that begins early waits for those
        that do not, and would begin earlier and earlier.
        """
        return min(MAX_LEAD, max(MIN_LEAD, 1.5 * max(self._late))) if self._late else FIRST_LEAD

    @property
    def window(self) -> float:
        """How long a leader waits for peers that are expected and do not come."""
        usual = min(MAX_WINDOW, max(MIN_WINDOW, 3.0 * max(self._took))) if self._took else FIRST_WINDOW
        return usual + 2.0 * self._slack

    @property
    def pause(self) -> float:
        """How long to wait after a round that failed: the others need a moment to say that they are still there."""
        return min(10.0, 0.25 * 2.0 ** min(self._failures, 6)) if self._failures else 0.0
