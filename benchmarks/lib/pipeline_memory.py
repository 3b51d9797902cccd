"""What each process of a pipeline takes of memory, beside the whole state of the model that they train together.

A small swarm with layers so narrow that they take nothing comes first: what a process takes more with the wide ones is
the model's. Counted is what is a process's own or shared with those that it has forked; of
a file's pages, which the machine takes back when it needs room, there are the coordinator's stages on the disk.
"""

import re
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.lib.forked import processes
from benchmarks.lib.peers import Peer, start_coordinator, start_volunteer
from benchmarks.lib.wide_stages import WideStages, wide_run
from dedloc_kit.coordinator.stage_costs import expected_memory
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation

STEPS, MICROBATCHES = 3, 4
NARROW, NARROW_STAGES = 32, 2
"""A process of the same kind takes as much whatever their number."""
START_SECONDS, STEP_SECONDS, LEAVE_SECONDS = 600.0, 900.0, 300.0
_LOOK_SECONDS, _SEARCH_SECONDS = 0.05, 1.0
_SIZES = re.compile(r"^(VmHWM|VmData|RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)


class Watch(threading.Thread):
    """The most that any process of each peer has taken, at many moments.

    :ivar own: what no file has; by peer and process
    :ivar high: with the pages of files (VmHWM)
    :ivar data: what RLIMIT_DATA counts (VmData): private memory, whether it has been written to or not
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own: dict[str, dict[int, int]] = defaultdict(dict)
        self.high: dict[str, dict[int, int]] = defaultdict(dict)
        self.data: dict[str, dict[int, int]] = defaultdict(dict)
        self._peers: dict[int, str] = {}
        self._over = threading.Event()

    def add(self, peer: Peer) -> None:
        self._peers[peer.pid] = peer.name

    def run(self) -> None:
        found, due = list[tuple[str, int]](), 0.0
        while not self._over.wait(_LOOK_SECONDS):
            if time.monotonic() >= due:
                peers = self._peers.copy()
                found = [(peers[session], pid) for pid, session, _ in processes() if session in peers]
                due = time.monotonic() + _SEARCH_SECONDS
            for name, pid in found:
                with suppress(OSError):  # it has just ended
                    self._look(name, pid, Path(f"/proc/{pid}/status").read_text())

    def end(self) -> None:
        self._over.set()
        self.join()

    def _look(self, name: str, pid: int, status: str) -> None:
        sizes = {key: 1024 * int(value) for key, value in _SIZES.findall(status)}
        own = sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
        for peaks, size in ((self.own, own), (self.high, sizes.get("VmHWM", 0)), (self.data, sizes.get("VmData", 0))):
            peaks[name][pid] = max(peaks[name].get(pid, 0), size)


def memory_rows(stages: int, width: int) -> list[dict[str, Any]]:
    """Of each peer, printed at the end. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="dedloc-pipeline-") as folder:
        narrow = _watched(NARROW_STAGES, NARROW, Path(folder) / "narrow")
        wide = _watched(stages, width, Path(folder) / "wide")
    run = wide_run(stages, width, MICROBATCHES)
    costs = [expected_memory(run, WideStages(run), number) for number in range(stages)]
    state = sum(cost.held for cost in costs)
    needed = max(cost.held + cost.activations for cost in costs)
    print(f"{stages} stages, the whole state {state / 1e6:.0f} MB; of a stage with a microbatch {needed / 1e6:.0f} MB")
    rows = []
    for name in wide.own:
        kind = "stage 0" if name.startswith("stage") else name
        own, high = _beyond(wide.own[name], narrow.own[kind]), _beyond(wide.high[name], narrow.high[kind])
        rows.append({"peer": name, "own": own, "high": high, "state": state, "stage": needed})
        print(
            f"{name:12}{own / 1e6:7.0f} MB in one process ({high / 1e6:.0f} with what files have), "
            f"1/{state / own:.1f} of the state, {own / needed:.2f} of a stage"
        )
    return rows


def _beyond(wide: dict[int, int], narrow: dict[int, int]) -> int:
    """The most of a process beyond the most of one that trains nothing."""
    return max(1, max(wide.values()) - max(narrow.values()))


def _watched(stages: int, width: int, folder: Path) -> Watch:
    run, watch = wide_run(stages, width, MICROBATCHES), Watch()
    settings: dict[str, Any] = {"task_module": "benchmarks.lib.wide_stages"}
    with ExitStack() as stack:
        # Volunteers go when it says that the run is over: who left by its own count could leave it behind.
        follows: dict[str, Any] = {
            "until_step": STEPS,
            "stages_memory": 0.0,
            "checkpoint_every": 1,
            "evaluate_every": 1,
            "export": folder / "exported",
        }
        coordinator = stack.enter_context(start_coordinator(run, folder, **settings, **follows))
        watch.add(coordinator)
        watch.start()
        stack.callback(watch.end)
        invitation = Invitation.of(run, tuple(coordinator.wait_for("joined", deadline=START_SECONDS)["addresses"]))
        names: dict[str, dict[str, Any]] = {f"stage {number}": {"stage": number} for number in range(stages)}
        names["driver"] = {"drive_only": True}
        peers = [start_volunteer(invitation, folder, name, **settings, **own) for name, own in names.items()]
        for peer in peers:
            stack.enter_context(peer)
            watch.add(peer)
        coordinator.wait_for_step(STEPS, STEP_SECONDS)
        for peer in [*peers, coordinator]:
            peer.leave()
            if peer.wait(LEAVE_SECONDS):
                raise UserError(f"{peer.name} did not end well; its log is {peer.log}")
        if not list((folder / "coordinator" / "checkpoints").glob(f"*{STEPS}.safetensors")):
            raise UserError(f"there is no checkpoint of step {STEPS}")
        if not (folder / "exported").is_file():
            raise UserError("nothing was exported")
    return watch
