"""How long from running the cell to the first sample that counts, and what takes the time?

A volunteer's whole session, as `join` starts it, against a coordinator and another volunteer on loopback: reading the
invitation, looking at the machine, imports, connecting, the trial of the microbatch beside the download, the first
microbatch, the first global step with its samples. By turns with the same session whose worker is only started when it
is known what it has to do: what the overlap of imports and preparation saves.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import local_copies
from dedloc_kit.events import AnyEvent, Joined, LocalProgress, State, StepDone
from dedloc_kit.machine.home import home
from dedloc_kit.organizer.launch import Coordinator
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.session.supervisor import Notice, Supervisor
from dedloc_kit.session.training_session import TrainingSession
from dedloc_kit.worker import Worker

_PHASES = (
    "invitation, account, machine, imports",
    "connecting",
    "microbatch trial beside the download",
    "first microbatch",
    "first step with my samples",
)
_DEADLINE = 180.0
_SETTINGS = {"swarm_host": "127.0.0.1", "devices": "cpu", "threads": 1}


class _Timed(TrainingSession):
    """Keeps when it heard what."""

    def __init__(self, where: str, folder: Path, settings: dict[str, Any]) -> None:
        self.began, self.notices = time.monotonic(), list[tuple[float, Notice]]()
        super().__init__(where, folder=folder, settings=settings)

    def heard(self, notice: Notice) -> None:
        self.notices.append((time.monotonic() - self.began, notice))
        super().heard(notice)

    def when(self, that: Any) -> float:
        """Seconds from the cell to the first event like this."""
        end = time.monotonic() + _DEADLINE
        while time.monotonic() < end:
            found = next((seconds for seconds, notice in self.notices if that(notice)), None)
            if found is not None:
                return found
            time.sleep(0.05)
        raise SystemExit(f"the volunteer did not come so far: {self.snapshot()}")


class _Late(Supervisor):
    """Starts the worker when the job is known: nothing overlaps."""

    def _start(self) -> Worker | None:
        self._known = self._job()
        return super()._start()

    def _play(self, worker: Worker) -> int:
        worker.begin(self._known)
        return worker.wait()


def main() -> int:
    options = _parse()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-first-sample-"))
    os.environ["DEDLOC_HOME"] = str(folder / "home")  # another one knows who led this run before
    run = prepare_demo("albert-demo", home() / "demo" / "albert-demo")
    copies = local_copies(run)
    results: dict[str, list[list[float]]] = {"overlapped": [], "one after the other": []}
    try:
        with Coordinator(run, _peer(folder / "coordinator"), host="127.0.0.1", port=0, on_event=_ignore) as coordinator:
            coordinator.invitation()
            url = coordinator.dashboard.url
            other = TrainingSession(
                url, folder=folder / "other", settings={**_SETTINGS, "name": "other", "data": copies}
            )
            try:
                _wait_for_a_step(coordinator, other)
                for turn in range(options.repetitions):
                    for name in results:
                        results[name].append(
                            _measure(url, folder / f"{name} {turn}", copies, late=name != "overlapped")
                        )
            finally:
                other.leave()
                other.ended.wait(60.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _print(results)
    if options.json is not None:
        options.json.write_text(json.dumps(results))
    return 0


def _measure(url: str, folder: Path, copies: dict[str, Path], *, late: bool) -> list[float]:
    """Seconds from the cell to each mark."""
    from dedloc_kit.session import session as module

    module.Supervisor = _Late if late else Supervisor  # type: ignore[attr-defined]
    session = _Timed(url, folder, {**_SETTINGS, "name": "newcomer", "data": copies})
    try:
        return [
            session.when(lambda notice: isinstance(notice, State) and notice.text == "connecting"),
            session.when(lambda notice: isinstance(notice, State) and notice.text.startswith("loading")),
            session.when(lambda notice: isinstance(notice, Joined)),
            session.when(lambda notice: isinstance(notice, LocalProgress)),
            session.when(lambda notice: isinstance(notice, StepDone) and _mine(session, notice)),
        ]
    finally:
        session.leave()
        session.ended.wait(60.0)


def _mine(session: _Timed, step: StepDone) -> bool:
    joined = next((notice for _, notice in session.notices if isinstance(notice, Joined)), None)
    return joined is not None and step.contributions.get(joined.peer, 0) > 0


def _peer(folder: Path) -> CoordinatorConfig:
    return CoordinatorConfig(
        folder=folder, name="coordinator", swarm_host="127.0.0.1", devices="cpu", threads=1, evaluate_every=1000
    )


def _wait_for_a_step(coordinator: Coordinator, other: TrainingSession) -> None:
    from dedloc_kit.client import fetch_state

    end = time.monotonic() + _DEADLINE
    while not fetch_state(coordinator.dashboard.url).step:
        if time.monotonic() > end or other.ended.is_set():
            raise SystemExit(f"the other volunteer did not train: {other.snapshot()}")
        time.sleep(0.5)


def _print(results: dict[str, list[list[float]]]) -> None:
    print(f"{'seconds':42}{'overlapped':>24}{'one after the other':>26}")
    for number, phase in enumerate(_PHASES):
        cells = []
        for marks in results.values():
            spans = [(0.0, *each) for each in marks]
            taken = [[b - a for a, b in pairwise(each)][number] for each in spans]
            cells.append(f"{median(taken):.1f} ({min(taken):.1f}..{max(taken):.1f})")
        print(f"{phase:42}{cells[0]:>24}{cells[1]:>26}")
    trains, counts = ([[marks[at] for marks in each] for each in results.values()] for at in (3, 4))
    for name, totals in (("until it trains", trains), ("until a sample counts", counts)):
        cells = [f"{median(each):.1f} ({min(each):.1f}..{max(each):.1f})" for each in totals]
        print(f"{name:42}{cells[0]:>24}{cells[1]:>26}   ratio {median(totals[0]) / median(totals[1]):.2f}")


def _ignore(_event: AnyEvent) -> None:
    pass


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
