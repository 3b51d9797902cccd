"""How a peer finds out that the swarm has gone on without it, or elsewhere, and gets back to where the others are."""

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.utils import get_dht_time
from torch import Tensor

from dedloc_kit.bucket.reading import Bucket
from dedloc_kit.learning.train.state.state import START, Position, TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.allreduce.encoding.codec import decode_all, read_part
from dedloc_kit.swarm.allreduce.parts import digest_of
from dedloc_kit.swarm.averaging.entries import EntryReader
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.catchup import TakeRecord, TakeState, TooFarBehind
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.finished_step import check_signed, receipt_of, record_in
from dedloc_kit.swarm.rounds.following import Following
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.rounds.stored import StoredCopies
from dedloc_kit.swarm.rounds.witnesses import Verdict, Witnesses
from dedloc_kit.swarm.transfer.contents import ExpectedState, StateLayout, version_of

LOAD_ATTEMPTS = 6
LOAD_PAUSE = 3.0
LOAD_RESTARTS = 8
"""How often the swarm may have moved on when a download of its state has just begun."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MissedStep:
    """A record that led to this peer's state, of a round in which it did not take part.

    :ivar contributions: none of a reset
    :ivar weights: how many samples of each count
    :ivar is_step: whether it is a step of the run, not only new voters
    """

    receipt: Receipt
    contributions: dict[str, Contribution]
    weights: dict[str, int]
    is_step: bool = True

    @property
    def rollback(self) -> Reset | None:
        """What a person chose, if this step took over an earlier state."""
        record = record_in(self.receipt)
        return record if isinstance(record, Reset) and record.chosen else None

    @property
    def pieces(self) -> frozenset[str]:
        """Names of the gradients that count."""
        record = record_in(self.receipt)
        entries = record.value.counted if isinstance(record, Commit) else ()
        return frozenset(piece.hash for entry in entries for piece in entry.pieces)


def missed_step(reader: EntryReader, record: ChainRecord, receipt: Receipt | None = None) -> MissedStep:
    """Raises ValueError if its contributions cannot be read."""
    if isinstance(record, Reset):
        return MissedStep(receipt or receipt_of(record, float(get_dht_time())), {}, {}, record.chosen)
    contributions = reader.in_commit(record)
    latest = max(contribution.time for contribution in contributions.values())
    weights = dict(zip(contributions, record.value.weights, strict=True))
    return MissedStep(receipt or receipt_of(record, latest), contributions, weights)


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
        self._run, self._profile, self._stop = state.run, profile, stop
        self._on_loading = on_loading
        self._reader = branch.reader
        self._following = Following(branch, tracker, profile.client_mode)
        self._checked = self._run.trust.checks == "on"
        """Then whoever is given anything false would seem to cheat."""
        state_bucket = self._run.averaging.state_bucket
        bucket = None if state_bucket is None else Bucket(state_bucket, self._run.run_id)
        self._stored = StoredCopies(bucket, tracker, stop, on_loading)
        self._liars: set[str] = set()
        # Since a state was wrong, and it could be any of its donors; or the swarm was faster than its witnesses answer,
        # of whom the organizer needs none.
        self._one_by_one = False

    def behind(self) -> bool:
        """Is a newer state proven, or another one that more peers hold? Asks the others now and then."""
        return self._due() is not None or self._drifted()

    def follow(self) -> list[MissedStep]:
        """Do what it takes to be where the others are, as far as they help; the steps that were missed, in order."""
        missed = list[MissedStep]()
        while not self._stop.is_set() and (due := self._due()) is not None:
            taken = self._take(due.record, due.holders) if isinstance(due, TakeRecord) else self._replace_state(due)
            missed += taken or []
            if taken is None:
                self._following.failed()
                if not isinstance(due, TakeRecord):
                    break
        if self._drifted() and not self._stop.is_set():
            missed += self._replace_state() or []
        return missed

    def _due(self) -> TakeRecord | TakeState | TooFarBehind | None:
        due = self._following.due()
        if due is None and self._branch.anew and self._newest().step > self._state.step:
            return TooFarBehind(self._branch.peer)  # others have gone on with the chain that this peer has lost
        return due

    def load(self) -> bool:
        """Get the swarm's state for the first time; False if nobody hands it out."""
        for attempt in range(LOAD_ATTEMPTS):
            if attempt and self._stop.wait(LOAD_PAUSE):
                break
            self._look()
            if self._holds_first() or self._load_state(self._newest):
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
        in_sync, belief = self._holders(self._state.position), self._tracker.belief
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
            average = self._average_of(record, self._to_ask(self._those(holders)))
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

    def _replace_state(self, due: TakeState | TooFarBehind | None = None) -> list[MissedStep] | None:
        """Take another state in place of ours; None if that did not succeed.

        :param due: none if other parameters are to be had at the same place
        """
        before = self._state.position
        known = {before.step: before.round} | {receipt.step: receipt.round for receipt in self._state.receipts}
        if isinstance(due, TakeState):
            self._branch.weigh_by(due.records)
            wanted = Position(due.records[-1].after - 1, due.records[-1].link)
            loaded = self._load_state(lambda: wanted)
        elif due is not None and self._newest() == before:
            return None  # nobody says so whose word counts
        else:
            loaded = self._load_state(self._newest if due is not None else lambda: before)
        if loaded:
            return self._receipts_other_than(known, before.step)
        _log.warning("the swarm is ahead, but nobody hands out its state; still trying")
        self._stop.wait(LOAD_PAUSE)
        return None

    def _load_state(self, newest: Callable[[], Position]) -> bool:
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
            self._look()
        return verdict == "right"

    def _load_stored(self, wanted: Position) -> bool:
        """Take the state in the run's bucket, if that is the way to the newest one: averages lead on from it."""
        like = self._state.tensors()
        expected = ExpectedState(self._run.run_id, StateLayout(like).size)
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
        loose = self._state.loose if self._checked else frozenset[int]()
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
        donors = self._holders(wanted) or self._beyond(wanted)
        if wanted == self._state.position and self._state.step:
            donors = {peer: p for peer, p in donors.items() if self._state.differs(p.sketch)}
        able = [peer for peer in self._to_ask(donors) if peer not in self._liars]
        if not self._one_by_one:
            return able
        organizer = self._tracker.belief.organizer
        return [organizer] if organizer in able else random.sample(able, min(1, len(able)))

    def _holders(self, position: Position) -> dict[str, Progress]:
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

    def _those(self, peers: Sequence[str]) -> dict[str, Progress]:
        """Those of these peers who are there."""
        others = self._tracker.others()
        return {peer: others[peer] for peer in peers if peer in others}

    def _to_ask(self, donors: Mapping[str, Progress]) -> list[str]:
        """Those who can be reached; if there are none, clients that may be connected to us, unless we are one too."""
        reachable = [peer for peer, progress in donors.items() if not progress.client_mode]
        return reachable or ([] if self._profile.client_mode else list(donors))

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

    def _receipts_other_than(self, known: Mapping[int, str], step: int) -> list[MissedStep]:
        """Steps after this one, and those in whose place another one was known here (round by step)."""
        missed = []
        for receipt in self._state.receipts:
            replaced = receipt.round != known.get(receipt.step, receipt.round)
            if step < receipt.step <= self._state.step or replaced:
                found = self._read(receipt)
                missed += [found] if found is not None else []
        return missed

    def _look(self) -> None:
        try:
            self._tracker.refresh()
        except Exception as error:
            _log.warning("the swarm's directory does not answer (%.100r)", error)
