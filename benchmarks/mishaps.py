"""Does a run get through an ordinary bad day? A soak: some minutes of everything at once that goes wrong for people.

A coordinator and two volunteers train on data with one bad row in a hundred and one bad shard in four, which they read
from a hub that fails 20 % of all requests, and each minute one of the two is killed. Nobody may give up or start again
without a reason, the loss must fall, and what was left out of the data must be counted right.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.request import urlopen

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import AnyEvent, Evaluated, Peers, StepDone
from dedloc_kit.organizer.launch import Coordinator
from dedloc_kit.session.snapshot import Phase
from dedloc_kit.session.training_session import TrainingSession

CHECKOUT = Path(__file__).parents[1]
HUBS = [place / "shared" / "tools" / "fakehub.py" for place in (CHECKOUT, *CHECKOUT.parents)]
"""Where a hub to try with may lie, beside the checkout."""
DATASET = "mishaps/texts"
SHARDS, BAD_SHARDS = 4, 1
GOOD_ROWS, BAD_ROWS = 990, 10
"""Over all shards that can be read. Volunteers tell of the 1st, 10th, 100th bad row."""
FAILING = 0.2
KILL_SECONDS = 60.0
LOOK_SECONDS = 0.2
HUB_SECONDS = 30.0
START_SECONDS = 240.0
END_STEPS = 5
"""So many steps at the beginning and at the end are compared."""
UPLOAD = """
import sys
from huggingface_hub import HfApi
HfApi().create_repo(sys.argv[1], repo_type="dataset", exist_ok=True)
HfApi().upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[2], repo_type="dataset")
"""
VERBS = ("sees", "carries", "paints", "finds", "follows")
THINGS = ("river", "boat", "bridge", "mill", "stone", "house", "field", "road")


@dataclass
class Seen:
    """What one volunteer's session showed."""

    name: str
    kills: int = 0
    restarts: list[str] = field(default_factory=list)
    phase: str = ""
    problem: str | None = None
    samples: int = 0


@dataclass
class Outcome:
    minutes: float
    hub_fails: bool
    volunteers: list[Seen]
    losses: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    left_out: set[tuple[int, int, int]] = field(default_factory=set)
    """Files, unreadable ones and bad rows, as the coordinator heard of them, wherever some were lost."""

    def verdicts(self) -> dict[str, bool]:
        first, last = self.losses[:END_STEPS], self.losses[-END_STEPS:]
        reasons = [reason for volunteer in self.volunteers for reason in volunteer.restarts]
        right = (SHARDS, BAD_SHARDS, BAD_ROWS)
        return {
            "every restart has a reason": all(reasons)
            and all(len(v.restarts) >= v.kills for v in self.volunteers)
            and sum("SIGKILL" in reason for reason in reasons) == sum(v.kills for v in self.volunteers),
            "no volunteer gives up": all(v.phase == "left" and v.problem is None for v in self.volunteers),
            "the loss falls": len(self.losses) >= 2 * END_STEPS
            and mean(last) < 0.8 * mean(first)
            and self.evaluations[-1] < 0.8 * self.evaluations[0],
            "what was left out is counted right": right in self.left_out
            and all(
                files == SHARDS and unreadable <= BAD_SHARDS and rows <= BAD_ROWS
                for files, unreadable, rows in self.left_out
            ),
        }


def write_data(folder: Path) -> None:
    """Shards of JSON lines; in the readable ones one row in a hundred is no text, and one shard is no JSON at all."""
    generator = random.Random(0)

    def text() -> str:
        things = generator.sample(THINGS, 2)
        return f"the {things[0]} {generator.choice(VERBS)} the {things[1]}. the {things[1]} is old."

    rows: list[object] = [text() for _ in range(GOOD_ROWS)] + list(range(BAD_ROWS))
    generator.shuffle(rows)
    folder.mkdir(parents=True)
    for number in range(SHARDS):
        path = folder / f"train-{number:05d}-of-{SHARDS:05d}.jsonl"
        if number < SHARDS - BAD_SHARDS:
            part = rows[number :: SHARDS - BAD_SHARDS]
            path.write_text("".join(json.dumps({"text": row}) + "\n" for row in part))
        else:
            path.write_bytes(b"PK\x03\x04" + generator.randbytes(5000))
    (folder / "test-00000-of-00001.jsonl").write_text("".join(json.dumps({"text": text()}) + "\n" for _ in range(100)))


@contextmanager
def failing_hub(folder: Path, data: Path) -> Iterator[bool]:
    """A hub on loopback that has the data and fails; False where there is none to try with."""
    program = next((path for path in HUBS if path.exists()), None)
    if program is None:
        print("there is no hub to try with (shared/tools/fakehub.py), so the data is read from a folder", flush=True)
        yield False
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    hub = {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "cache")}
    with (folder / "hub.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, str(program), str(port), str(folder / "hub")], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + HUB_SECONDS
        while True:
            try:
                urlopen(f"{url}/_hits", timeout=5.0).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        environment = {**os.environ, **hub, "HF_TOKEN": "anything"}
        subprocess.run([sys.executable, "-c", UPLOAD, DATASET, str(data)], env=environment, check=True)
        urlopen(f"{url}/_fail?rate={FAILING}", timeout=5.0).close()
        os.environ.update(hub)  # for the workers
        yield True
    finally:
        server.kill()
        server.wait()


def run_on(dataset: str) -> RunConfig:
    source = {"dataset": dataset}
    return parse_run(
        {
            "name": "mishaps",
            "global_batch": 64,
            "task": {"name": "bytes", "sequence_length": 48, "n_embd": 32, "n_layer": 1, "evaluation_samples": 32},
            "data": {"train": [source], "evaluation": {**source, "split": "test"}},
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 5, "total_steps": 100_000},
        }
    )


def soak(run: RunConfig, folder: Path, minutes: float, hub_fails: bool) -> Outcome:
    outcome = Outcome(minutes, hub_fails, [Seen("Asha"), Seen("Bina")])

    def heard(event: AnyEvent) -> None:
        match event:
            case StepDone(step=step) if step.loss is not None:
                outcome.losses.append(step.loss)
            case Evaluated(loss=loss):
                outcome.evaluations.append(loss)
            case Peers(peers=peers):
                lost = [(peer.files, peer.unreadable_files, peer.bad_rows) for peer in peers]
                outcome.left_out.update(each for each in lost if any(each))

    usual: dict[str, Any] = {
        "task_module": "tests.bytes_task",
        "swarm_host": "127.0.0.1",
        "devices": "cpu",
        "threads": 1,
    }
    peer = CoordinatorConfig(
        folder=folder / "coordinator", name="coordinator", evaluate_every=20, checkpoint_every=20, **usual
    )
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(run, peer, host="127.0.0.1", port=0, on_event=heard))
        coordinator.invitation()
        sessions = []
        for seen in outcome.volunteers:
            settings = {**usual, "name": seen.name, "microbatch": 4, "data": local_copies(run)}
            session = TrainingSession(coordinator.dashboard.url, folder=folder / seen.name, settings=settings)
            stack.callback(session.leave)
            sessions.append(session)
        _go_on(sessions, outcome.volunteers, minutes)
        for session, seen in zip(sessions, outcome.volunteers, strict=True):
            session.leave()
            if not session.ended.wait(START_SECONDS):
                seen.problem = "it did not leave"
            last = session.state()
            seen.phase, seen.samples = last.phase, last.session_samples
            if last.phase is Phase.FAILED:
                seen.problem = seen.problem or last.text
    return outcome


def _go_on(sessions: list[TrainingSession], volunteers: list[Seen], minutes: float) -> None:
    """Watch them for so long from the moment that both train, and kill one each minute, by turns."""
    began, turn, until = 0.0, 0, time.monotonic() + START_SECONDS
    before = [Phase.STARTING] * len(sessions)
    while time.monotonic() < until and not any(session.ended.is_set() for session in sessions):
        now = [session.state() for session in sessions]
        for number, (snapshot, seen) in enumerate(zip(now, volunteers, strict=True)):
            if snapshot.phase is Phase.RESTARTING and before[number] is not Phase.RESTARTING:
                seen.restarts.append(snapshot.text.partition(": ")[2])
                print(f"{seen.name}: {snapshot.text}", flush=True)
            before[number] = snapshot.phase
        if not began and all(snapshot.session_samples for snapshot in now):
            began = time.monotonic()
            until = began + 60.0 * minutes
        # The last one has time to come back.
        due = began and began + KILL_SECONDS * (turn + 1) <= min(time.monotonic(), until - KILL_SECONDS / 2)
        victim = turn % len(sessions)
        if due and now[victim].phase is Phase.WORKING and (worker := sessions[victim].worker) is not None:
            volunteers[victim].kills += 1
            os.kill(worker.pid, signal.SIGKILL)
            turn += 1
        time.sleep(LOOK_SECONDS)


def main() -> int:
    options = _parse()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-mishaps-"))
    write_data(folder / "data")
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # the task's module lies there
    os.environ["DEDLOC_HOME"] = str(folder / "home")  # each time it is another organizer
    with failing_hub(folder, folder / "data") as hub_fails:
        run = run_on(DATASET if hub_fails else str(folder / "data"))
        outcome = soak(run, folder, options.minutes, hub_fails)
    verdicts = outcome.verdicts()
    for seen in outcome.volunteers:
        print(f"{seen.name}: killed {seen.kills} times, started again {len(seen.restarts)} times, {seen.phase}")
    losses = outcome.losses or [float("nan")]
    print(f"{len(outcome.losses)} global steps, loss {mean(losses[:END_STEPS]):.2f} -> {mean(losses[-END_STEPS:]):.2f}")
    print(f"left out (files, unreadable, bad rows): {sorted(outcome.left_out)}")
    for seen in outcome.volunteers:
        if seen.problem is not None:
            print(f"{seen.name}: {seen.problem}")
    for what, holds in verdicts.items():
        print(f"{'holds' if holds else 'DOES NOT HOLD':14}{what}")
    if options.json is not None:
        values = {**asdict(outcome), "left_out": sorted(outcome.left_out), "verdicts": verdicts}
        options.json.write_text(json.dumps(values, indent=2) + "\n")
    if not all(verdicts.values()):
        print(f"the logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="from the moment that both volunteers train")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
