"""The parts of benchmarks/chaos.py that need no swarm: the plan of faults, the timeline, the audit, the freezer."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.chaos_trial import COORDINATOR, LONGEST_FREEZE, Fault, audit, freeze, plan, remains, timeline
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.steps import Contribution, GlobalStep

RUN = "tiny-0123456789abcdef"


def test_a_plan_follows_from_its_seed_and_never_strikes_a_peer_that_is_away_nor_the_last_two() -> None:
    kinds = set()
    for seed in range(50):
        faults = plan(seed, 420.0, 4)
        assert faults == plan(seed, 420.0, 4)
        assert faults != plan(seed + 1, 420.0, 4)
        assert len(faults) > 20
        assert faults[-1].at < 420.0
        for number, fault in enumerate(faults):
            away = {other.slot for other in faults[:number] if other.at + other.seconds > fault.at}
            assert fault.slot not in away
            assert len(away) < 4 - 1, "with the one that is struck now two of five are left"
            assert 0 <= fault.slot <= 4
            assert fault.seconds <= LONGEST_FREEZE
            kinds.add((fault.kind, fault.slot == COORDINATOR))
    assert kinds == {(kind, False) for kind in ("kill", "freeze", "leave")} | {("kill", True), ("freeze", True)}


def step(number: int, at: float, group: str = "ab") -> dict[str, Any]:
    return {"event": "step", "at": at, "step": {"step": number, "round": group}}


def test_a_step_counts_when_the_first_peer_takes_it_and_twice_if_two_groups_did() -> None:
    events = [step(1, 90.0), step(2, 101.0), step(2, 109.0), step(3, 104.0), step(4, 111.0), step(4, 112.0, "cd")]
    faults = [Fault(2.0, "kill", 1, 1.0), Fault(13.0, "leave", 1, 1.0)]
    found = timeline(events, faults, 100.0, 115.0)
    assert (found["steps"], found["longest"], found["longest_from"], found["twice"]) == (4, 7.0, 4.0, [4])
    assert [fault["next_step"] for fault in found["faults"]] == [2.0, None]


def ledger(path: Path, samples: Sequence[int], in_all: int) -> Path:
    """One step, to which peers gave so much."""
    contributions = {
        f"peer{number}": Contribution(
            run_id=RUN, step=1, session="ab", samples=each, session_samples=each, loss=1.0, name="Asha", time=1e9
        )
        for number, each in enumerate(samples)
    }
    with closing(Ledger(path)) as written:
        written.record_step(
            GlobalStep(step=1, round="cd", time=1e9, samples=in_all, loss=1.0, peers=2, seconds=1.0), contributions
        )
    return path


def test_an_audit_finds_a_step_that_does_not_add_up_and_samples_that_nobody_computed(tmp_path: Path) -> None:
    right = audit(ledger(tmp_path / "right", (4, 5), 9), {"peer0": 4, "peer1": 6})
    assert (right["counted"], right["computed"], right["wrong"]) == (9, 10, [])
    assert len(audit(ledger(tmp_path / "less", (4, 5), 10), {"peer0": 4, "peer1": 5})["wrong"]) == 2
    assert audit(ledger(tmp_path / "twice", (4, 5), 9), {"peer0": 4, "peer1": 4})["wrong"] == [
        "Asha computed 4 samples, 5 count"
    ]


@pytest.mark.child
def test_a_frozen_process_goes_on_when_the_one_that_froze_it_ends_and_what_is_left_is_found(tmp_path: Path) -> None:
    command = ["sleep", "1000"]
    sleeper = subprocess.Popen(command, start_new_session=True, env={**os.environ, "BENCH_CHAOS": str(tmp_path)})
    try:
        freezer = freeze(sleeper.pid, 1000.0)
        assert os.WIFSTOPPED(os.waitpid(sleeper.pid, os.WUNTRACED)[1])
        freezer.communicate()  # the end of this process would close the pipe too
        assert os.WIFCONTINUED(os.waitpid(sleeper.pid, os.WCONTINUED)[1])
        assert [left.split() for left in remains(str(tmp_path), 0.0)] == [command]
    finally:
        os.killpg(sleeper.pid, signal.SIGKILL)
        sleeper.wait()
    assert remains(str(tmp_path), 0.0) == []
