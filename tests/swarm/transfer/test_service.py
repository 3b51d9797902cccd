"""States and averages between real processes, with donors that are busy, die, stall or send nonsense."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.swarm.transfer.contents import shared_bytes
from dedloc_kit.swarm.transfer.download import MAX_VAIN_ROUNDS
from tests.swarm.harness import wait_until
from tests.swarm.transfer.swarm import ROUNDS, SIZE, Peer, Swarm


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path_factory.mktemp("peers"))
    try:
        swarm.start(False)
        swarm.start(False, False, True)
        yield swarm
    finally:
        for peer in swarm.peers:
            peer.end()


@pytest.fixture
def peers(swarm: Swarm) -> list[Peer]:
    return swarm.peers[:4]


@pytest.mark.soak
def test_a_download_is_bit_identical_and_its_progress_counts_bytes(peers: list[Peer]) -> None:
    donor, *_, client = peers
    digest = donor.has(next(ROUNDS))
    answer = client.downloads(donor)
    assert answer["result"]["digest"] == digest
    assert answer["result"]["info"]["step"] == 1
    received = [progress[0] for progress in answer["progress"]]
    assert received == sorted(received)
    assert answer["progress"][-1][0] == answer["progress"][-1][1] >= SIZE
    assert answer["warnings"] == []


@pytest.mark.soak
def test_a_question_during_a_download_is_answered_though_all_of_it_has_come_already(peers: list[Peer]) -> None:
    donor, newcomer, *_ = peers
    digest = donor.has(next(ROUNDS))
    assert newcomer.downloads(donor, question=True)["result"]["digest"] == digest


@pytest.mark.soak
def test_newcomers_at_the_same_time_share_one_snapshot_that_is_let_go_afterwards(peers: list[Peer]) -> None:
    donor, one, other, _ = peers
    digest = donor.has(next(ROUNDS), seed=2)
    before = donor.ask("tell")["snapshots"]
    donor.ask("line", free=False)
    one.begins_download(donor)
    other.begins_download(donor)
    wait_until(lambda: donor.ask("tell")["places"] == 2, "not both are being served")
    donor.ask("line", free=True)
    assert [peer.hear()["result"]["digest"] for peer in (one, other)] == [digest] * 2
    assert donor.ask("tell")["snapshots"] == before + 1
    newer = donor.has(next(ROUNDS), seed=3)
    assert one.downloads(donor)["result"]["digest"] == newer != digest
    wait_until(lambda: donor.ask("tell")["contents"] == 0, "the donor still holds a snapshot")


@pytest.mark.soak
def test_a_newcomer_goes_from_a_busy_donor_to_another_or_waits_for_it(peers: list[Peer]) -> None:
    busy, one, other, newcomer = peers
    round = next(ROUNDS)
    digest = busy.has(round)
    assert one.has(round) == digest
    busy.ask("line", free=False)
    one.begins_download(busy)
    other.begins_download(busy)
    wait_until(lambda: busy.ask("tell")["places"] == 2, "not both are being served")
    answer = newcomer.downloads(busy, one)
    assert answer["result"]["digest"] == digest
    assert answer["counts"][0] < 1000 < SIZE < answer["counts"][1]
    newcomer.begins_download(busy)
    busy.ask("line", free=True)
    assert [peer.hear()["result"]["digest"] for peer in (one, other, newcomer)] == [digest] * 3


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["dies", pytest.param("stalls", marks=pytest.mark.soak)])
def test_a_download_goes_on_elsewhere_without_starting_over(swarm: Swarm, peers: list[Peer], fault: str) -> None:
    other, newcomer = peers[0], peers[1]
    donor, round = swarm.another(), next(ROUNDS)
    digest = donor.has(round)
    donor.ask("fault", kind=fault)
    assert other.has(round) == digest
    other.ask("line", free=False)  # so that most comes from the one that fails
    newcomer.begins_download(donor, other)
    wait_until(lambda: not running(donor), "the donor has not been asked for enough to fail")
    other.ask("line", free=True)
    answer = newcomer.hear()
    donor.end()
    assert answer["result"]["digest"] == digest
    assert min(answer["counts"]) > 1_000_000
    assert sum(answer["counts"]) < 1.01 * SIZE, "nothing was fetched twice"
    assert [donor.id in warning for warning in answer["warnings"]] == [True], answer["warnings"]


@pytest.mark.soak
def test_a_download_starts_again_where_there_is_only_a_newer_version(swarm: Swarm, peers: list[Peer]) -> None:
    other, newcomer = peers[0], peers[1]
    donor = swarm.another()
    donor.has(next(ROUNDS), seed=4)
    donor.ask("fault", kind="dies")
    newest = other.has(next(ROUNDS), seed=5)
    other.ask("share", on=False)
    newcomer.begins_download(donor, other)
    wait_until(lambda: not running(donor), "the donor has not been asked for enough to die")
    other.ask("share", on=True)
    answer = newcomer.hear()
    donor.end()
    assert answer["result"]["digest"] == newest
    assert answer["counts"][0] > 1_000_000
    assert answer["counts"][1] > SIZE
    received = [progress[0] for progress in answer["progress"]]
    assert received == sorted(received), "what is shown never goes back"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("garbage header", "decoded"),
        ("endless header", "announces"),
        ("garbage metadata", "decoded"),
        ("endless metadata", "at most"),
        ("too large", "would be right"),
        ("too small", "ours has"),
        ("endless message", "announces"),
        pytest.param("says nothing but hello", "bytes in", marks=pytest.mark.soak),
    ],
)
def test_a_donor_that_sends_nonsense_is_skipped_with_a_reason(peers: list[Peer], fault: str, reason: str) -> None:
    hostile, honest, newcomer, _ = peers
    round = next(ROUNDS)
    hostile.has(round)
    digest = honest.has(round)
    hostile.ask("fault", kind=fault)
    answer = newcomer.downloads(hostile)
    assert answer["result"] is None
    assert all(reason in warning and hostile.id in warning for warning in answer["warnings"]), answer["warnings"]
    assert newcomer.downloads(hostile, honest)["result"]["digest"] == digest


@pytest.mark.soak
def test_a_donor_of_another_run_is_skipped(peers: list[Peer]) -> None:
    other, newcomer = peers[0], peers[1]
    other.has(next(ROUNDS), run="other-0123456789abcdef")
    answer = newcomer.downloads(other)
    assert answer["result"] is None
    assert "belongs to the run other-" in answer["warnings"][0]


@pytest.mark.soak
def test_streams_that_break_off_again_and_again_still_bring_the_state(peers: list[Peer]) -> None:
    donor, newcomer = peers[0], peers[1]
    digest = donor.has(next(ROUNDS))
    donor.ask("fault", kind="breaks off")
    answer = newcomer.downloads(donor)
    assert answer["result"]["digest"] == digest
    assert sum(answer["counts"]) < 1.01 * SIZE


@pytest.mark.soak
def test_a_missed_average_is_fetched_as_it_was_kept(peers: list[Peer]) -> None:
    one, other, newcomer, _ = peers
    names: list[dict[str, Any]] = [
        {"after": next(ROUNDS), "round": next(ROUNDS), "step": step, "seed": step} for step in range(17)
    ]
    for donor in (one, other):
        donor.has(next(ROUNDS))
        digests = [donor.ask("keep", **name)["digest"] for name in names]
    for name, digest in zip(names[1::5], digests[1::5], strict=True):
        assert newcomer.fetches_average(name["after"], one, other)["result"] == {"digest": digest}
    assert newcomer.fetches_average(names[0]["after"], one, other)["result"] is None, "beyond 64 MiB"
    one.ask("fault", kind="garbage content")
    answer = newcomer.fetches_average(names[1]["after"], one)
    assert answer["result"] is None
    assert "cannot be decoded" in answer["warnings"][0]


@pytest.mark.soak
def test_stop_ends_a_download_and_frees_the_place(peers: list[Peer]) -> None:
    donor, newcomer = peers[0], peers[1]
    donor.has(next(ROUNDS))
    donor.ask("line", free=False)
    newcomer.begins_download(donor)
    wait_until(lambda: donor.ask("tell")["places"] == 1, "it is not being served")
    newcomer.do("stop")
    assert newcomer.hear()["result"] is None
    wait_until(lambda: donor.ask("tell")["places"] == 0, "the donor still serves it")


@pytest.mark.soak
def test_who_does_not_share_gives_nothing(peers: list[Peer]) -> None:
    silent, newcomer = peers[0], peers[1]
    silent.has(next(ROUNDS))
    silent.ask("share", on=False)
    assert newcomer.downloads(silent)["result"] is None


@pytest.mark.soak
def test_a_donor_that_is_gone_is_asked_a_few_times(swarm: Swarm, peers: list[Peer]) -> None:
    newcomer, gone = peers[1], swarm.another()
    gone.end()
    answer = newcomer.downloads(gone)
    assert answer["result"] is None
    assert [gone.id in warning for warning in answer["warnings"]] == [True] * MAX_VAIN_ROUNDS


def test_too_little_shared_memory_is_said_in_plain_words() -> None:
    with pytest.raises(UserError, match="--shm-size"):
        shared_bytes(2**50)


def running(peer: Peer) -> bool:
    """Neither dead nor stopped."""
    try:
        state = Path(f"/proc/{peer.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "TZ"
