"""How a peer that holds no parameters stays where the others are: it hears to which step they have come.

It takes nobody's state for that, and no word that `Belief` does not; a wrong one would only keep it out of a round.
"""

import logging
import random
import threading
from concurrent.futures import Future
from contextlib import suppress

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.network.unpacking import unpack
from dedloc_kit.swarm.rounds.catchup import LOAD_ATTEMPTS, LOAD_PAUSE, MissedStep
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.finished_step import decay_in, opened
from dedloc_kit.swarm.transfer.contents import AverageInfo
from dedloc_kit.swarm.transfer.protocol import Header

DONORS_ASKED = 3
ANSWER_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Alongside:
    """In place of `CatchUp`, of which it has the methods."""

    def __init__(
        self, state: NoState, exchange: Exchange, tracker: Tracker, signer: Signer, stop: threading.Event
    ) -> None:
        self._state, self._exchange, self._tracker = state, exchange, tracker
        self._signer, self._stop = signer, stop

    def behind(self) -> bool:
        """Are the others elsewhere?"""
        return self._newest() != self._state.position

    def load(self) -> bool:
        """Find out for the first time where they are; False if nobody says it."""
        for attempt in range(LOAD_ATTEMPTS):
            if attempt and self._stop.wait(LOAD_PAUSE):
                break
            try:
                self._tracker.refresh()
            except Exception as error:
                _log.warning("the swarm's directory does not answer (%.100r)", error)
            newest = self._newest()
            if newest.step or self._tracker.belief.organizer in self._tracker.others():
                self._move(newest)
                return True
        return False

    def follow(self) -> list[MissedStep]:
        """Be where the others are; the steps that were missed, in order, as far as somebody still tells of them.

        Their receipts are wanted, where there are rows: without one this peer does not know its own, and learns it with
        the next step.
        """
        missed = list[MissedStep]()
        while (newest := self._newest()).step > self._state.step and not self._stop.is_set():
            found = self._next(newest)
            if found is None:
                break
            missed.append(found)
        if self.behind():
            self._move(self._newest())
        return missed

    def led_here(self) -> MissedStep | None:
        """It is not known."""
        return None

    def _newest(self) -> Position:
        return self._tracker.newest(self._state.position)

    def _move(self, position: Position) -> None:
        self._state.move(position)
        self._tracker.belief.reached(position.step, float(get_dht_time()))

    def _next(self, newest: Position) -> MissedStep | None:
        """The step after this peer's, as those tell it who hold the newest state."""
        donors = [peer for peer, progress in self._tracker.at(*newest).items() if not progress.client_mode]
        for donor in random.sample(donors, min(DONORS_ASKED, len(donors))):
            header = _answered(self._exchange.transfers.ask_for_average(donor, self._state.round))
            if header is None or header.answer != "here":
                continue
            try:
                return self._take(AverageInfo.parse(decode(header.metadata)), newest)
            except (ValueError, TypeError) as error:
                self._tracker.reject(f"a missed step: {error}")
        return None

    def _take(self, info: AverageInfo, newest: Position) -> MissedStep:
        """Raises ValueError if it is not the next step, on the way to the newest one."""
        step, state = self._state.step + 1, self._state
        led_there = step < newest.step or info.round == newest.round
        if (info.after, info.step) != (state.round, step) or not led_there:
            raise ValueError("it is not the next one")
        signed = tuple(unpack(info.metadata))
        organizer = self._tracker.belief.organizer
        contributions: dict[str, Contribution] = opened(self._signer, state.run, organizer, step, info.round, signed)
        latest = max((c.time for c in contributions.values()), default=0.0)
        receipt = Receipt(step=step, round=info.round, time=latest, seconds=0.0, signed=signed)
        state.count(receipt, decay_in(self._signer, state.run_id, contributions.values(), organizer, state.rewound))
        self._tracker.belief.reached(step, float(get_dht_time()))
        return receipt, contributions


def _answered(answer: Future[Header | None]) -> Header | None:
    with suppress(TimeoutError, RuntimeError):
        return answer.result(ANSWER_SECONDS)
    return None
