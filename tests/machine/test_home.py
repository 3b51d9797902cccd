"""Where identities are kept, and that no two volunteers share one."""

import errno
import fcntl
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.machine import home as home_module
from dedloc_kit.machine.home import LEASE_SECONDS, home, known_copies, next_session, peer_folder, remember_copies
from tests.commands import assert_refused, launch


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DEDLOC_HOME", "COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runtime of Colab with a Drive that is not mounted yet."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.setattr(home_module, "DRIVE", tmp_path / "MyDrive")
    return tmp_path / "MyDrive"


def test_two_volunteers_on_one_machine_have_a_folder_each_and_the_same_one_in_the_next_session(tmp_path: Path) -> None:
    peers = tmp_path / "cache" / "dedloc" / "peers"
    for _ in range(2):
        with peer_folder(None) as first, peer_folder(None) as second:
            assert (first, second) == (peers / "1", peers / "2")
    assert "your total continues" in next_session(first)


def test_a_chosen_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with peer_folder(tmp_path), pytest.raises(UserError, match="--folder"), peer_folder(tmp_path):
        pass


def test_on_colab_the_identity_is_kept_in_the_drive_once_it_is_mounted(drive: Path, tmp_path: Path) -> None:
    with peer_folder(None) as folder:
        assert folder.is_relative_to(tmp_path / "cache")
        assert "mount your Google Drive" in next_session(folder)
    drive.mkdir()
    with peer_folder(None) as folder:
        assert folder == drive / "dedloc" / "peers" / "1"
        assert "continues" in next_session(folder)
    assert not (folder / "lease").exists()


def test_dedloc_home_comes_before_the_drive(drive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drive.mkdir()
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "chosen"))
    with peer_folder(None) as folder:
        assert folder == home() / "peers" / "1" == tmp_path / "chosen" / "peers" / "1"


def test_two_runtimes_with_one_drive_do_not_take_the_same_identity(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.mkdir()
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # locks do not reach the other runtime
    names = iter(["one", "other"])
    with ExitStack() as stack:
        for number in ("1", "2"):
            name = next(names)
            monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
            folder = stack.enter_context(peer_folder(None))
            assert folder.name == number
            _wait_for(folder / "lease", name)
    assert not list(drive.rglob("lease"))


def test_an_identity_is_free_again_when_its_runtime_was_lost(drive: Path) -> None:
    lease = drive / "dedloc" / "peers" / "1" / "lease"
    lease.parent.mkdir(parents=True)
    lease.write_text("lost")
    with peer_folder(None) as folder:
        assert folder.name == "2"
    os.utime(lease, (time.time() - LEASE_SECONDS - 1,) * 2)
    with peer_folder(None) as folder:
        assert folder.name == "1"


def test_a_file_system_without_locks_is_no_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with peer_folder(tmp_path / "there") as folder:
        assert folder.is_dir()


@pytest.mark.child
def test_a_second_launch_in_a_folder_is_told_that_a_launch_uses_it(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('name = "tiny"\nglobal_batch = 64\n[task]\nname = "tiny"\n[[data.train]]\ndataset = "none/none"\n')
    with peer_folder(tmp_path / "folder"):
        told = launch(run, "--folder", str(tmp_path / "folder"))
    assert_refused(told, "another launch of this run uses", "choose another folder with --folder")


def test_on_kaggle_the_key_does_not_lie_where_a_notebook_publishes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")  # from the image that Kaggle builds on
    with peer_folder(None) as folder:
        assert folder.is_relative_to(tmp_path / "cache")
    assert "DEDLOC_HOME" in next_session(folder)
    told = next_session(Path("/kaggle/working/dedloc/peers/1"))
    assert "Files only" in told
    assert "private" in told


def _wait_for(lease: Path, text: str) -> None:
    end = time.monotonic() + 10.0
    while not (lease.exists() and lease.read_text() == text):
        assert time.monotonic() < end, f"{lease} never said {text}"
        time.sleep(0.01)


def test_where_the_data_of_a_run_led_from_here_lies_is_known_for_its_organizer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "home"))
    assert known_copies("a-0123456789abcdef", "QmOrganizer") == {}
    remember_copies("a-0123456789abcdef", "QmOrganizer", {"corpus": tmp_path / "corpus"})
    assert known_copies("a-0123456789abcdef", "QmOrganizer") == {"corpus": tmp_path / "corpus"}
    assert known_copies("a-0123456789abcdef", "QmSomebodyElse") == {}, "whose run is called and made the same"
    (note,) = (path for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert note.stat().st_mode & 0o077 == 0
    note.write_text("[]")
    assert known_copies("a-0123456789abcdef", "QmOrganizer") == {}
