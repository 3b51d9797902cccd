"""The coordinator has its checkpoints scored by standard suites, if the organizer wants that: in a process of its own,
of low priority and for a limited time, so that training never waits."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.coordinator.durability import despite_a_full_disk
from dedloc_kit.coordinator.suite_process import Job
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.export.checkpoint_file import CheckpointFile
from dedloc_kit.export.source import round_of
from dedloc_kit.learning.evaluate.report import SuitesReport
from dedloc_kit.learning.evaluate.settings import SuiteSettings
from dedloc_kit.learning.evaluate.suites import check
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.ledger import Ledger, SuiteScore
from dedloc_kit.machine.isolation import isolated
from dedloc_kit.machine.private import make_private, open_private

MOST_SECONDS = 6 * 3600
"""Of one model; after that its process is ended."""
REST = 3.0
"""Rest for so many times as long as it took."""
RETRY_SECONDS = 600.0
QUIET = {"TQDM_DISABLE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
LOG = "suites.log"

_log = logging.getLogger(__name__)


def check_suites(peer: CoordinatorConfig) -> None:
    """Raise UserError if the suites that the organizer wants are not to be had: better now than after hours."""
    if peer.suites:
        check(SuiteSettings(suite=peer.suites, language=peer.suite_language, samples=peer.suite_samples))


class Suites:
    """Scores the newest checkpoint when the one before it is done, and a published model once.

    :param device: where models compute, cpu or cuda
    :param emit: told, once, that a model cannot be scored
    """

    def __init__(
        self,
        peer: CoordinatorConfig,
        ledger: Ledger,
        emit: Callable[[AnyEvent], None],
        device: str = "cpu",
        seconds: int = MOST_SECONDS,
    ) -> None:
        self._peer, self._ledger, self._emit, self._device, self._seconds = peer, ledger, emit, device, seconds
        self._wanted: Path | None = None
        self._due, self._leaving = threading.Event(), threading.Event()
        self._failed = False
        self._guard = threading.Lock()  # of the process, which may begin while this ends
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="suites", daemon=True)
        self._thread.start()

    def look(self, checkpoints: Checkpoints) -> None:
        """Score the newest checkpoint soon, if that is another one; returns at once."""
        kept = (path for path in checkpoints.kept() if path.stem.rpartition("-")[2].isdecimal())
        newest = next((path for path in kept if _step(path) not in checkpoints.ruined), None)
        if newest is not None and newest != self._wanted:
            self._wanted = newest
            self._due.set()

    def close(self) -> None:
        """End the process of a model that is being scored."""
        self._leaving.set()
        self._due.set()
        with self._guard:
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _work(self) -> None:
        while self._due.wait() and not self._leaving.is_set():
            self._due.clear()
            began = time.monotonic()
            try:
                self._score_all()
                self._failed = False
            except (UserError, OSError, ValueError) as error:
                self._tell(error)
            self._leaving.wait(RETRY_SECONDS if self._failed else REST * (time.monotonic() - began))

    def _score_all(self) -> None:
        """The checkpoint that is wanted, and the published model if it is not yet known."""
        assert self._wanted is not None
        path, known = self._wanted, self._ledger.suites()
        try:
            info = CheckpointFile(path).info
        except FileNotFoundError:  # the run has removed it: another one will be wanted
            return
        if not any(not score.model and score.step == info.step for score in known):
            found = self._score(str(path))
            now = self._ledger.steps(info.step - 1, limit=1)
            if [(each.step, each.round) for each in now] == [(info.step, round_of(info))]:
                self._record(found, "", info.step)  # else the run has gone back meanwhile
        other = self._peer.suite_against
        if other is not None and not any(score.model == other for score in known) and not self._leaving.is_set():
            self._record(self._score(other), other, 0)

    def _score(self, model: str) -> SuitesReport | None:
        """None if that was ended."""
        peer = self._peer
        logs = peer.folder / "logs"
        make_private(logs)
        with TemporaryDirectory(prefix="dedloc-suites-") as folder, open_private(logs / LOG, "wb") as log:
            job = Job(
                model=model,
                suites=peer.suites,
                language=peer.suite_language,
                samples=peer.suite_samples,
                device=self._device,
                threads=peer.threads,
                task_module=peer.task_module,
                report=str(Path(folder) / "report.json"),
                seconds=self._seconds,
            )
            with self._guard:
                if self._leaving.is_set():
                    return None
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "dedloc_kit.coordinator.suite_process"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=isolated(QUIET),
                )
            with self._process:  # its standard input stays open: the process ends when that does
                assert self._process.stdin is not None
                self._process.stdin.write(job.model_dump_json().encode() + b"\n")
                self._process.stdin.flush()
                code = self._process.wait()
            if self._leaving.is_set():
                return None
            try:
                text = Path(job.report).read_bytes()
            except FileNotFoundError:
                slow = f"; it had {self._seconds} s, see suite_samples" if code == -14 else ""
                raise UserError(f"its process ended with {code}{slow}; {logs / LOG} says more") from None
            problem = json.loads(text).get("problem")
            if problem is not None:
                raise UserError(problem)
            try:
                return SuitesReport.model_validate_json(text)
            except ValidationError as error:
                raise ValueError(f"its report cannot be read ({error.error_count()} errors)") from None

    def _record(self, found: SuitesReport | None, model: str, step: int) -> None:
        if found is None:
            return
        scores = [
            SuiteScore(
                metric=suite.metric,
                model=model,
                step=step,
                time=time.time(),
                questions=suite.samples["questions"],
                mean=suite.trained.mean,
                spread=suite.trained.spread,
            )
            for suite in found.suites
        ]
        with despite_a_full_disk():
            self._ledger.record_suites(scores)
        _log.info("%s scored: %s", model or f"step {step}", ", ".join(f"{s.metric} {s.mean:.4f}" for s in scores))

    def _tell(self, error: Exception) -> None:
        """Once, until it can be done again."""
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        if not self._failed:
            self._emit(Warned(text=f"no scores by standard suites: {why}"))
        self._failed = True


def _step(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
