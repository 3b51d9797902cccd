"""A run's bucket as the organizer's machine writes it, and what `dedloc check` says of one."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.bucket import reading, writing
from dedloc_kit.bucket.trying import try_bucket
from dedloc_kit.bucket.writing import HubBucket, LocalFolder, Writer, put_whole
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable
from tests.loopback_hub import LoopbackHub, loopback_hub

RUN = "tiny-0123456789abcdef"
NAME = "ab" * 32


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    monkeypatch.setattr(reading, "PAUSE_SECONDS", (0.01, 0.02))
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_a_writer_knows_and_touches_the_files_of_its_run_alone(kind: str, hub: LoopbackHub, tmp_path: Path) -> None:
    def writer(run_id: str) -> Writer:
        return HubBucket("us/down", run_id) if kind == "hub" else LocalFolder(tmp_path / "shown", run_id)

    mine, others = writer(RUN), writer("another-0123456789abcdef")
    assert mine.names() == set()
    others.put({"theirs": b"x"})
    mine.put({"one": b"1", "two": memoryview(b"22")})
    mine.delete(["one", "never there"])
    mine.delete([])
    assert writer(RUN).names() == {"two"}
    assert others.names() == {"theirs"}
    found = hub.buckets["us/down"][f"{RUN}/two"] if kind == "hub" else (tmp_path / "shown" / RUN / "two").read_bytes()
    assert found == b"22"


def test_what_others_read_over_a_web_server_they_may_read(tmp_path: Path) -> None:
    LocalFolder(tmp_path, RUN).put({"one": b"1"})
    assert (tmp_path / RUN / "one").stat().st_mode & 0o444 == 0o444


def test_a_folder_that_cannot_be_written_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / RUN).write_bytes(b"in the way")
    with pytest.raises(UserError, match="let this user write there"):
        LocalFolder(tmp_path, RUN).put({"one": b"1"})


def test_a_hub_that_fails_may_work_later_and_a_token_that_may_not_write_is_told(hub: LoopbackHub) -> None:
    writer = HubBucket("us/down", RUN)
    writer.put({"one": b"1"})
    hub.failing.set()
    with pytest.raises(HubUnavailable, match="503"):
        writer.put({"two": b"2"})
    hub.failing.clear()
    hub.read_only = True
    with pytest.raises(UserError, match="does not let you write to us/down"):
        writer.put({"two": b"2"})


def test_something_large_becomes_files_of_which_some_go_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    went = list[dict[str, int]]()
    content = memoryview(random.Random(0).randbytes(10_000) + b"rest")
    chunks = put_whole(content, lambda files: went.append({name: len(part) for name, part in files.items()}))
    assert [chunk.size for chunk in chunks] == [1000] * 10 + [4]
    assert chunks[-1].digest == hashlib.sha256(b"rest").hexdigest()
    assert {name for files in went for name in files} == {chunk.digest for chunk in chunks}
    assert max(map(len, went)) <= 8


def test_a_check_says_whether_a_bucket_can_be_written_and_read_and_leaves_nothing_there(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    assert try_bucket("us/down", None, RUN) == "us/down can be written, and read by everybody"
    assert hub.buckets == {"us/down": {}}
    hub.private.add("us/down")
    assert "asks for a login (401); make the bucket a public one" in try_bucket("us/down", None, RUN)
    assert hub.buckets == {"us/down": {}}
    hub.read_only = True
    assert "us/down cannot be written: the Hub does not let you" in try_bucket("us/down", None, RUN)
    assert "state_bucket_folder in coordinator.toml" in try_bucket("https://example.org/down", None, RUN)
    told = try_bucket("https://localhost:9/down", tmp_path, RUN)
    assert "let the web server show that folder there" in told
    assert not list((tmp_path / RUN).iterdir())
