"""How a peer that holds no parameters stays where the others are: it hears to which step they have come.

The chain proves that; where it begins, `Belief` says whose word to take. A wrong one would only keep it out of a round.
"""

import logging
import random
import threading
from concurrent.futures import Future
from contextlib import suppress

from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.state import StateInfo
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Reset
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.catchup import TakeRecord, TooFarBehind
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.rounds.catchup import LOAD_ATTEMPTS, LOAD_PAUSE
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.following import Following
from dedloc_kit.swarm.rounds.missed_steps import MissedStep, missed_step
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.transfer.protocol import Header

DONORS_ASKED = 3
ANSWER_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Alongside:
    """In place of `CatchUp`, of which it has the methods."""

    def __init__(
        self,
        state: NoState,
        exchange: Exchange,
        tracker: Tracker,
        branch: StateBranch,
        stop: threading.Event,
        client: bool = False,
    ) -> None:
        """:param client: this peer makes outgoing connections only"""
        self._state, self._exchange, self._tracker = state, exchange, tracker
        self._branch, self._stop = branch, stop
        self._following = Following(branch, tracker, client)

    def behind(self) -> bool:
        """Is it proven that the others are elsewhere? Asks them now and then."""
        return self._following.due() is not None

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
            heard = newest.step or self._tracker.belief.organizer in self._tracker.others()
            if heard and self._move(newest):
                return True
        return False

    def follow(self) -> list[MissedStep]:
        """Be where the others are; the steps that were missed, in order."""
        missed = list[MissedStep]()
        while not self._stop.is_set() and (due := self._following.due()) is not None:
            if isinstance(due, TooFarBehind):
                if not self._move(self._newest()):
                    self._following.failed()
                    break
                continue
            records = (due.record,) if isinstance(due, TakeRecord) else due.records
            try:
                head = self._branch.take(*records)
            except ValueError as error:
                _log.warning("missed steps are not taken: %s", error)
                self._following.failed()
                break
            missed += [step for record in records if (step := self._take(record)) is not None]
            self._branch.moved(head)
        return missed

    def _take(self, record: ChainRecord) -> MissedStep | None:
        """Go one record further; None if it is not known who contributed to it."""
        try:
            step = missed_step(self._branch.reader, record)
        except ValueError as error:
            self._tracker.reject(f"a missed step: {error}")
            step = None
        if step is None or isinstance(record, Reset):
            self._state.move(Position(record.after - 1, record.link))
        else:
            self._state.count(step.receipt, self._branch.decay_in(step.contributions))
        return step

    def led_here(self) -> MissedStep | None:
        """It is not known."""
        return None

    def _newest(self) -> Position:
        return self._tracker.newest(self._state.position)

    def _move(self, position: Position) -> bool:
        """Go to a state of the others by what one of them says of it; False if none answers."""
        for donor in self._donors(position):
            header = _answered(self._exchange.transfers.ask_for_state(donor))
            if header is None or header.answer != "here":
                continue
            try:
                metadata = decode(header.metadata)
                info = StateInfo.parse(metadata["info"])
                there = info.step == position.step and position.round in ("", *info.rounds[-1:])
                if not there and info.step <= position.step:
                    raise ValueError("it is not where the others are")
                head = self._branch.at(info, metadata["anchor"])
            except (ValueError, TypeError, KeyError) as error:
                self._tracker.reject(f"where the run is: {error}")
                continue
            self._state.move(Position(info.step, head.instance.previous))
            self._branch.moved(head)
            return True
        return False

    def _donors(self, newest: Position) -> list[str]:
        """Some of those who hold this state and can be asked."""
        able = self._tracker.at(*newest).items()
        donors = [peer for peer, progress in able if progress.holds_state and not progress.client_mode]
        return random.sample(donors, min(DONORS_ASKED, len(donors)))


def _answered(answer: Future[Header | None]) -> Header | None:
    with suppress(TimeoutError, RuntimeError):
        return answer.result(ANSWER_SECONDS)
    return None
