"""What a peer takes from a run's bucket, and what not, whoever serves it."""

import hashlib
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dedloc_kit.bucket import fetching, reading
from dedloc_kit.bucket.contents import Chunk, Index, Stored
from dedloc_kit.bucket.reading import MAX_ATTEMPTS, Bucket, BucketFailed
from tests.bucket.served import Server, file, files, serving, status

RUN = "tiny-0123456789abcdef"
CONTENT = {name: random.Random(name).randbytes(size) for name, size in (("one", 300_000), ("two", 17))}
CHUNKS = tuple(Chunk(digest=hashlib.sha256(part).hexdigest(), size=len(part)) for part in CONTENT.values())
BY_DIGEST = {hashlib.sha256(part).hexdigest(): part for part in CONTENT.values()}
NEVER = threading.Event()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long."""
    monkeypatch.setattr(reading, "PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(reading, "REPORT_SECONDS", 0.02)


def take(server: Server) -> bytes:
    buffer = bytearray(sum(chunk.size for chunk in CHUNKS))
    Bucket(f"{server.address}/us", RUN, trusted=[f"{server.address}/"]).read(CHUNKS, memoryview(buffer), NEVER)
    return bytes(buffer)


def test_files_come_in_their_order_and_under_their_hash_in_the_runs_folder() -> None:
    with serving(files(BY_DIGEST.get)) as server:
        assert take(server) == b"".join(CONTENT.values())
    assert sorted(server.asked) == sorted(f"/us/{RUN}/{chunk.digest}" for chunk in CHUNKS)


def test_a_bucket_of_the_hub_is_asked_as_the_hub_names_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files(BY_DIGEST.get)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        buffer = bytearray(CHUNKS[0].size)
        Bucket("us/down", RUN).read(CHUNKS[:1], memoryview(buffer), NEVER)
    assert bytes(buffer) == CONTENT["one"]
    assert server.asked == [f"/buckets/us/down/resolve/{RUN}%2F{CHUNKS[0].digest}"]


def test_where_a_server_says_that_a_file_lies_elsewhere_it_is_fetched_there() -> None:
    def answer(path: str) -> list[bytes]:
        return status(302, f"Location: /cdn{path}") if path.startswith("/us") else found(path)

    found = files(BY_DIGEST.get)
    with serving(answer) as server:
        assert take(server) == b"".join(CONTENT.values())


def test_a_server_that_fails_three_of_ten_times_still_gives_everything() -> None:
    chance, found = random.Random(3), files(BY_DIGEST.get)

    def answer(path: str) -> Iterable[bytes]:
        whole = found(path)
        ways: list[list[bytes]] = [status(503), [], [whole[0], whole[1][: len(whole[1]) // 2]]]
        return chance.choice(ways) if chance.random() < 0.3 else whole

    with serving(answer) as server:
        for _ in range(10):
            assert take(server) == b"".join(CONTENT.values())
    assert len(server.asked) > 10 * len(CHUNKS)


def test_other_bytes_of_the_same_length_are_refused_at_once_and_named() -> None:
    found = files({digest: bytes(len(part)) for digest, part in BY_DIGEST.items()}.get)
    with serving(found) as server, pytest.raises(BucketFailed, match="gives other bytes"):
        take(server)
    assert len(server.asked) <= len(CHUNKS)


def slowly(path: str) -> Iterator[bytes]:
    yield files(BY_DIGEST.get)(path)[0]
    while not NEVER.wait(0.05):
        yield b"x"


def endless(_path: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"A: b\r\n" * 1000


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (file(b"an old one"), "10 bytes where"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n"], "100000000000 bytes where"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n"], "how long"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "how long"),
        (status(401), "asks for a login"),
        (status(403), "asks for a login"),
        (status(404), "does not have"),
        (status(302, "Location: file:///etc/passwd"), "not begin with https"),
        (status(302, "Location: http://example.org/"), "not begin with https"),
        (status(302, "Location: https://127.0.0.1:9/"), "not on the Internet"),
        (status(302, "Location: https://169.254.169.254/latest/meta-data/"), "not on the Internet"),
        (status(302, "Location: https://[::ffff:10.0.0.1]/"), "not on the Internet"),
        (status(302, "Location: https://[fe80::1]:1/"), "not on the Internet"),
        (status(302, "Location: https://[::127.0.0.1]:9/"), "not on the Internet"),
        (status(302, "Location: https://[64:ff9b::10.0.0.1]:9/"), "not on the Internet"),
        (status(302, "Location: https://[2002:7f00:1::1]:9/"), "not on the Internet"),
        (status(302, "Location: /again"), "from one address to the next"),
        (status(302, "Location: https://[half/"), "cannot be right"),
        (status(302, "Location: /with space"), "cannot be right"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "no HTTP"),
    ],
)
def test_what_a_server_gives_wrongly_is_refused_at_once_and_named(answer: list[bytes], reason: str) -> None:
    with serving(lambda _: answer) as server, pytest.raises(BucketFailed, match=reason):
        take(server)
    assert len(server.asked) <= 1 + len(CHUNKS) * (fetching.MAX_REDIRECTS + 1)


@pytest.mark.parametrize(
    ("kind", "reason"), [("slow", "too slow"), ("headers", "endless headers"), ("silent", "does not answer")]
)
def test_a_server_that_trickles_or_never_ends_is_given_up(
    kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW_SECONDS", 0.5)
    monkeypatch.setattr(fetching, "HEAD_SECONDS", 0.3)

    def silence(_path: str) -> Iterator[bytes]:
        server.over.wait(60.0)
        yield b""

    answers: dict[str, Any] = {"slow": slowly, "headers": endless, "silent": silence}
    with serving(answers[kind]) as server, pytest.raises(BucketFailed, match=reason):
        take(server)


def test_a_server_that_only_fails_is_given_up_after_some_attempts() -> None:
    with serving(lambda _: status(503)) as server, pytest.raises(BucketFailed, match="answers with 503"):
        take(server)
    assert len(server.asked) <= MAX_ATTEMPTS * len(CHUNKS)


def test_who_is_told_to_stop_does_so() -> None:
    told = threading.Event()
    told.set()
    with serving(slowly) as server:
        bucket = Bucket(server.address, RUN, trusted=[server.address])
        with pytest.raises(BucketFailed, match="not needed"):
            bucket.read(CHUNKS[:1], memoryview(bytearray(CHUNKS[0].size)), told)


def index_of(run_id: str = RUN) -> Index:
    return Index(run_id=run_id, states=(Stored(step=3, round="ab", metadata=CHUNKS[1:], content=CHUNKS[:1]),))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (index_of().write(), None),
        (index_of("another-0123456789abcdef").write(), "another run"),
        (b"{}", "no index"),
        (b"[" * 100_000, "no index"),
        (bytes(4_000_001), "an index of 4000001 bytes"),
    ],
)
def test_an_index_is_believed_if_it_is_one_of_this_run(text: bytes, reason: str | None) -> None:
    digest = hashlib.sha256(text).hexdigest()
    with serving(lambda _: file(text)) as server:
        bucket = Bucket(server.address, RUN, trusted=[server.address])
        if reason is None:
            assert bucket.index(digest, NEVER) == index_of()
        else:
            with pytest.raises(BucketFailed, match=reason):
                bucket.index(digest, NEVER)
        with pytest.raises(BucketFailed, match=r"other bytes|an index of"):
            bucket.index("0" * 64, NEVER)


def test_an_index_knows_how_far_its_averages_lead() -> None:
    def average(step: int, after: str, round: str) -> Stored:
        return Stored(step=step, round=round, after=after, metadata=CHUNKS[1:], content=CHUNKS[:1])

    (state,) = index_of().states
    averages = (average(4, "ab", "ac"), average(5, "ac", "ad"), average(7, "ae", "af"), average(9, "ad", "ab"))
    assert index_of().model_copy(update={"averages": averages}).reaches(state) == 5
    assert index_of().reaches(state) == 3


def test_a_name_that_stands_for_an_address_of_this_network_is_not_connected_to() -> None:
    with pytest.raises(BucketFailed, match="not on the Internet"):
        Bucket("https://localhost:9", RUN).read(CHUNKS[:1], memoryview(bytearray(CHUNKS[0].size)), NEVER)
