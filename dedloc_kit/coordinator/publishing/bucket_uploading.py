"""What the coordinator puts into the run's bucket, in a thread of its own, so that training never waits for it."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from dedloc_kit.bucket.contents import MAX_AVERAGES, MAX_STATES, Index, Stored, size_of
from dedloc_kit.bucket.writing import Writer, digest_of, put_whole
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.hub import HubUnavailable
from dedloc_kit.learning.train.flat import zeros_on_disk
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.swarm.transfer.contents import RecentAverage, StateLayout, snapshot

FIRST_PAUSE, MAX_PAUSE = 5.0, 300.0
"""Seconds between two attempts while it cannot be written: twice as long each time."""
SHARE = 0.25
"""A new state follows when the averages since the last one are so large, beside it: a newcomer fetches hardly more than
the state, and what the coordinator sends for all is little beside what it sends each volunteer."""
REST = 3.0
"""No state follows for so many times as long as the last one took: where steps are faster than the line none would be
of use before the next one, and the line is the training's."""
LEAVE_SECONDS = 5.0


class Uploader:
    """Puts every average there, and now and then the state; of these the last two stay, and the averages since.

    :param kept_average: the average that followed a round, if it is still kept here
    :param folder: for the copy of the state that is sent
    """

    def __init__(
        self,
        writer: Writer,
        state: TrainingState,
        kept_average: Callable[[str], RecentAverage | None],
        folder: Path,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._writer, self._state, self._kept_average = writer, state, kept_average
        self._folder, self._emit = folder, emit
        self._index = Index(run_id=state.run.run_id)
        self._there: set[str] | None = None  # names of files; not known before the first look
        self._named: set[str] = set()  # in the index before
        self._resting_until = 0.0
        self.digest = ""
        """Of the index that is there; empty before the first."""
        self._due, self._leaving = threading.Event(), threading.Event()
        self._due.set()
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def step_done(self) -> None:
        """Returns at once."""
        self._due.set()

    def close(self) -> None:
        """What is under way is not waited for: it would be of use only to those who come now."""
        self._leaving.set()
        self._due.set()
        self._thread.join(LEAVE_SECONDS)

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._due.wait()
            if self._leaving.is_set():
                return
            self._due.clear()
            try:
                self._upload()
                pause = FIRST_PAUSE
            except (HubUnavailable, UserError, RuntimeError) as error:
                if self._leaving.is_set():
                    return
                self._emit(Warned(text=f"{error}; peers give what others lack; trying again in {pause:.0f} s"))
                self._leaving.wait(pause)
                pause = min(2 * pause, MAX_PAUSE)
                self._due.set()

    def _upload(self) -> None:
        """Bring what is there up to date; what has been written before a failure stays."""
        index, target = self._index, self._state.position
        if not target.step:
            return  # everybody can make that one
        if self._there is None:
            self._there = self._writer.names()
        while (head := _head(index)) is not None and head.step < target.step:
            average = self._kept_average(head.round)
            if average is None or average.step != head.step + 1:
                break
            index = _with_average(index, self._stored_average(average))
        # What was averaged meanwhile may lead further.
        connected = head is not None and (head.step > target.step or (head.step, head.round) == target)
        large = connected and _weight(index) >= SHARE * size_of(index.states[-1].content)
        if (large or not connected) and (began := time.monotonic()) >= self._resting_until:
            index = _with_state(index, self._stored_state())
            self._resting_until = began + (1 + REST) * (time.monotonic() - began)
        if index == self._index:
            return
        text = index.write()
        digest = digest_of(text)
        self._put({digest: text})
        self._index, self.digest = index, digest
        named = index.names | {digest}
        # Somebody may still be at what the index before this one names.
        old = self._there - named - self._named
        self._writer.delete(old)
        self._there -= old
        self._named = named

    def _stored_average(self, average: RecentAverage) -> Stored:
        content = average.content()
        return Stored(
            step=average.step,
            round=average.round,
            after=average.after,
            metadata=put_whole(memoryview(content.metadata), self._put),
            content=put_whole(content.data, self._put),
        )

    def _stored_state(self) -> Stored:
        with self._state.for_newcomer() as (metadata, tensors):
            layout = StateLayout(tensors)
            flat = zeros_on_disk(self._folder, -(-layout.size // 4)).view(torch.uint8)[: layout.size]
            content = snapshot(metadata, layout.pack(tensors, flat))
            step, round = self._state.position
        return Stored(
            step=step,
            round=round,
            metadata=put_whole(memoryview(content.metadata), self._put),
            content=put_whole(content.data, self._put),
        )

    def _put(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Write those that are not there."""
        assert self._there is not None
        if self._leaving.is_set():
            raise RuntimeError("the coordinator leaves")
        new = {name: content for name, content in files.items() if name not in self._there}
        if new:
            self._writer.put(new)
            self._there |= new.keys()


def _head(index: Index) -> Stored | None:
    """What all that is there leads to."""
    return max((*index.states, *index.averages), key=lambda stored: stored.step, default=None)


def _weight(index: Index) -> int:
    """Bytes of the averages since the newest state."""
    return sum(size_of(average.content) for average in index.averages if average.step > index.states[-1].step)


def _with_average(index: Index, average: Stored) -> Index:
    return index.model_copy(update={"averages": (*index.averages, average)[-MAX_AVERAGES:]})


def _with_state(index: Index, state: Stored) -> Index:
    states = (*index.states, state)[-MAX_STATES:]
    averages = tuple(average for average in index.averages if average.step > states[0].step)
    return Index(run_id=index.run_id, states=states, averages=averages)
