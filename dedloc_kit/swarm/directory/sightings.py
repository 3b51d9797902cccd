"""Who is there, as this peer's looks into the directory have found."""

import math
from collections.abc import Collection, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.twin import Twin

SILENT_SECONDS = 10.0
"""Who is silent for so long has missed a report."""
FRESH_SECONDS = 2.0
"""Where somebody has reported in the last so many seconds, probably everybody does."""
WIDE_LOOK = 10
"""Every so many looks several nodes are asked, whatever one of them says."""
DHT_TIMEOUT = 10.0


class Sightings:
    """Of one peer.

    :param me: its id
    :param directory: where peers tell of themselves
    :param twin: is shown what stands there under this peer's own key
    :param seconds: who has told nothing for so long is gone
    """

    def __init__(self, me: str, directory: Directory[Progress], twin: Twin[Progress], seconds: float) -> None:
        self._me, self._directory = me, directory
        self._twin, self._seconds = twin, seconds
        self.told: Mapping[str, Progress] = {}
        """What everyone else has told last, alive or not."""
        self.left: frozenset[str] = frozenset()
        """Who said that it leaves."""
        self.looked = math.nan
        """When the directory last answered (DHT time); NaN before."""
        self._looks = 0
        self._lonely = math.inf  # seconds over which looks have found nobody alive; at first nobody has ever been there

    def alive(self) -> dict[str, Progress]:
        """Those who are not gone."""
        return {peer: progress for peer, progress in self.told.items() if self._is_alive(progress)}

    def look(self) -> bool:
        """Fetch everyone's progress now; whether several nodes were asked from the beginning, as is done now and then,
        and while nobody is known: one alone would not be believed that nobody is there.
        """
        wide = not self.told or self._looks % WIDE_LOOK == 0
        told, left = self._seen(None if wide else FRESH_SECONDS)
        if not wide and self._misses_anyone(told, left):
            told, left = self._seen(None)
        self._looks += 1
        self.told, self.left = told, left
        return wide

    def lonely(self) -> bool:
        """Have looks, the last one just now, found nobody for as long as a record lives, or ever?"""
        return float(get_dht_time()) - self.looked <= self._seconds <= self._lonely

    def line_was_down(self) -> None:
        """That looks have found nobody tells nothing."""
        self._lonely = 0.0

    def note(self, anyone: bool, now: float) -> None:
        """The last look has found somebody, or nobody. Time in which nobody looked does not count, nor what was before
        it."""
        since, self.looked = now - self.looked, now
        if math.isnan(since):
            since = 0.0
        self._lonely = 0.0 if anyone or since > self._seconds else self._lonely + since

    def _seen(self, age: float | None) -> tuple[dict[str, Progress], frozenset[str]]:
        """What the directory holds: the progress of everyone else, and who of them has left.

        :param age: as for `Directory.look`
        """
        found = self._directory.look(peers=len(self.told), timeout=DHT_TIMEOUT, age=age)
        there = {peer: progress for peer, progress in found.items() if progress is not None}
        self._twin.see(there.pop(self._me, None))
        return there, frozenset(peer for peer, progress in found.items() if progress is None)

    def _misses_anyone(self, told: Mapping[str, Progress], left: Collection[str]) -> bool:
        """Is nobody there, or is one who was there missing or silent? The node that was asked may not have heard."""
        heard = float(get_dht_time()) - SILENT_SECONDS
        there = [peer for peer in self.alive() if peer not in left]
        return not told or any(peer not in told or told[peer].time < heard for peer in there)

    def _is_alive(self, progress: Progress) -> bool:
        return progress.time + self._seconds > float(get_dht_time())
