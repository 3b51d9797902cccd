"""How long things take in this swarm, and what follows for the next round: nobody has to guess a time limit."""

import math
from collections import deque

REMEMBERED = 8
"""Rounds that the next one is judged by."""
FIRST_PATIENCE, MIN_PATIENCE, MAX_PATIENCE = 10.0, 3.0, 120.0
"""Seconds; a machine under load may pause for a second or two without being gone."""
FIRST_LIMIT, MIN_LIMIT = 900.0, 120.0
"""Seconds for a whole round, of which the data may take a sixth (`consensus.liveness`)."""
BANDWIDTH_STEP = 2.0**0.5
IDLING_SECONDS, MUCH_IDLING = 60.0, 0.2
"""Seconds over which it is judged, and which part of them is much."""


class AdaptiveTimeouts:
    """Remembers what recent rounds took. All times in seconds."""

    def __init__(self) -> None:
        self._averaging: deque[float] = deque(maxlen=REMEMBERED)
        self._silences: deque[float] = deque(maxlen=REMEMBERED)
        self._upload_rates: deque[float] = deque(maxlen=REMEMBERED)
        self._broken_off = 0

    def averaged(self, seconds: float, longest_silence: float, upload_rate: float | None) -> None:
        """An all-reduce is complete.

        :param upload_rate: bytes per second at which this peer's gradients came to the reducers, or a follower's
            averages to the members, if it had any
        """
        self._averaging.append(seconds)
        self._silences.append(longest_silence)
        if upload_rate is not None:
            self._upload_rates.append(upload_rate)
        self._broken_off = 0

    def failed(self) -> None:
        """A round that had begun has come to nothing."""
        self._broken_off += 1

    @property
    def upload(self) -> float | None:
        """Bytes per second at which this peer got rid of its gradients in the best of recent rounds; none before."""
        return max(self._upload_rates, default=None)

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of this peer's line as recent rounds showed it, coarsely; none if there were none.

        The share of the vector that a peer reduces follows from it (DeDLOC section 3.2). Fine differences are noise,
        and would unbalance the shares of equal peers.
        """
        if self.upload is None:
            return None
        return float(BANDWIDTH_STEP ** round(math.log(self.upload, BANDWIDTH_STEP)))

    @property
    def patience(self) -> float:
        """How long a member of an all-reduce may be silent; after each that failed twice as long."""
        usual = max(MIN_PATIENCE, 4.0 * max(self._silences)) if self._silences else FIRST_PATIENCE
        return min(MAX_PATIENCE, usual * 2.0**self._broken_off)

    @property
    def limit(self) -> float:
        """How long an all-reduce may take in all: only for members that send ever so slowly."""
        usual = max(MIN_LIMIT, 12.0 * max(self._averaging)) if self._averaging else FIRST_LIMIT
        return usual * 2.0 ** min(self._broken_off, 4)


class Idling:
    """Is it rounds that limit a run? Says so once."""

    def __init__(self) -> None:
        self._began, self._waited, self._said = math.inf, 0.0, False

    def limited(self, now: float, *, since: float) -> bool:
        """The device has waited `since` then: whether it does so for much of the time, for the first time.

        All times in seconds, by one clock.
        """
        self._began = min(self._began, since)
        self._waited += now - since
        seconds = now - self._began
        if self._said or seconds < IDLING_SECONDS:
            return False
        self._said = self._waited > MUCH_IDLING * seconds
        self._began, self._waited = now, 0.0
        return self._said
