"""What only its owner may read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.known_peers import MEMORY_FILE, SwarmMemory, remember
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.machine.private import open_private
from dedloc_kit.swarm.membership.admission import keep_token
from dedloc_kit.swarm.network.identity import Identity


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    """Others may read what is not said to be private."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_peer_s_folder_and_what_it_holds_of_others_are_its_owner_s_alone(tmp_path: Path) -> None:
    with peer_folder(tmp_path / "run") as folder:
        assert mode(folder) == 0o700
        identity = Identity(folder / "identity.key")
        keep_token(identity, b"a token")
        remember(folder, SwarmMemory(run_id="x-1", peers=(f"/ip4/8.8.8.8/tcp/1/p2p/{identity.peer_id}",)))
        assert mode(folder / MEMORY_FILE) == 0o600
        assert [path.name for path in folder.iterdir() if mode(path) & 0o077] == ["lock"], "which is empty"


def test_a_folder_that_somebody_made_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    with peer_folder(tmp_path / "run") as folder:
        assert mode(folder) == 0o755


def test_a_log_that_others_could_read_is_its_owner_s_alone_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with open_private(path, "a") as log:
        log.write("after\n")
    assert (mode(path), path.read_text()) == (0o600, "before\nafter\n")
