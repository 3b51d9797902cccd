"""What the organizer has put into the run's bucket for those who lack it: the state, and averages since then.

Its hashes come with the organizer's signed word, so it needs no witness, and whoever serves it is trusted with nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dedloc_kit.bucket.contents import Index, Stored, size_of
from dedloc_kit.bucket.reading import Bucket, BucketFailed
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.swarm.allreduce.encoding.codec import read_part
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.transfer.contents import ExpectedAverage, ExpectedState, RecentAverage, StateLayout, shared_bytes
from dedloc_kit.swarm.transfer.donor import KEPT_AVERAGES
from dedloc_kit.swarm.transfer.protocol import MAX_METADATA_BYTES, Expected, Header

FIRST_PAUSE, MAX_PAUSE = 60.0, 600.0
"""Seconds in which it is not asked after it has failed: twice as long each time."""

_log = logging.getLogger(__name__)


class StoredCopies:
    """Takes what a peer lacks out of the bucket, if it gives that; else peers are asked.

    :param bucket: none if the run has none
    :param on_loading: called with the bytes of a state that have come, and all of it
    """

    def __init__(
        self, bucket: Bucket | None, tracker: Tracker, stop: threading.Event, on_loading: Callable[[int, int], None]
    ) -> None:
        self._bucket, self._tracker, self._stop, self._on_loading = bucket, tracker, stop, on_loading
        self._digest, self._index = "", Index(run_id="")
        self._pause, self._not_before = FIRST_PAUSE, 0.0

    def state(
        self, expected: ExpectedState, own: Position, wanted: Position, like: Sequence[Tensor]
    ) -> tuple[dict[str, Any], Sequence[Tensor]] | None:
        """Metadata and tensors of the newest state there, as `Transfers.download_state` gives them.

        None if it is not newer than ours, or what then is missing to the one that is wanted could not be had.
        """
        index = self._look()
        if index is None or not index.states or index.states[-1].step <= own.step:
            return None
        stored = index.states[-1]
        if wanted.step - index.reaches(stored) >= KEPT_AVERAGES:
            return None
        layout = StateLayout(like)
        flat = shared_bytes(layout.size)
        metadata = self._take(stored, f"{stored.step}/{stored.round}", expected, flat.numpy().data)
        return None if metadata is None else (decode(metadata), layout.views(flat))

    def average_after(self, round: str, max_bytes: int) -> RecentAverage | None:
        """The average of the round that followed this one.

        :param max_bytes: of its parts
        """
        index = self._look()
        stored = None if index is None else index.average_after(round)
        if stored is None:
            return None
        content = memoryview(bytearray(min(size_of(stored.content), max_bytes)))
        metadata = self._take(stored, stored.round, ExpectedAverage(round, read_part), content)
        return None if metadata is None else RecentAverage.read(metadata, content)

    def _look(self) -> Index | None:
        """The index that the organizer names; None if there is none, or the bucket has failed lately."""
        organizer = self._tracker.others().get(self._tracker.belief.organizer or "")
        named = organizer.instructions.stored if organizer is not None and organizer.instructions is not None else ""
        if self._bucket is None or not named or time.monotonic() < self._not_before:
            return None
        if named != self._digest:
            try:
                self._digest, self._index = named, self._bucket.index(named, self._stop)
            except BucketFailed as error:
                self._digest = ""
                self._failed(str(error))
                return None
        return self._index

    def _take(self, stored: Stored, version: str, expected: Expected, content: memoryview) -> bytes | None:
        """Fill this with the content; returns the metadata, or None if it did not come or is not what is expected."""
        assert self._bucket is not None
        metadata = bytearray(min(size_of(stored.metadata), MAX_METADATA_BYTES))
        try:
            if len(metadata) < size_of(stored.metadata) or len(content) != size_of(stored.content):
                raise ValueError("another size than ours")
            self._bucket.read(stored.metadata, memoryview(metadata), self._stop)
            header = Header(answer="here", version=version, total=len(content), metadata=bytes(metadata))
            expected.accept(header)
            total = len(content)
            on_progress = self._on_loading if expected.request.what == "state" else lambda _received, _total: None
            self._bucket.read(stored.content, content, self._stop, lambda received: on_progress(received, total))
            expected.check(header, content)
        except BucketFailed as error:
            self._failed(str(error))
            return None
        except ValueError as error:
            self._failed(f"gives what cannot be right ({error})")
            return None
        self._pause = FIRST_PAUSE
        return bytes(metadata)

    def _failed(self, reason: str) -> None:
        if self._stop.is_set():
            return
        self._tracker.reject(f"the run's bucket {reason:.100}")
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE)
