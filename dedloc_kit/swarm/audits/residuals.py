"""Does what a member says that compression had lost go on from what it said before?

Else a member could bring any vector into a round as what was left over of an earlier one: no audit of its gradient
would find that, for what is left over belongs to what it sends.
"""

from collections.abc import Mapping

from dedloc_kit.swarm.trust.pledge import Pledged

EARLIER = 8
"""Contributions that are remembered of each besides the last one: what is brought again of an older one was computed
with parameters that nobody keeps."""
MAX_AUTHORS = 2**14
"""That are remembered; of the others again nothing is known."""


class Residuals:
    """The roots of all who have brought something, from step to step.

    A member goes on from the `after` of its last contribution that counted; from its `before`, if it did not hear that
    it counted; or from nothing, with another state or in a new session. Of whom nothing is known anything is believed,
    once: it may have begun before we listened. After a step that we missed nothing is known of anybody.

    :param nothing: the root where nothing was lost yet
    """

    def __init__(self, nothing: bytes) -> None:
        self._nothing = nothing
        self._step = 0
        self._known: dict[str, tuple[Pledged, ...]] = {}

    def follow(self, step: int, counted: Mapping[str, Pledged]) -> list[str]:
        """Take note of a global step.

        :param counted: what brought samples to it, by its author
        :return: those whose residuals come from nowhere
        """
        if step != self._step + 1:
            self._known.clear()
        self._step = step
        broken = [peer for peer, pledged in counted.items() if not self._goes_on(self._known.get(peer), pledged)]
        for peer, pledged in counted.items():
            self._known[peer] = (*self._known.pop(peer, ()), pledged)[-1 - EARLIER :]
        for peer in list(self._known)[:-MAX_AUTHORS]:
            del self._known[peer]
        return broken

    def earlier(self, peer: str) -> tuple[Pledged, ...]:
        """What it brought before its last contribution."""
        return self._known.get(peer, ())[:-1]

    def _goes_on(self, known: tuple[Pledged, ...] | None, pledged: Pledged) -> bool:
        if not known or pledged.before == self._nothing:
            return True
        last = known[-1]
        return pledged.session == last.session and pledged.before in (last.after, last.before)
