"""The organizer's orders: one small file in the coordinator's folder that says what is wanted of the run now.

The command line and the organizer's page write it, the coordinator reads it at every look. Each order that changed
something is also a line of a log, with its time.
"""

import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from dedloc_kit.errors import UserError
from dedloc_kit.machine.text_files import replace_text
from dedloc_kit.records.orders import Announcement, RateFactor
from dedloc_kit.records.record import Count, PeerId, PeerText, Reason, Record, Time
from dedloc_kit.steering.cached_file import Followed
from dedloc_kit.steering.journal import Journal
from dedloc_kit.validation import describe

MAX_KICKED = 5000
ORDERS_FILE = "orders.json"
_LOG, _LOCK = "orders.jsonl", ".orders.lock"

_log = logging.getLogger(__name__)

Order = Literal["pause", "resume", "finish", "kick", "unban", "announce", "checkpoint", "rollback", "cooldown"]


class Kicked(Record):
    """A peer that the organizer has sent away."""

    peer: PeerId
    name: PeerText
    """As it was shown when it was kicked."""
    time: Time
    why: Reason = ""
    """What was found about it, if it was not the organizer in person who sent it away."""
    last_passed: Count | None = None
    """The global step up to which its work was found to be right, if that is known: what it gave later is not to its
    credit."""


class Rewinding(Record):
    """The next global step is to take over an earlier one's state."""

    checkpoint: Count
    """The step whose state it is."""
    rate: RateFactor
    """Of the learning rate, on top of what held at that step."""
    after: Count
    """The run's newest step when it was ordered: a later one that took over any state has done it."""


class Decaying(Record):
    """The learning rate is to fall from the next global step on, and the run to end with that."""

    steps: Annotated[int, Field(ge=1, le=2**53)]
    """It falls over so many."""
    after: Count
    """The run's newest step when it was ordered."""


class Orders(Record):
    """What is wanted of the run now."""

    paused: bool = False
    """Volunteers wait."""
    finish: bool = False
    """The run ends after the global step that is under way, as after its last one."""
    kicked: Annotated[tuple[Kicked, ...], Field(max_length=MAX_KICKED, strict=False)] = ()
    announcement: Announcement | None = None
    """For all volunteers and viewers."""
    checkpoint: Time = 0.0
    """When a checkpoint was asked for last."""
    rewind: Rewinding | None = None
    """The newest, done or not."""
    decay: Decaying | None = None
    """Whether it has begun or not; the state knows when it has."""

    @property
    def kicked_peers(self) -> frozenset[str]:
        """Their peer ids."""
        return frozenset(kicked.peer for kicked in self.kicked)


class GivenOrder(Record):
    """One line of the log."""

    time: Time
    order: Order
    text: str
    """Whom or what it is about: a peer or an announcement; may be empty."""


class OrderBook:
    """The orders in one coordinator's folder. Several processes may give orders at the same time.

    Every method raises UserError if the file is damaged or cannot be written: an order must not wipe out others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = Journal(folder / _LOG, GivenOrder)

    def read(self) -> Orders:
        """The orders that hold now; without a file, none."""
        path = self._folder / ORDERS_FILE
        try:
            return Orders.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Orders()
        except (ValidationError, UnicodeDecodeError) as error:
            why = describe(error, Orders) if isinstance(error, ValidationError) else "no UTF-8"
            raise UserError(f"{path} is damaged ({why}); repair it, or remove it to lift all orders") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None

    def pause(self) -> Orders:
        """Let volunteers wait."""

        def paused(orders: Orders) -> Orders:
            if orders.finish:
                raise UserError("the run has been finished; 'dedloc run resume RUN' lets it go on")
            return orders.model_copy(update={"paused": True})

        return self._give("pause", "", paused)

    def resume(self) -> Orders:
        """Let a run go on that was paused or finished."""
        return self._give("resume", "", lambda orders: orders.model_copy(update={"paused": False, "finish": False}))

    def finish(self) -> Orders:
        """End the run after the global step that is under way; a pause ends, so that the step can be done."""
        return self._give("finish", "", lambda orders: orders.model_copy(update={"paused": False, "finish": True}))

    def kick(self, peer: str, name: str, why: str = "", last_passed: int | None = None) -> Orders:
        """Send a peer away.

        :param why: if it is not the organizer in person who does
        :param last_passed: as in `Kicked`
        """

        def kicked(orders: Orders) -> Orders:
            if peer in orders.kicked_peers:
                return orders
            if len(orders.kicked) >= MAX_KICKED:
                raise UserError(f"{MAX_KICKED} peers are kicked already; choose who may join instead")
            values = {"peer": peer, "name": name, "time": time.time(), "why": why, "last_passed": last_passed}
            entry = Kicked.parse(values)
            return orders.model_copy(update={"kicked": (*orders.kicked, entry)})

        return self._give("kick", f"{name} ({peer})" + (f": {why}" if why else ""), kicked)

    def unban(self, peer: str, name: str) -> Orders:
        """Let a peer come back that was kicked."""

        def unbanned(orders: Orders) -> Orders:
            kept = tuple(kicked for kicked in orders.kicked if kicked.peer != peer)
            return orders.model_copy(update={"kicked": kept})

        return self._give("unban", f"{name} ({peer})", unbanned)

    def announce(self, text: str) -> Orders:
        """Show a message to everyone, or no longer any if it is empty."""
        try:
            announcement = Announcement(text=text, time=time.time()) if text else None
        except ValidationError as error:
            raise UserError(f"this cannot be announced: {describe(error, Announcement)}") from None
        return self._give("announce", text, lambda orders: orders.model_copy(update={"announcement": announcement}))

    def checkpoint(self) -> Orders:
        """Ask for a checkpoint now."""
        return self._give("checkpoint", "", lambda orders: orders.model_copy(update={"checkpoint": time.time()}))

    def rollback(self, checkpoint: int, rate: float, after: int) -> Orders:
        """Let the step that follows `after` take over the state of an earlier one; errors also if the run has been
        finished. A decay that was ordered later than that state is lifted."""

        def rewound(orders: Orders) -> Orders:
            if orders.finish:
                raise UserError("the run has been finished; 'dedloc run resume RUN' lets it go on")
            lifted = orders.decay is not None and checkpoint <= orders.decay.after
            order = Rewinding(checkpoint=checkpoint, rate=rate, after=after)
            return orders.model_copy(update={"rewind": order, "decay": None if lifted else orders.decay})

        return self._give("rollback", f"step {checkpoint}, rate {rate:g}", rewound)

    def cooldown(self, steps: int, after: int) -> Orders:
        """Let the learning rate fall over so many global steps, from the one on that follows `after`; errors also if
        the run has been finished."""

        def decayed(orders: Orders) -> Orders:
            if orders.finish:
                raise UserError("the run has been finished; 'dedloc run resume RUN' lets it go on")
            return orders.model_copy(update={"decay": Decaying(steps=steps, after=after)})

        return self._give("cooldown", f"over {steps} steps", decayed)

    def given(self, most: int = 100) -> list[GivenOrder]:
        """The newest orders, newest first; a line that is damaged is left out."""
        return self._journal.newest(most)

    def _give(self, order: Order, text: str, change: Callable[[Orders], Orders]) -> Orders:
        """Change the file and log the order, unless it changes nothing."""
        with self._locked():
            before = self.read()
            after = change(before)
            if after != before:
                given = GivenOrder(time=time.time(), order=order, text=text)
                replace_text(self._folder / ORDERS_FILE, after.model_dump_json(indent=1))
                self._journal.add(given)
            return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with (self._folder / _LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise UserError(
                f"{self._folder / ORDERS_FILE} cannot be written ({error.strerror}); make room or check the permissions"
            ) from None


class OrdersInForce:
    """What a process that acts on the orders sees of them; cheap to ask again and again.

    Of a damaged file it warns once; what was in force then stays so.
    """

    def __init__(self, folder: Path) -> None:
        self._book, self._orders = OrderBook(folder), Orders()
        self._file = Followed(folder / ORDERS_FILE, self._read)

    def current(self) -> Orders:
        """The orders that hold now."""
        return self._file.current()

    def _read(self) -> Orders:
        try:
            self._orders = self._book.read()
        except UserError as error:
            _log.warning("%s; the orders of before still hold", error)
        return self._orders
