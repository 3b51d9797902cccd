"""What the tests fork is a process as any other: its streams, its environment, its session, its end."""

import os
import signal
from pathlib import Path

import pytest

from tests.fork_server import Forked, said_by
from tests.swarm.harness import processes_of


@pytest.mark.soak
def test_a_forked_process_has_its_own_streams_and_environment_and_tells_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "errors").open("wb") as errors:
        right, wrong = (Forked(["json.tool", "--compact"], os.environ, errors) for _ in range(2))
        for process, text in ((wrong, b"[1, "), (right, b"[1, 2]")):
            process.stdin.write(text)
            process.stdin.close()
        base = Forked(["site", "--user-base"], {**os.environ, "PYTHONUSERBASE": "/of/this/one"}, errors)
        assert (right.stdout.read(), right.wait(30.0)) == (b"[1,2]\n", 0)
        assert (wrong.stdout.read(), wrong.wait(30.0)) == (b"", 1)
        assert base.stdout.read() == b"/of/this/one\n"
        Path("given").write_text("[3]")
        assert Forked(["json.tool", "given", "--compact"], os.environ, errors).stdout.read() == b"[3]\n"
    assert b"Expecting value" in (tmp_path / "errors").read_bytes()


@pytest.mark.soak
def test_what_is_forked_reads_the_environment_of_the_hub_itself() -> None:
    assert said_by("import sys; print('huggingface_hub' in sys.modules)") == "False\n"


@pytest.mark.soak
def test_temporary_files_of_what_is_forked_lie_where_its_own_environment_says(tmp_path: Path) -> None:
    assert said_by("import tempfile; print(tempfile.gettempdir())", TMPDIR=str(tmp_path)) == f"{tmp_path}\n"


@pytest.mark.soak
def test_a_forked_process_has_a_session_of_its_own_and_leaves_nothing_when_it_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        process = Forked(["json.tool"], os.environ, errors)
        assert processes_of(process.pid) == [process.pid]
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(30.0) == -signal.SIGKILL
        assert processes_of(process.pid, besides="") == []
        assert process.stdout.read() == b""


STARTS_ANOTHER = """
import os
from pathlib import Path
from dedloc_kit.worker import Worker
worker = Worker("volunteer", folder=Path(os.environ["FOLDER"]), on_event=lambda _: None)
print(os.getsid(worker.pid) == worker.pid, int(Path(f"/proc/{worker.pid}/stat").read_text().split()[3]) == os.getppid())
worker.stop()
"""


@pytest.mark.soak
def test_a_worker_that_a_forked_process_starts_is_forked_where_that_was(tmp_path: Path) -> None:
    assert said_by(STARTS_ANOTHER, FOLDER=str(tmp_path)) == "True True\n"


HOLDS_LOCKS = """
import gc, time
from multiprocessing.synchronize import SemLock
gc.unfreeze()
locks = [o for o in gc.get_objects() if SemLock in type(o).__mro__]
print(len(locks) > 0 and all(lock.acquire(timeout=5.0) for lock in locks), flush=True)
time.sleep(600)
"""


@pytest.mark.soak
def test_who_is_killed_while_it_holds_a_lock_stops_no_other_process(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        for _ in range(2):
            process = Forked(["timeit", "-n1", "-r1", HOLDS_LOCKS], os.environ, errors)
            assert process.stdout.readline() == b"True\n", (tmp_path / "errors").read_text()
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(30.0) == -signal.SIGKILL
