"""Whether this peer's key is at work a second time: a copy of `identity.key` on another machine, or a copied folder.

Both say of themselves what they do under one name, so each hides the other's record with its own, and what one gives
may be taken for the other's. A session that began later than this one is a twin as soon as it is seen. One that began
earlier may be what a killed process left, until it goes on speaking.
"""

from typing import Any, Generic, Protocol, Self, TypeVar

from hivemind.utils import get_dht_time

MAX_LEFT = 2
"""So many records at most are seen of a session that is over: one that a first node had, and a newer one."""


class Said(Protocol):
    """A record of some session."""

    @property
    def session(self) -> str: ...

    @property
    def since(self) -> float:
        """When it began; whoever began later gives way."""
        ...

    @property
    def time(self) -> float: ...

    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


S = TypeVar("S", bound=Said)


class Twin(Generic[S]):
    """What is known of other sessions of this peer's key.

    :param session: this one's name
    :param since: when it began, by the clock of the directory
    """

    def __init__(self, session: str, since: float) -> None:
        self.session, self.since = session, since
        self.last: S | None = None
        """What another session said last, whether it is alive or over."""
        self._spoke = 0

    def see(self, said: S | None) -> None:
        """This stands in the directory under this peer's key."""
        if said is None or said.session in ("", self.session):
            return
        if self.last is None or said.session != self.last.session:
            self._spoke, self.last = 0, None
        if self.last is None or said.time > self.last.time:
            self._spoke, self.last = self._spoke + 1, said

    def there(self, seconds: float) -> S | None:
        """The last record of another session, if it is not older than that."""
        return self.last if self.last is not None and self.last.time + seconds > get_dht_time() else None

    def forget(self) -> None:
        """The other session is over."""
        self.last, self._spoke = None, 0

    @property
    def certain(self) -> bool:
        """Is another session alive, or was it after this one had begun?"""
        return self.last is not None and (not self._is_second(self.last) or self._spoke > MAX_LEFT)

    @property
    def second(self) -> bool:
        """Is it this session that has to give way? Both come to the same answer."""
        return self.certain and self.last is not None and self._is_second(self.last)

    def echo(self) -> S | None:
        """What this session may say to let the other one know of it: its own words, so that nobody else is misled."""
        now = float(get_dht_time())
        mine = {"session": self.session, "since": self.since, "time": now}
        return None if self.last is None else self.last.model_copy(update=mine)

    def _is_second(self, other: S) -> bool:
        return (self.since, self.session) > (other.since, other.session)
