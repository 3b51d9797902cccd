"""What is missing around a process of ours is told in one line with the fix, before anything is started."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from dedloc_kit.cli.doctor import examine
from dedloc_kit.client import NoAnswer, fetch_invitation
from dedloc_kit.errors import UserError
from dedloc_kit.machine import preflight
from dedloc_kit.machine.home import home
from dedloc_kit.machine.preflight import obstacles
from dedloc_kit.machine.proxies import proxy_for, proxy_obstacle
from dedloc_kit.worker import Worker
from tests.fork_server import said_by

ADDRESS = "http://run.example.org:8000"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind.upper()}_PROXY", raising=False)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def assert_told(folder: Path, *words: str) -> None:
    """A worker is refused in one line, nothing of it was started, and `doctor` says the same with a fix."""
    with pytest.raises(UserError) as caught:
        Worker("volunteer", folder=folder, on_event=lambda event: None)
    assert not (folder / "logs").exists()
    told = str(caught.value)
    assert "\n" not in told
    assert "; " in told
    assert all(word in told for word in words), told
    assert [told] == list(obstacles())
    findings = [f"{finding.what}; {finding.fix}" for finding in examine(None, port=0, swarm_port=0) if finding.must]
    assert told in findings


@pytest.mark.soak
def test_a_long_path_for_temporary_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(obstacles()) == [], "this machine has what it takes"
    long = tmp_path / ("x" * preflight.MAX_TEMPORARY)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert_told(tmp_path / "peer", f"has {len(os.fsencode(long))} bytes", "set TMPDIR to a shorter one")


@pytest.mark.soak
def test_the_longest_path_is_one_that_torch_can_use_and_a_longer_one_is_not() -> None:
    share = "import torch\ntorch.multiprocessing.set_sharing_strategy('file_system')\ntorch.zeros(9).share_memory_()"
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        for more, works in ((0, True), (1, False)):
            folder = Path(base) / ("x" * (preflight.MAX_TEMPORARY + more - len(base) - 1))
            folder.mkdir()
            said_by(share, returncode=0 if works else 1, TMPDIR=str(folder))


@pytest.mark.soak
def test_little_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    real = shutil.disk_usage
    sizes = {"/dev/shm": usage(65536, 0, 65536)}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: sizes.get(str(path)) or real(path))
    assert_told(tmp_path / "peer", "0.1 MB of shared memory are free in /dev/shm", "--shm-size")


@pytest.mark.soak
def test_a_user_without_a_home_or_a_name_is_told_to_set_one(tmp_path: Path) -> None:
    code = """
import pwd, sys
from dedloc_kit.cli.main import main
def nobody(number):
    raise KeyError(number)
pwd.getpwuid = nobody  # as in a container that runs as some number
sys.exit(main(["join", "x"]))
"""
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "DEDLOC_HOME", "USER")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "no home folder" in done.stderr
    assert "set HOME" in done.stderr


@pytest.mark.soak
def test_without_a_home_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: str) -> str:
        return path

    monkeypatch.setattr(os.path, "expanduser", nobody)  # as it is for a user without HOME and name
    assert_told(tmp_path / "peer", "no home folder", "set HOME")
    monkeypatch.delenv("DEDLOC_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="set HOME"):
        home()


@pytest.mark.soak
def test_a_command_whose_standard_input_is_closed_says_what_it_would_have_asked(tmp_path: Path) -> None:
    command = f"{sys.executable} -m dedloc_kit.cli init run <&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "say which recipe with --recipe" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("http_proxy", "http://127.0.0.1:{closed}", "the proxy that http_proxy names (127.0.0.1:{closed}) does not"),
        ("http_proxy", "http://anna:secret@127.0.0.1:{closed}", "(127.0.0.1:{closed}) does not answer"),
        ("HTTP_PROXY", "127.0.0.1:{closed}", "the proxy that HTTP_PROXY names (127.0.0.1:{closed}) does not"),
        ("http_proxy", "http://:8080", "has no address such as http://HOST:PORT; put http_proxy right"),
        ("http_proxy", "http://host:port", "has no address such as http://HOST:PORT"),
        ("http_proxy", "nonsense://host:1", "has no address such as http://HOST:PORT"),
        ("ALL_PROXY", "socks5://127.0.0.1:{closed}", "the proxy that ALL_PROXY names (127.0.0.1:{closed})"),
    ],
)
def test_a_proxy_that_is_in_the_way_is_named(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = closed_port()
    monkeypatch.setenv(variable, value.format(closed=closed))
    with pytest.raises(NoAnswer) as caught:
        fetch_invitation(ADDRESS)
    told = str(caught.value)
    assert words.format(closed=closed) in told
    assert variable in told.partition("; ")[2], "the fix names it too"
    assert "secret" not in told
    assert "\n" not in told
    assert told in [f"{finding.what}; {finding.fix}" for finding in examine(ADDRESS, port=0, swarm_port=0)]


def test_a_proxy_that_is_passed_by_or_that_answers_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    assert proxy_obstacle(ADDRESS) is not None
    monkeypatch.setenv("no_proxy", "run.example.org")
    assert proxy_obstacle(ADDRESS) is None
    assert proxy_for(ADDRESS) == ""
    monkeypatch.delenv("no_proxy")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert proxy_obstacle(ADDRESS) is None
        assert proxy_for(ADDRESS) == f"the proxy that http_proxy names (127.0.0.1:{proxy.getsockname()[1]})"
