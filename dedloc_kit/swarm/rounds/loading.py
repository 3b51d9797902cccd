"""How a peer takes over a whole state: from the bucket or from others, and only one that witnesses confirm."""

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dedloc_kit.learning.train.state.state import Position, TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.finished_step import check_signed, record_in
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.stored import StoredCopies
from dedloc_kit.swarm.rounds.witnesses import Verdict, Witnesses
from dedloc_kit.swarm.transfer.contents import ExpectedState, StateLayout, version_of

LOAD_RESTARTS = 8
"""How often the swarm may have moved on when a download of its state has just begun."""

_log = logging.getLogger(__name__)


class StateLoader:
    """Finds donors, and blames those whose states are wrong.

    :param client: this peer makes outgoing connections only
    :param on_loading: called with the bytes of a state that have come, and all of it
    """

    def __init__(
        self,
        state: TrainingState,
        exchange: Exchange,
        tracker: Tracker,
        branch: StateBranch,
        stored: StoredCopies,
        client: bool,
        stop: threading.Event,
        on_loading: Callable[[int, int], None],
    ) -> None:
        self._state, self._exchange, self._tracker, self._branch = state, exchange, tracker, branch
        self._stored, self._client, self._stop, self._on_loading = stored, client, stop, on_loading
        self._liars: set[str] = set()
        # Since a state was wrong, and it could be any of its donors; or the swarm was faster than its witnesses answer,
        # of whom the organizer needs none.
        self._one_by_one = False

    def load(self, newest: Callable[[], Position]) -> bool:
        """Download the newest state that is proven, and make sure that it is; False if that did not succeed.

        :param newest: where that is, as far as known; asked again while the swarm is faster
        """
        if self._load_stored(newest()):
            return True
        for _ in range(LOAD_RESTARTS):
            wanted = newest()
            donors = self._donors(wanted)
            verdict = self._load_from(donors, wanted) if donors else "unproven"
            if verdict == "wrong":
                self._blame(donors)
            if verdict != "moved on" or self._stop.is_set():
                break
            self._one_by_one = True
            self.look()
        return verdict == "right"

    def _load_stored(self, wanted: Position) -> bool:
        """Take the state in the run's bucket, if that is the way to the newest one: averages lead on from it."""
        like = self._state.tensors()
        expected = ExpectedState(self._state.run_id, StateLayout(like).size)
        found = self._stored.state(expected, self._state.position, wanted, like)
        return found is not None and self._took_over(found, 0)

    def _load_from(self, donors: Sequence[str], wanted: Position) -> Verdict:
        witnesses = Witnesses(self._exchange.transfers.ask_for_sketch, self._tracker, self._stop)
        # The word of one who can prove it alone needs no witness.
        certain = len(donors) == 1 and self._tracker.proves(donors)
        found = self._exchange.transfers.download_state(
            donors,
            self._state.tensors(),
            on_version=lambda version: certain or witnesses.question(version),
            on_progress=self._on_loading,
            stop=self._stop,
        )
        if found is None:
            if certain or witnesses.verdict == "unproven":
                # What they say of a newer state must not hold us up for ever. But without the organizer's word we would
                # not even know that there is one: however often it fails over a bad line, it counts when it speaks.
                self._tracker.peers.suspect(set(donors) - {self._tracker.belief.organizer})
                self._tracker.peers.doubt(donors)
            return witnesses.verdict
        return "right" if self._took_over(found, wanted.step, None if certain else witnesses) else witnesses.verdict

    def _took_over(
        self, found: tuple[dict[str, Any], Sequence[Tensor]], least: int, witnesses: Witnesses | None = None
    ) -> bool:
        """Make a state ours that has come, if it is right.

        :param least: the step that it must have come to
        :param witnesses: none for one that is certain
        """
        metadata, tensors = found
        try:
            info = StateInfo.parse(metadata["info"])
            receipts = self._genuine(Receipt.parse(values) for values in metadata["receipts"])
            if info.step < least:
                raise ValueError(f"it is of step {info.step}, the swarm is at {least}")
            verdict = "right" if witnesses is None else witnesses.judge(version_of(info), tensors, self._state.loose)
            if verdict != "right":
                raise ValueError("it is not the one that others hold" if verdict == "wrong" else "nobody confirms it")
            head = self._branch.at(info, metadata["anchor"])
            self._state.load(self._but_buffers(tensors), info, receipts)
            self._branch.moved(head)
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("a downloaded state was refused: %s", error)
            return False
        self._exchange.averager.forget_feedback()
        self._one_by_one = False
        return True

    def _but_buffers(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Where members are checked the model's buffers stay: no witness knows them, and what a task computes then
        depends on none that training changes, but may on others, such as the numbers of positions."""
        loose = self._state.loose if self._state.run.trust.checks == "on" else frozenset[int]()
        own = self._state.tensors()
        return [own[number] if number in loose else tensor for number, tensor in enumerate(tensors)]

    def _blame(self, donors: Sequence[str]) -> None:
        """These donors have sent a state that is wrong: one of them, or all."""
        if len(donors) == 1:
            self._liars.update(donors)
            self._tracker.peers.suspect(donors)
        self._one_by_one = True

    def _donors(self, wanted: Position) -> list[str]:
        """Whom to ask for this state; where we hold it already, those whose parameters are other ones.

        If they all have gone on, those who count and have too: witnesses know that state as well.
        """
        donors = self.holders(wanted) or self._beyond(wanted)
        if wanted == self._state.position and self._state.step:
            donors = {peer: p for peer, p in donors.items() if self._state.differs(p.sketch)}
        able = [peer for peer in self.to_ask(donors) if peer not in self._liars]
        if not self._one_by_one:
            return able
        organizer = self._tracker.belief.organizer
        return [organizer] if organizer in able else random.sample(able, min(1, len(able)))

    def holders(self, position: Position) -> dict[str, Progress]:
        """The others who have that state."""
        return {peer: progress for peer, progress in self._tracker.at(*position).items() if progress.holds_state}

    def _beyond(self, position: Position) -> dict[str, Progress]:
        belief = self._tracker.belief
        return {
            peer: progress
            for peer, progress in self._tracker.others().items()
            if progress.holds_state and progress.step > position.step
            if peer == belief.organizer or belief.weight(peer)
        }

    def to_ask(self, donors: Mapping[str, Progress]) -> list[str]:
        """Those who can be reached; if there are none, clients that may be connected to us, unless we are one too."""
        reachable = [peer for peer, progress in donors.items() if not progress.client_mode]
        return reachable or ([] if self._client else list(donors))

    def _genuine(self, receipts: Iterable[Receipt]) -> tuple[Receipt, ...]:
        """Without those that hold what nobody has signed: the state is proven, they are not."""
        kept = []
        for receipt in receipts:
            try:
                check_signed(record_in(receipt), self._tracker.belief.organizer)
                kept.append(receipt)
            except ValueError as error:
                self._tracker.reject(f"the receipt of a step: {error}")
        return tuple(kept)

    def look(self) -> None:
        try:
            self._tracker.refresh()
        except Exception as error:
            _log.warning("the swarm's directory does not answer (%.100r)", error)
