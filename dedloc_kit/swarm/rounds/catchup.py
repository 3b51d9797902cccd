"""How a peer finds out that the swarm has gone on without it, or elsewhere, and gets back to where the others are."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from dedloc_kit.bucket.reading import Bucket
from dedloc_kit.learning.train.state.state import START, Position, TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.allreduce.encoding.codec import decode_all, read_part
from dedloc_kit.swarm.allreduce.parts import digest_of
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.catchup import TakeRecord, TakeState, TooFarBehind
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.finished_step import record_in
from dedloc_kit.swarm.rounds.following import Following
from dedloc_kit.swarm.rounds.loading import StateLoader
from dedloc_kit.swarm.rounds.missed_steps import MissedStep, missed_step
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.stored import StoredCopies

LOAD_ATTEMPTS = 6
LOAD_PAUSE = 3.0
KEPT_LOOKS, KEPT_PAUSE = 15, 2.0
"""So often, and so many seconds apart, a peer asks whether the coordinator goes on from what it has offered."""

_log = logging.getLogger(__name__)


class CatchUp:
    """Fetches what the state lacks.

    Where the swarm is, the chain proves (see `Following`), and to a newcomer `Belief`. A peer that missed a global step
    or a few gets their averages, which are compressed and say who contributed; one that is further behind, or has other
    parameters than the rest, gets the whole state, which `Witnesses` confirm.
    """

    def __init__(
        self,
        state: TrainingState,
        exchange: Exchange,
        tracker: Tracker,
        branch: StateBranch,
        profile: Profile,
        stop: threading.Event,
        on_loading: Callable[[int, int], None],
    ) -> None:
        self._state, self._exchange, self._tracker, self._branch = state, exchange, tracker, branch
        self._stop, self._reader, client = stop, branch.reader, profile.client_mode
        self._following = Following(branch, tracker, client)
        state_bucket = state.run.averaging.state_bucket
        bucket = None if state_bucket is None else Bucket(state_bucket, state.run_id)
        self._stored = StoredCopies(bucket, tracker, stop, on_loading)
        self._offered = ""
        """The head of the branch that was offered last."""
        self._loader = StateLoader(state, exchange, tracker, branch, self._stored, client, stop, on_loading)

    def behind(self) -> bool:
        """Is a newer state proven, or another one that more peers hold? Asks the others now and then."""
        return self._due() is not None or self._drifted()

    def follow(self) -> list[MissedStep]:
        """Do what it takes to be where the others are, as far as they help; the steps that were missed, in order."""
        missed = list[MissedStep]()
        while not self._stop.is_set() and (due := self._due()) is not None:
            if isinstance(due, TakeRecord):
                taken = self._take(due.record, due.holders)
            elif (taken := self._offer(due)) is None:
                taken = self._replace_state(due)
            missed += taken or []
            if taken is None:
                self._branch.stay()
                self._following.failed()
                if not isinstance(due, TakeRecord):
                    break
        if self._drifted() and not self._stop.is_set():
            missed += self._replace_state() or []
        return missed

    def _due(self) -> TakeRecord | TakeState | TooFarBehind | None:
        if self._branch.better:
            return TakeState(self._branch.better, ())
        due = self._following.due()
        if due is None and self._branch.anew and self._newest().step > self._state.step:
            return TooFarBehind(self._branch.peer)  # others have gone on with the chain that this peer has lost
        return due

    def load(self) -> bool:
        """Get the swarm's state for the first time; False if nobody hands it out."""
        for attempt in range(LOAD_ATTEMPTS):
            if attempt and self._stop.wait(LOAD_PAUSE):
                break
            self._loader.look()
            if self._holds_first() or self._loader.load(self._newest):
                return True
        return False

    def led_here(self) -> MissedStep | None:
        """The step that led to this peer's state, if its receipt came with that, as it does from whoever is at work;
        with a checkpoint none comes, and those of before may be gone for good."""
        for receipt in reversed(self._state.receipts):
            if receipt.step == self._state.step:
                return self._read(receipt)
        return None

    def _newest(self) -> Position:
        """Where a newcomer believes that the swarm is."""
        return self._tracker.newest(self._state.position)

    def _read(self, receipt: Receipt) -> MissedStep | None:
        try:
            return missed_step(self._reader, record_in(receipt), receipt)
        except ValueError as error:
            self._tracker.reject(f"the receipt of a step: {error}")
            return None

    # Whether

    def _drifted(self) -> bool:
        """Does the organizer, which took the same rounds, hold other parameters? In its absence, do most peers, and
        those who brought most of the samples?"""
        in_sync, belief = self._loader.holders(self._state.position), self._tracker.belief
        different = {peer for peer, progress in in_sync.items() if self._state.differs(progress.sketch)}
        if belief.organizer in in_sync:
            return belief.organizer in different
        return 2 * len(different) > len(in_sync) and self._tracker.proves(different)

    def _holds_first(self) -> bool:
        """Is the run where it begins, and has this peer made the state there itself, as the organizer has by its word?
        Other software may have drawn other weights."""
        organizer = self._tracker.belief.organizer
        progress = self._tracker.others().get(organizer)
        begins = self._state.position == START and self._newest().step == 0
        if not begins or progress is None or progress.step or self._state.differs(progress.sketch):
            return False
        header = self._exchange.transfers.ask_for_state(organizer).result()
        if header is None or header.answer != "here":
            return False
        try:
            metadata = decode(header.metadata)
            if StateInfo.parse(metadata["info"]).step:
                return False
            self._branch.start_at(metadata["anchor"])
        except (ValueError, TypeError, KeyError) as error:
            self._tracker.reject(f"where the run begins: {error}")
            return False
        return True

    # Steps that we missed

    def _take(self, record: ChainRecord, holders: Sequence[str]) -> list[MissedStep] | None:
        """Move state and branch by one record; None if that is not possible."""
        average = None
        if isinstance(record, Commit):
            average = self._average_of(record, self._loader.to_ask(self._those(holders)))
            if average is None:
                return None
        try:
            step = missed_step(self._reader, record)
            head = self._branch.take(record)
        except ValueError as error:
            self._tracker.reject(f"a missed step: {error}")
            return None
        if average is not None:
            self._state.apply(average, step.receipt, self._branch.decay_in(step.contributions))
        self._branch.moved(head)
        return [step]

    def _average_of(self, commit: Commit, donors: Sequence[str]) -> Tensor | None:
        """The average that a commit names: no other one is taken, whoever gives it."""
        max_bytes = 4 * self._state.layout.size + 2**20
        found = self._stored.average_after(commit.previous, max_bytes) or self._exchange.transfers.download_average(
            commit.previous, donors, check=read_part, max_bytes=max_bytes, stop=self._stop
        )
        if found is None:
            return None
        if digest_of(found.parts) != commit.value.average:
            self._tracker.reject("a missed average: it is not the one that the commit names")
            return None
        try:
            return decode_all(found.parts, self._state.layout.size)
        except ValueError as error:
            self._tracker.reject(f"a missed average: {error}")
            return None

    # The whole state

    def _offer(self, due: TakeState | TooFarBehind) -> list[MissedStep] | None:
        """Offer the coordinator the branch that this peer is to leave, and keep its state until that may be fetched.

        Returns what leads on from there; None if the coordinator has not chosen it, or could not.
        """
        left, base = self._state.round, self._branch.to_offer(due.records) if isinstance(due, TakeState) else None
        if base is None or left == self._offered:
            return None
        self._offered = left
        _log.warning(
            "the others went on without the last steps here, which have more samples: offering them to the coordinator"
        )
        try:
            self._branch.offer(base).result()
            for _ in range(KEPT_LOOKS):
                records = self._branch.ask(self._tracker.belief.organizer).result()
                if records and self._branch.end.previous_of(records[0]) == left:
                    return self._take(records[0], ())
                if self._stop.wait(KEPT_PAUSE):
                    break
        except OSError as error:
            _log.warning("the coordinator cannot be asked: %s", error)
        return None

    def _replace_state(self, due: TakeState | TooFarBehind | None = None) -> list[MissedStep] | None:
        """Take another state in place of ours; None if that did not succeed.

        :param due: none if other parameters are to be had at the same place
        """
        before = self._state.position
        known = {before.step: before.round} | {receipt.step: receipt.round for receipt in self._state.receipts}
        if isinstance(due, TakeState):
            self._branch.weigh_by(due.records)
            wanted = Position(due.records[-1].after - 1, due.records[-1].link)
            loaded = self._loader.load(lambda: wanted)
        elif due is not None and self._newest() == before:
            return None  # nobody says so whose word counts
        else:
            loaded = self._loader.load(self._newest if due is not None else lambda: before)
        if loaded:
            return self._receipts_other_than(known, before.step)
        _log.warning("the swarm is ahead, but nobody hands out its state; still trying")
        self._stop.wait(LOAD_PAUSE)
        return None

    def _those(self, peers: Sequence[str]) -> dict[str, Progress]:
        """Those of these peers who are there."""
        others = self._tracker.others()
        return {peer: others[peer] for peer in peers if peer in others}

    def _receipts_other_than(self, known: Mapping[int, str], step: int) -> list[MissedStep]:
        """Steps after this one, and those in whose place another one was known here (round by step)."""
        missed = []
        for receipt in self._state.receipts:
            replaced = receipt.round != known.get(receipt.step, receipt.round)
            if step < receipt.step <= self._state.step or replaced:
                found = self._read(receipt)
                missed += [found] if found is not None else []
        return missed
