"""An average that its reducers cannot send any more: members that hold it give it to those that lack it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.parts import Average, digest_of
from dedloc_kit.swarm.consensus.records import Value


class Accepted(Protocol):
    """Averages that this peer has voted for."""

    def accepted_average(self, link: str) -> Sequence[bytes] | None:
        """Of the value that was accepted last, if this peer still holds it."""


class Recovery:
    """Of one member in one round. One holder is asked at a time.

    Chunks of several sources may be wrong without it being known whose they are. If the average is another one than the
    value names, all of it is collected anew from one holder alone, which then has lied if it is wrong again.

    :param ask: sends a peer a message; returns its place in the group, None if there is no stream to it
    :param gave_wrong: told of a holder that has lied
    """

    def __init__(
        self,
        average: Average,
        votes: Accepted,
        ask: Callable[[str, bytes], int | None],
        gave_wrong: Callable[[int], None],
    ) -> None:
        self._average, self._votes, self._ask, self._gave_wrong = average, votes, ask, gave_wrong
        self._value: Value | None = None
        self._holders: list[str] = []
        self._liars: set[str] = set()
        self._source: tuple[int, str] | None = None
        self._alone = False
        self._asked_at = -inf
        self._wanted: dict[Link, wire.Wanted] = {}
        self._digests: dict[str, str] = {}

    # Obtaining one

    def want(self, value: Value, holders: Sequence[str], *, same: bool, coming: bool) -> None:
        """Obtain the average of this value, from these first.

        :param same: what has come of an average is of the same contributions; what is missing may be all that is wrong
        :param coming: the rest of it is being collected from its reducers already
        """
        if self._value is None or self._value.link != value.link:
            self._value, self._source, self._alone, self._asked_at = value, None, False, -inf
            self._liars.clear()
        self._holders = [holder for holder in dict.fromkeys(holders) if holder not in self._liars]
        if self._has(value):
            return
        held = self._votes.accepted_average(value.link)
        if held is not None and self._digest(value.link, held) == value.average:
            self._average.load(held)
        elif not coming:
            if not same or self._average.complete:
                self._average.begin(bytes.fromhex(value.average))
            self.look(0.0)

    def forget(self) -> None:
        """Another average is to be made."""
        self._value = self._source = None

    def look(self, patience: float) -> None:
        """Ask the next holder if nothing has come for so many seconds."""
        value, now = self._value, time.monotonic()
        if value is None or self._has(value) or now < max(self._asked_at, self._average.stirred) + patience:
            return
        for _ in self._holders:
            holder = self._holders.pop(0)
            self._holders.append(holder)
            if self._alone:
                self._average.drop()
            place = self._ask(holder, wire.fetch(value.link, value.average, self._average.missing))
            if place is not None:
                self._source, self._asked_at = (place, holder), now
                return

    def gives(self, member: int, name: bytes) -> bool:
        """Whether this member was asked for the average with this name."""
        source, value = self._source, self._value
        return source is not None and value is not None and (member, name.hex()) == (source[0], value.average)

    def completed(self) -> None:
        """A whole average is here: give it to those that asked for it, or collect it anew if it is the wrong one."""
        for link, wanted in list(self._wanted.items()):
            if wanted.average == self._average.digest:
                del self._wanted[link]
                self.give(link, wanted)
        if self._value is None or self._has(self._value):
            return
        if self._alone and self._source is not None:
            member, holder = self._source
            self._liars.add(holder)
            self._holders = [each for each in self._holders if each != holder]
            self._gave_wrong(member)
        self._source, self._alone = None, True
        self._average.begin(bytes.fromhex(self._value.average))
        self._average.drop()
        self._asked_at = -inf
        self.look(0.0)

    # Giving one

    def give(self, link: Link, wanted: wire.Wanted) -> None:
        """Send a member chunks of an average, as soon as this peer holds it; one request of a member at a time."""
        held: Sequence[bytes] | None = self._average.messages
        if not (self._average.complete and self._average.digest == wanted.average):
            held = self._votes.accepted_average(wanted.link)
            if held is not None and self._digest(wanted.link, held) != wanted.average:
                held = None
        if held is None:
            self._wanted[link] = wanted
            return
        name, kept = bytes.fromhex(wanted.average), tuple(held)
        numbers = [number for number in dict.fromkeys(wanted.chunks) if number < len(kept)]
        link.give(*(partial(wire.average, number, name, kept[number]) for number in numbers))

    def drop(self, link: Link) -> None:
        """The member of this stream is gone."""
        self._wanted.pop(link, None)

    def _digest(self, link: str, held: Sequence[bytes]) -> str:
        """Of an average that this peer has voted for."""
        if link not in self._digests:
            self._digests = {link: digest_of(held)}
        return self._digests[link]

    def _has(self, value: Value) -> bool:
        return self._average.complete and self._average.digest == value.average
