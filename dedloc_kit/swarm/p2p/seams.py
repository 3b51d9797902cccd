"""The seams between the swarm's logic and the world: clock, network, directory, disk, randomness and signatures.

Swarm logic gets them as arguments and uses nothing else: no `time`, no threads, no `random`. `local.py` and
`adapters.py` implement them for a real peer, the tests in memory; the same contract tests hold for both. Everything
runs on one asyncio event loop. Times are in seconds, sizes in bytes, peers are named by their ids.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from dedloc_kit.records.record import SignedRecord

T = TypeVar("T")


class Clock(Protocol):
    """Time: a steady clock to wait by, and the swarm's common clock for records."""

    def now(self) -> float:
        """Return seconds of a steady clock: it never goes back, and has no common zero with another peer's."""

    def time(self) -> float:
        """Return Unix time, as records name it. It may jump, and may be seconds off another peer's."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; if they are not positive, after other tasks had a turn."""

    def deadline(self, at: float) -> AbstractAsyncContextManager[object]:
        """Cancel the block where it waits when `now()` reaches `at`, and raise TimeoutError after it.

        A deadline in the past cancels at the first wait; `math.inf` never does.
        """


class Stream(Protocol):
    """Messages to and from one peer, each whole and in order.

    An empty message says that this side is still here; `receive` skips it.
    """

    @property
    def heard(self) -> float:
        """When bytes came last, by `Clock.now`; when the stream was opened if none came."""

    async def send(self, content: bytes | memoryview, /) -> None:
        """Send one message; return when it is on its way. Raises OSError if the other side is gone or reads nothing."""

    async def receive(self, limit: int, /) -> bytes:
        """Return the next message that is not empty.

        Raises ValueError if it has more than `limit` bytes, before it takes memory for them; EOFError if the other
        side has closed the stream, OSError if the stream is broken. Afterwards only `close` is of use.
        """

    async def closed(self, seconds: float = ..., /) -> None:
        """Wait until the other side closes the stream, at most so long; drop what it still sends.

        What a server sends is lost if it closes first, so a handler ends with this after its last message.
        """

    def close(self) -> None:
        """Close the stream. A second call does nothing."""


Handler = Callable[[str, Stream], Awaitable[None]]
"""Serves one stream of a peer, given by its id. The stream is closed when the handler returns. OSError, EOFError and
ValueError end the stream and nothing else."""


class Network(Protocol):
    """Streams between the peers of a run. Whoever may not take part is neither served nor reached."""

    @property
    def peer(self) -> str:
        """This peer."""

    async def serve(self, service: str, handler: Handler, /) -> None:
        """Answer streams to a service from now on; one service has one handler."""

    def open(self, peer: str, service: str, /) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to a peer's service, and close it at the end.

        Raises OSError if the peer is not reached, may not take part or has no such service; TimeoutError is one. A
        service that is missing may show at the first `receive` only, as EOFError or OSError.
        """


class Entry(NamedTuple):
    """What a peer has put under a key."""

    value: Any
    """Plain values, signed by the peer and otherwise unchecked: parse them. None: the peer has left."""
    expires: float
    """By `Clock.time`."""


class Records(Protocol):
    """The directory: under a key each peer has one record, which only that peer can write.

    Nodes come and go: an entry may be stale, and one that exists may be missing. Bad entries of others hide no good
    one.
    """

    async def put(self, key: str, record: SignedRecord | None, expires: float, /) -> bool:
        """Put this peer's record there in place of its last one, until `expires` by `Clock.time`.

        :param record: None tells that this peer has left, where the kind of record allows it
        :return: whether a node has taken it; none takes one that does not outlast the last one

        Raises OSError if the directory does not work.
        """

    async def get(self, key: str, /, *, sufficient: float | None = None) -> Mapping[str, Entry]:
        """Return the newest entries by peer that have not expired; none under an unknown key.

        :param sufficient: one node is enough if it has an entry that expires then or later. None: several are asked

        Raises OSError if the directory does not work.
        """


class Disk(Protocol):
    """Small files of this peer that survive a crash. A name has letters, digits, `.`, `_` and `-`.

    All methods raise OSError if the disk does not work, and ValueError for another name.
    """

    async def read(self, name: str, limit: int, /) -> bytes | None:
        """Return a file's content, None if it does not exist. Raises ValueError if it has more than `limit` bytes."""

    async def write(self, name: str, content: bytes, /) -> None:
        """Replace a file; return when the content survives a power failure.

        After an OSError, a crash or a cancellation the file has the old content or the new one, whole. Writes take
        effect in the order of their calls.
        """

    async def remove(self, name: str, /) -> None:
        """Remove a file; one that does not exist is no error."""


class Random(Protocol):
    """Random numbers: `random.Random(seed)` in simulations, `random.SystemRandom()` for a real peer."""

    def random(self) -> float:
        """Return a number from [0, 1)."""

    def uniform(self, low: float, high: float, /) -> float:
        """Return a number between two."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer from 0 to `stop` - 1."""

    def randbytes(self, count: int, /) -> bytes:
        """Return so many bytes."""

    def choice(self, some: Sequence[T], /) -> T:
        """Return one of them."""

    def sample(self, some: Sequence[T], count: int, /) -> list[T]:
        """Return so many of them, each place at most once."""

    def shuffle(self, some: MutableSequence[Any], /) -> None:
        """Bring them into a random order, in place."""


class Signer(Protocol):
    """Signs as this peer."""

    @property
    def peer(self) -> str:
        """This peer."""

    def sign(self, content: bytes) -> str:
        """Return a signature: base64 of at most 1280 characters that names its author.

        The content begins with what it is (the record's `wire` name), so that it means nothing elsewhere.
        """


class Verifier(Protocol):
    """Checks the signatures of all peers."""

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        """Whether the author has signed this content. Raises nothing, whatever the text is."""
