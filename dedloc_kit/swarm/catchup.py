"""How a peer finds out that the swarm has gone on without it, or elsewhere, and gets back to where the others are."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import torch
from hivemind.utils import MSGPackSerializer

from dedloc_kit.records import Contribution, Progress, Receipt, StateInfo
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.averaging import GradientAverager
from dedloc_kit.swarm.compression import decode
from dedloc_kit.swarm.offers import RecentAverage
from dedloc_kit.swarm.receipts import opened
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.swarm.state import TrainingState
from dedloc_kit.swarm.tracker import Tracker

LOAD_ATTEMPTS = 6
LOAD_PAUSE = 3.0

MissedStep = tuple[Receipt, dict[str, Contribution]]


class CatchUp:
    """Compares our state with what the others say of theirs, and fetches what we lack.

    A peer that missed a global step or a few gets their averages, which are compressed and say who contributed; one
    that is further behind, or has other parameters than the rest, gets the whole state.
    """

    def __init__(
        self,
        state: TrainingState,
        averager: GradientAverager,
        tracker: Tracker,
        run: RunConfig,
        signer: Signer,
        stop: threading.Event,
        on_loading: Callable[[int, int], None],
        warn: Callable[[str], None],
    ) -> None:
        self._state, self._averager, self._tracker = state, averager, tracker
        self._run, self._signer, self._stop = run, signer, stop
        self._on_loading, self._warn = on_loading, warn

    def behind(self) -> bool:
        """Is there a newer state, or another one that more peers hold?"""
        return self._tracker.newest_step() > self._state.step or self._parted() or self._drifted()

    def follow(self) -> list[MissedStep]:
        """Do what it takes to be where the others are, as far as they help; the steps that were missed, in order."""
        missed = self._take_averages()
        if self.behind() and not self._stop.is_set():
            before = self._state.step
            if self._load_state():
                missed += self._receipts_after(before)
            else:
                self._warn("the swarm is ahead, but nobody hands out its state; still trying")
                self._stop.wait(LOAD_PAUSE)
        return missed

    def load(self) -> bool:
        """Get the swarm's state for the first time; False if nobody hands it out."""
        for attempt in range(LOAD_ATTEMPTS):
            if attempt and self._stop.wait(LOAD_PAUSE):
                break
            self._look()
            if self._load_state():
                return True
        return False

    # Whether

    def _mates(self) -> dict[str, Progress]:
        return self._tracker.at(self._state.step, self._state.round)

    def _parted(self) -> bool:
        """Did most peers at our step come from another all-reduce?"""
        rounds = Counter(p.round for p in self._tracker.others().values() if p.step == self._state.step)
        rounds[self._state.round] += 1
        return max(rounds, key=lambda round_id: (rounds[round_id], round_id)) != self._state.round

    def _drifted(self) -> bool:
        """Do most peers that took the same rounds hold other parameters? In doubt a follower's are right."""
        mates = self._mates()
        different = {peer: progress for peer, progress in mates.items() if self._state.differs(progress.sketch)}
        alike = 1 + len(mates) - len(different)
        if len(different) != alike:
            return len(different) > alike
        return any(progress.follower for progress in different.values()) or min(different) < self._signer.peer

    # Averages that we missed

    def _take_averages(self) -> list[MissedStep]:
        missed: list[MissedStep] = []
        while self._tracker.newest_step() > self._state.step and not self._stop.is_set():
            ahead = {p: v for p, v in self._tracker.others().items() if v.step > self._state.step}
            donors = self._to_ask(ahead)
            if not donors:
                break
            found = self._averager.download_average(
                self._state.round,
                donors,
                max_bytes=4 * self._state.layout.size + 2**20,
                warn=self._warn,
                stop=self._stop,
            )
            if found is None:
                break
            try:
                missed.append(self._take(found))
            except (ValueError, TypeError) as error:
                self._tracker.reject(f"a missed average: {error}")
                break
        return missed

    def _take(self, found: RecentAverage) -> MissedStep:
        """Take the step with an average that others made; raises ValueError if it is not the next one."""
        if found.step != self._state.step + 1:
            raise ValueError(f"it is of step {found.step}, not {self._state.step + 1}")
        signed = tuple(MSGPackSerializer.loads(found.metadata))
        contributions = opened(self._signer, self._run.run_id, found.step, signed, self._run.global_batch)
        if sum(c.samples for c in contributions.values()) < self._run.global_batch:
            raise ValueError("there are too few samples in it")
        parts = [decode(part, sum(part.size)) for part in found.parts]
        if sum(map(len, parts)) != self._state.layout.size:
            raise ValueError("it has not as many values as the model")
        receipt = Receipt(
            step=found.step,
            round=found.round,
            time=max(c.time for c in contributions.values()),
            seconds=0.0,
            signed=signed,
        )
        self._state.apply(torch.cat(parts), receipt)
        return receipt, contributions

    # The whole state

    def _load_state(self) -> bool:
        """Download the newest state from whoever has it; False if that did not succeed."""
        donors = self._donors()
        if not donors:
            return False
        wanted = self._tracker.newest_step()
        found = self._averager.download_state(
            donors, self._state.tensors(), on_progress=self._on_loading, warn=self._warn, stop=self._stop
        )
        if found is None:
            self._tracker.suspect(donors)  # what they say of a newer state must not hold us up for ever
            return False
        metadata, tensors = found
        try:
            info = StateInfo.parse(metadata["info"])
            receipts = tuple(Receipt.parse(values) for values in metadata["receipts"])
            if info.step < wanted:
                raise ValueError(f"it is of step {info.step}, the swarm is at {wanted}")
            self._state.load(tensors, info)
        except (ValueError, TypeError, KeyError) as error:
            self._warn(f"a downloaded state was refused: {error}")
            return False
        self._state.receipts = receipts
        self._averager.forget_feedback()
        return True

    def _donors(self) -> list[str]:
        """Whom to ask: the newest, and of these the largest party."""
        newest = self._tracker.newest_step()
        candidates = {peer: p for peer, p in self._tracker.others().items() if p.step == newest}
        rounds = Counter(progress.round for progress in candidates.values())
        if not rounds:
            return []
        common = max(rounds, key=lambda round_id: (rounds[round_id], round_id))
        donors = {peer: p for peer, p in candidates.items() if p.round == common}
        if (newest, common) == (self._state.step, self._state.round) and self._state.step:
            donors = {peer: p for peer, p in donors.items() if self._state.differs(p.sketch)}
        return self._to_ask(donors)

    def _to_ask(self, donors: Mapping[str, Progress]) -> list[str]:
        """Those who can be reached; if there are none, clients that may be connected to us, unless we are one too."""
        reachable = [peer for peer, progress in donors.items() if not progress.client_mode]
        return reachable or ([] if self._averager.client_mode else list(donors))

    def _receipts_after(self, step: int) -> list[MissedStep]:
        missed = []
        for receipt in self._state.receipts:
            if step < receipt.step <= self._state.step:
                try:
                    contributions = opened(
                        self._signer, self._run.run_id, receipt.step, receipt.signed, self._run.global_batch
                    )
                    missed.append((receipt, contributions))
                except ValueError as error:
                    self._tracker.reject(f"the receipt of a step: {error}")
        return missed

    def _look(self) -> None:
        try:
            self._tracker.look()
        except Exception as error:
            self._warn(f"the swarm's directory does not answer ({error!r:.100})")
