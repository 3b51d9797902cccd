"""What does the dashboard cost when a run has become large, and does anything get lost on the way to it?

A ledger of many volunteers, global steps and contributions; each answer of the API; what a first visit loads; how long
an event takes to the page; hundreds of viewers at once; an hour's events in a minute; and as many peers in the
directory. The machine's load when it began is told as well: beside other work times are worth little.
"""

import argparse
import gzip
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import requests

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Peers, PeerSeen, StepDone, parse_event
from dedloc_kit.ledger import Ledger, schema
from dedloc_kit.records.steps import Contribution, GlobalStep

CALLS = (
    *(
        "state",
        "history",
        "history?after={recent}",
        "people",
        "people?limit=500&sort=recent",
        "people?search=person%209",
    ),
    *("people/{peer}", "teams", "peers", "rounds", "timeline", "standing?peer={peer}&after=0"),
)
T = TypeVar("T")
STEP_SECONDS = 60.0
SESSIONS = 10
STEPS_PER_EVENT = 10
"""Seconds between two global steps while viewers watch: a quick run's pace."""


def make_ledger(path: Path, people: int, steps: int, contributions: int) -> dict[str, float]:
    """A ledger as a long run leaves it: some give often, most seldom. Made in bulk."""
    began, start = time.monotonic(), time.time() - steps * STEP_SECONDS
    random = np.random.default_rng(7)
    per_step = contributions // steps
    weights = np.log(1.0 / np.arange(1, people + 1) ** 0.7)
    given = np.zeros(people * SESSIONS, dtype=np.int64)
    taken = np.zeros(people * SESSIONS, dtype=np.int64)
    with closing(sqlite3.connect(path, isolation_level=None)) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        schema.prepare(ledger)
        ledger.execute("BEGIN")
        for step in range(1, steps + 1):
            # The largest of weights with Gumbel noise: a draw without replacement.
            members = np.argpartition(-(weights + random.gumbel(size=people)), per_step)[:per_step]
            parts = members * SESSIONS + step * SESSIONS // (steps + 1)
            given[parts] += 64
            taken[parts] += 1
            when = start + step * STEP_SECONDS
            loss = 2.0 + 8.0 * float(np.exp(-step / steps * 5))
            row = (step, f"{step:040x}", when, 64 * per_step, loss, per_step + 1, 2.5)
            ledger.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL, NULL)", row)
            ledger.executemany(
                "INSERT INTO contributions VALUES (?, ?, 64, ?, ?, ?)",
                [
                    (step, part + 1, total, loss, when)
                    for part, total in zip(parts.tolist(), given[parts].tolist(), strict=True)
                ],
            )
        ledger.executemany(
            "INSERT INTO parts VALUES (?, ?, ?, ?, 0, NULL, ?, ?, ?, ?)",
            [
                (n + 1, peer_id(n // SESSIONS), f"{n:x}", f"person {n // SESSIONS}", samples, count, start, start + n)
                for n, (samples, count) in enumerate(zip(given.tolist(), taken.tolist(), strict=True))
            ],
        )
        ledger.executemany(
            "INSERT INTO evaluations VALUES (?, ?, ?, '{\"masked accuracy\": 0.5}', '[]', '')",
            [(step, 3.0, start + step * STEP_SECONDS) for step in range(0, steps + 1, 10)],
        )
        _sum_up(ledger)
        visits = [
            (
                peer_id(n % people),
                f"person {n % people}",
                "NVIDIA T4",
                "client",
                start + 60.0 * n,
                start + 60.0 * n + 3600,
            )
            for n in range(people * 5 * SESSIONS)
        ]
        ledger.executemany(
            "INSERT INTO visits (peer, name, device, mode, since, until, here) VALUES (?, ?, ?, ?, ?, ?, 0)", visits
        )
        ledger.execute("UPDATE people SET seconds = 36000, team = 'team ' || (samples % 30)")
        ledger.execute("INSERT INTO devices SELECT peer, 'NVIDIA T4' FROM people")
        ledger.execute("COMMIT")
    return {"make_seconds": time.monotonic() - began, "bytes": path.stat().st_size}


def _sum_up(ledger: sqlite3.Connection) -> None:
    """Fill the running sums from what was given."""
    now = time.time()
    ledger.create_function("recent_average", 2, schema.recent_average, deterministic=True)
    ledger.execute(
        "INSERT INTO people (peer, name, samples, steps, sessions, first_seen, last_seen, recent_time)"
        " SELECT peer, max(name), sum(samples), sum(steps), count(*), min(first_seen), max(last_seen), ?"
        " FROM parts WHERE samples > 0 GROUP BY peer",
        (now,),
    )
    ledger.execute(
        f"INSERT INTO days SELECT peer, CAST(steps.time / {schema.DAY_SECONDS} AS INTEGER) AS day,"
        " sum(contributions.samples) FROM contributions JOIN parts ON parts.id = part JOIN steps USING (step)"
        " GROUP BY peer, day"
    )
    ledger.execute(
        f"UPDATE people SET recent = (SELECT total(recent_average(samples, ?1 - {schema.DAY_SECONDS} * (day + 0.5)))"
        " FROM days WHERE days.peer = people.peer)",
        (now,),
    )


def peer_id(number: int) -> str:
    return f"Qm{number:044}"


def swarm(people: int, step: int, samples: int) -> Peers:
    """Everybody is there, and has computed so much."""
    return Peers(
        peers=tuple(
            PeerSeen(
                peer=peer_id(number),
                name=f"person {number}",
                team=f"team {number % 30}",
                device="NVIDIA T4",
                step=step,
                samples=samples + number % 7,
                samples_per_second=8.0,
                upload=1e6,
                follower=False,
                client_mode=True,
            )
            for number in range(people)
        )
    )


def step_after(last: int) -> GlobalStep:
    return GlobalStep(
        step=last + 1, round=f"{last:x}", time=time.time(), samples=1280, loss=2.0, peers=21, seconds=2.5, compute=50.0
    )


class Run:
    """A coordinator that goes on with the ledger, and tells the dashboard as its process would: line by line."""

    def __init__(self, path: Path, dashboard: Dashboard, people: int) -> None:
        self.ledger, self.people = Ledger(path), people
        self._dashboard = dashboard
        self._lines = [swarm(people, self.ledger.last_step(), samples).model_dump_json() for samples in range(5)]
        self._told = 0

    def tell_peers(self) -> None:
        self._told += 1
        event = parse_event(self._lines[self._told % len(self._lines)])
        assert isinstance(event, Peers)
        self.ledger.record_presence(event.peers)
        self._dashboard.publish(event)

    def take_step(self) -> int:
        step = step_after(self.ledger.last_step())
        contributions = {
            peer_id(number): Contribution(
                run_id="scale-0123456789abcdef",
                step=step.step,
                session="ff",
                samples=64,
                session_samples=64 * step.step,
                loss=2.0,
                name=f"person {number}",
                time=step.time,
            )
            for number in range(20)
        }
        self.ledger.record_step(step, contributions)
        self._dashboard.publish(StepDone(step=step, contributions=dict.fromkeys(contributions, 64)))
        return step.step


def measure_calls(run: Run, url: str, times: int) -> dict[str, dict[str, float]]:
    """Each call after news, when it has to be made anew, and again, when it is kept."""
    found = {}
    values = {"recent": run.ledger.last_step() - 100, "peer": peer_id(0)}
    with requests.Session() as session:
        for call in CALLS:
            fresh: list[float] = []
            kept: list[float] = []
            answer: requests.Response | None = None
            for _ in range(times):
                run.take_step()
                for seconds in (fresh, kept):
                    began = time.monotonic()
                    answer = session.get(f"{url}/api/{call.format(**values)}", timeout=60)
                    seconds.append(time.monotonic() - began)
                    answer.raise_for_status()
            assert answer is not None
            found[call] = {
                "fresh": median(fresh),
                "slowest": max(fresh),
                "kept": median(kept),
                "bytes": len(answer.content),
                "gzip_bytes": len(gzip.compress(answer.content, 6)),
            }
    return found


def measure_first_paint(url: str) -> dict[str, float]:
    """What a first visit loads: the page with its files, then the state and the curves, one after the other."""
    seconds, sizes = [], {}
    for _ in range(5):
        sizes = {"page": 0, "data": 0}
        with requests.Session() as session:
            began = time.monotonic()
            page = session.get(f"{url}/", timeout=60)
            files = re.findall(r'(?:src|href)="/?(static/[^"]+\.(?:js|css))"', page.text)
            for path in ("", *files):
                sizes["page"] += _received(session, f"{url}/{path}")
            for call in ("state", "history"):
                sizes["data"] += _received(session, f"{url}/api/{call}")
            seconds.append(time.monotonic() - began)
    return {"seconds": median(seconds), **sizes}


def _received(session: requests.Session, address: str) -> int:
    """Bytes of a body as it travelled."""
    answer = session.get(address, timeout=60, stream=True)
    answer.raise_for_status()
    return len(answer.raw.read(decode_content=False))


@contextmanager
def watching(url: str, viewers: int) -> Iterator[subprocess.Popen[str]]:
    """So many viewers, in a process of their own; it says when all of them have been welcomed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lib.viewers", url, str(viewers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "watching\n", "not all viewers were let in"
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def measure_viewers(run: Run, url: str, viewers: int, seconds: int) -> dict[str, float]:
    """The processor time of this process, which serves, and what an event takes until a page has it."""

    def one_run(process: subprocess.Popen[str] | None) -> tuple[float, list[float]]:
        latencies, before, began = [], time.process_time(), time.monotonic()
        for second in range(seconds):
            time.sleep(max(0.0, began + second - time.monotonic()))
            run.tell_peers()
            if second % STEPS_PER_EVENT == 0 and process is not None:
                assert process.stdout is not None
                told, step = time.time(), run.take_step()
                for line in process.stdout:
                    seen, when = line.split()
                    if int(seen) >= step:
                        latencies.append(float(when) - told)
                        break
            elif second % STEPS_PER_EVENT == 0:
                run.take_step()
        return (time.process_time() - before) / (time.monotonic() - began), latencies

    alone, _ = one_run(None)
    with watching(url, viewers) as process:
        watched, latencies = one_run(process)
    return {
        "viewers": viewers,
        "core_share": watched,
        "core_share_without_viewers": alone,
        "event_seconds": median(latencies),
        "slowest_event_seconds": max(latencies),
    }


def measure_memory(run: Run, url: str, viewers: int, events: int) -> dict[str, float]:
    """Resident bytes after a tenth and after all of so many events, replayed as fast as they are taken."""
    with watching(url, viewers) as process:
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
        early = 0
        with requests.Session() as session:
            for number in range(events):
                run.tell_peers()
                if number % 10 == 0:
                    run.take_step()
                    session.get(f"{url}/api/people?offset={number}", timeout=60)
                if number == events // 10:
                    early = resident_bytes()
        return {"events": events, "early_bytes": early, "late_bytes": resident_bytes()}


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def show_ledger(row: dict[str, float]) -> None:
    print(f"ledger: {row['bytes'] / 1e6:.0f} MB, made in {row['make_seconds']:.1f} s")


def show_calls(calls: dict[str, dict[str, float]]) -> None:
    print(f"{'call':34}{'after news':>12}{'slowest':>12}{'kept':>12}{'bytes':>12}{'gzip':>12}")
    for call, row in calls.items():
        times = "".join(f"{1e3 * row[key]:>9.1f} ms" for key in ("fresh", "slowest", "kept"))
        print(f"{call:34}{times}{row['bytes']:>12.0f}{row['gzip_bytes']:>12.0f}")


def show_first_paint(row: dict[str, float]) -> None:
    page, data = row["page"] / 1e3, row["data"] / 1e3
    print(f"first paint: {row['seconds']:.2f} s, page {page:.0f} kB, data {data:.0f} kB, compressed")


def show_viewers(row: dict[str, float]) -> None:
    print(
        f"{row['viewers']} viewers: {row['core_share']:.0%} of a core ({row['core_share_without_viewers']:.0%} without "
        f"them); an event reaches the page after {row['event_seconds']:.2f} s, the slowest after "
        f"{row['slowest_event_seconds']:.2f} s"
    )


def show_memory(row: dict[str, float]) -> None:
    early, late = row["early_bytes"] / 1e6, row["late_bytes"] / 1e6
    print(f"memory over {row['events']} events: {early:.0f} MB after a tenth of them, {late:.0f} MB after all")


def show_directory(stands: Sequence[dict[str, Any]]) -> None:
    for row in stands:
        print(
            f"directory, {row['kind']} of {row['peers']} peers on {row['keys']} keys: stored in "
            f"{row['store_seconds']:.1f} s, collected in {row['collect_seconds']:.2f} s, {row['lost']} lost in "
            f"{row['steps']} steps, up to {row['largest_key_bytes'] / 1e3:.0f} kB under a key"
        )


class Results:
    """Tells each result as soon as it is there, and keeps it in a file if there is to be one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {"load": os.getloadavg()}
        print("load before: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()), flush=True)

    def add(self, name: str, found: T, show: Callable[[T], None]) -> None:
        self._found[name] = found
        show(found)
        sys.stdout.flush()
        if self._path is not None:
            self._path.write_text(json.dumps(self._found, indent=2) + "\n")


def main() -> int:
    options = _parse()
    results = Results(options.json)
    if options.peers:  # in a process of its own: this one is to be like that of `dedloc launch`, without hivemind
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            stands = process.submit(_measure_directory, options.peers, options.directory_steps).result()
        results.add("directory", stands, show_directory)
    with tempfile.TemporaryDirectory(prefix="dedloc-dashboard-") as folder:
        path = Path(folder) / "ledger.sqlite"
        made = make_ledger(path, options.people, options.steps, options.contributions)
        results.add("ledger", made, show_ledger)
        dashboard = Dashboard(_config(options.steps), path)
        dashboard.start()
        run = Run(path, dashboard, options.people)
        run.tell_peers()
        results.add("calls", measure_calls(run, dashboard.url, options.repeats), show_calls)
        results.add("first_paint", measure_first_paint(dashboard.url), show_first_paint)
        watched = measure_viewers(run, dashboard.url, options.viewers, options.seconds)
        results.add("viewers", watched, show_viewers)
        memory = measure_memory(run, dashboard.url, min(20, options.viewers), options.events)
        results.add("memory", memory, show_memory)
        dashboard.stop()
        run.ledger.close()
    return 0


def _measure_directory(peers: int, steps: int) -> list[dict[str, Any]]:
    from benchmarks.lib import directory

    return directory.rows(directory.measure(peers, steps))


def _config(steps: int) -> RunConfig:
    return parse_run(
        {
            "name": "scale",
            "global_batch": 1280,
            "task": {"name": "albert"},
            "data": {"train": [{"dataset": "owner/name"}]},
            "optimizer": {"total_steps": 2 * steps, "warmup_steps": 0},
        }
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--people", type=int, default=1_000, help="volunteers in the ledger, and peers that the coordinator sees")
    add("--steps", type=int, default=100_000, help="global steps in the ledger")
    add("--contributions", type=int, default=2_000_000)
    add("--repeats", type=int, default=5, help="of each call")
    add("--viewers", type=int, default=500)
    add("--seconds", type=int, default=30, help="for which they watch")
    add("--events", type=int, default=3_600, help="to replay; the coordinator tells one a second")
    add("--peers", type=int, default=1_000, help="that publish in the directory; 0 leaves this part out")
    add("--directory-steps", type=int, default=3, help="global steps for which they do")
    add("--json", type=Path, help="a file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
