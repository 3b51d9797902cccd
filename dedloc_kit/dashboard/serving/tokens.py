"""How many tokens a swarm serves, from what its servers count."""

from collections import deque
from collections.abc import Iterable

from dedloc_kit.events import ServerSeen

BUCKET_SECONDS = 30
KEPT = 120
"""Buckets: an hour."""


class Tokens:
    """Tokens times layers since it began, and of the last hour.

    What a server says when it is first seen does not count, nor more than it can have computed by the speeds that it
    tells: nobody's claim is worth more than that.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._seen: dict[str, tuple[int, float]] = {}
        """By peer: what it had served, and when that was new."""
        self._bucket = -1
        self._gained = 0.0
        self._past: deque[tuple[int, float]] = deque(maxlen=KEPT)

    def add(self, servers: Iterable[ServerSeen], now: float) -> None:
        """Learn from what all servers say at this time, in seconds since 1970."""
        self._turn(now)
        seen = {}
        for server in servers:
            served, since = self._seen.get(server.peer, (server.served, now))
            if served != server.served:
                fastest = max(server.decoding, server.prompts, server.passes) * (server.end - server.begin)
                gained = min(max(0, server.served - served), fastest * max(0.0, now - since))
                self.total += gained
                self._gained += gained
                since = now
            seen[server.peer] = server.served, since
        self._seen = seen

    def history(self, now: float) -> list[tuple[float, float]]:
        """When each half minute of the last hour ended, and tokens times layers a second in it; oldest first."""
        self._turn(now)
        return [((bucket + 1) * float(BUCKET_SECONDS), gained / BUCKET_SECONDS) for bucket, gained in self._past]

    def _turn(self, now: float) -> None:
        bucket = int(now // BUCKET_SECONDS)
        if self._bucket < 0:
            self._bucket = bucket
        for each in range(max(self._bucket, bucket - KEPT), bucket):
            self._past.append((each, self._gained if each == self._bucket else 0.0))
        if bucket > self._bucket:
            self._bucket, self._gained = bucket, 0.0
