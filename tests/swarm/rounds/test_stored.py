"""What the coordinator puts into the run's bucket, and how peers get from there to where the swarm is."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.bucket import reading
from dedloc_kit.bucket.writing import LocalFolder
from dedloc_kit.coordinator.publishing import bucket_uploading
from dedloc_kit.coordinator.publishing.bucket_uploading import Uploader
from dedloc_kit.events import Warned
from dedloc_kit.hub import HubUnavailable
from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.orders import Instructions
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.transfer.contents import ExpectedState, StateLayout
from tests.bucket.served import Server, files, serving, status
from tests.identities import an_identity
from tests.swarm.harness import wait_until
from tests.swarm.rounds import chained
from tests.swarm.rounds.chained import BATCH, Chains, Follower, chains
from tests.tiny import tiny_run


class Coordinator(chained.Coordinator):
    """Puts what follows from its steps into a folder that a server shows."""

    def __init__(self, among: Chains, folder: Path) -> None:
        super().__init__(among, tiny_run(global_batch=BATCH, averaging={"state_bucket": "us/down"}))
        self.told = list[Warned]()
        self.writer: Any = LocalFolder(folder / "shown", self.run.run_id)
        self.shown = folder / "shown" / self.run.run_id
        self.uploader: Uploader | None = None
        self.folder = folder

    def begin(self) -> None:
        self.uploader = Uploader(self.writer, self.state, self.kept_average, self.folder, self.told.append)  # type: ignore[arg-type]

    def step(self, **values: Any) -> Commit:
        commit = super().step(**values)
        if self.uploader is not None:
            self.uploader.step_done()
        return commit

    def steps(self, times: int) -> None:
        for _ in range(times):
            self.step()

    def uploaded(self) -> bool:
        """Is all of it there?"""
        assert self.uploader is not None
        index = self.uploader._index
        return bool(index.states) and index.reaches(index.states[-1]) == self.state.step

    def find(self, name: str) -> bytes | None:
        path = self.shown / name
        return path.read_bytes() if path.is_file() else None


class Newcomer(Follower):
    """Knows what the coordinator says of itself, and has peers that it could ask."""

    coordinator: Coordinator

    def __init__(self, among: Chains, coordinator: Coordinator, signer: Signer) -> None:
        super().__init__(among, coordinator, signer)
        self.reachable = False

    @property
    def said(self) -> dict[str, Any]:
        uploader = self.coordinator.uploader
        stored = uploader.digest if uploader else ""
        return {"instructions": Instructions(paused=False, last_step=None, announcement="", stored=stored)}


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Signer]:
    """The organizer's, and a newcomer's."""
    folder = tmp_path_factory.mktemp("keys")
    return Signer(an_identity(folder / "organizer")), Signer(an_identity(folder / "newcomer"))


@pytest.fixture
def among(signers: tuple[Signer, Signer]) -> Iterator[Chains]:
    with chains(signers[0]) as made:
        yield made


@pytest.fixture
def newcomer(among: Chains, coordinator: Coordinator, server: Server, signers: tuple[Signer, Signer]) -> Newcomer:
    """Who knows the server's address."""
    return Newcomer(among, coordinator, signers[1])


@pytest.fixture
def coordinator(tmp_path: Path, among: Chains, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    monkeypatch.setattr(reading, "PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(reading, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(bucket_uploading, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(bucket_uploading, "REST", 0.0)
    found = Coordinator(among, tmp_path)
    yield found
    if found.uploader is not None:
        found.uploader.close()


@pytest.fixture
def server(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(files(coordinator.find)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


def test_a_newcomer_takes_the_state_and_the_averages_since_then_and_asks_no_peer(
    coordinator: Coordinator, newcomer: Newcomer, server: Server
) -> None:
    coordinator.steps(3)
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    coordinator.step()
    wait_until(coordinator.uploaded, "the average is not there")
    assert newcomer.catch_up.load()
    assert newcomer.is_there()
    assert newcomer.loading[-1][0] == newcomer.loading[-1][1] > 4 * coordinator.state.layout.size
    assert [receipt.step for receipt in newcomer.state.receipts] == [1, 2, 3, 4]
    coordinator.step()
    wait_until(coordinator.uploaded, "the average is not there")
    missed = newcomer.catch_up.follow()
    assert [step.receipt.step for step in missed] == [5]
    assert newcomer.is_there()
    assert not newcomer.asked
    assert not newcomer.rejected


def test_where_voters_were_replaced_a_newcomer_gets_there_by_the_bucket_and_so_does_who_was_there_before(
    coordinator: Coordinator, newcomer: Newcomer
) -> None:
    coordinator.steps(3)
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    assert newcomer.catch_up.load()
    coordinator.replace_voters()
    for _ in range(2):
        coordinator.step()
        wait_until(coordinator.uploaded, "it is not there")
        newcomer.catch_up.follow()
        assert newcomer.is_there()
    assert "state" not in newcomer.asked
    assert not newcomer.rejected


def test_the_last_two_states_stay_and_the_averages_since_the_older_and_what_others_may_be_at(
    coordinator: Coordinator,
) -> None:
    strange = coordinator.shown.parent / "not-of-the-run"
    coordinator.writer.put({"f" * 64: b"of a coordinator that died"})
    strange.write_bytes(b"")
    coordinator.step()
    coordinator.begin()
    named = list[set[str]]()
    for _ in range(20):
        wait_until(coordinator.uploaded, "it is not there")
        assert coordinator.uploader is not None
        named.append(coordinator.uploader._index.names | {coordinator.uploader.digest})
        wait_until(lambda: coordinator.writer.names() <= named[-1] | named[max(0, len(named) - 2)], "old ones stay")
        assert named[-1] | named[max(0, len(named) - 2)] <= coordinator.writer.names()
        coordinator.step()
    assert strange.exists()
    assert coordinator.uploader is not None
    index = coordinator.uploader._index
    assert len(index.states) == 2
    assert 0 < len(index.averages) < 12
    assert min(average.step for average in index.averages) == index.states[0].step + 1


def test_where_an_average_is_gone_the_state_follows_at_once(coordinator: Coordinator) -> None:
    coordinator.step()
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    coordinator.uploader, resting = None, coordinator.uploader  # it is not told of what comes
    coordinator.steps(2)
    coordinator.kept.clear()
    coordinator.uploader = resting
    coordinator.step()
    wait_until(coordinator.uploaded, "the state is not there")
    assert resting is not None
    assert [state.step for state in resting._index.states] == [1, 4]


def test_states_leave_the_line_alone_for_a_while_however_fast_the_steps_are(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_uploading, "REST", 1e9)
    coordinator.step()
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    coordinator.kept.clear()
    coordinator.steps(20)
    wait_until(lambda: coordinator.uploader is not None and not coordinator.uploader._due.is_set(), "it does nothing")
    coordinator.uploader, uploader = None, coordinator.uploader
    assert uploader is not None
    uploader.close()
    assert [state.step for state in uploader._index.states] == [1]


def test_while_the_bucket_cannot_be_written_nothing_is_named_that_is_not_there_and_then_it_follows(
    coordinator: Coordinator, newcomer: Newcomer, server: Server
) -> None:
    class Away(LocalFolder):
        def put(self, files: Any) -> None:
            if away.is_set():
                raise HubUnavailable("the Hub answers with 503")
            super().put(files)

    away = threading.Event()
    away.set()
    coordinator.writer = Away(coordinator.shown.parent, coordinator.run.run_id)
    coordinator.step()
    coordinator.begin()
    wait_until(lambda: len(coordinator.told) > 1, "nobody is told")
    assert "503" in coordinator.told[0].text
    assert not newcomer.catch_up.load()
    assert not server.asked, "the coordinator has not said that there is anything"
    coordinator.steps(2)
    away.clear()
    wait_until(coordinator.uploaded, "it does not try again")
    assert newcomer.catch_up.load()
    assert newcomer.is_there()


@pytest.mark.parametrize("kind", ["away", "other bytes", "gone"])
def test_who_gets_nothing_right_from_the_bucket_asks_peers_and_the_bucket_not_again_for_a_while(
    coordinator: Coordinator, newcomer: Newcomer, server: Server, kind: str
) -> None:
    coordinator.steps(3)
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    assert coordinator.uploader is not None
    (state,) = coordinator.uploader._index.states
    honest, before = server.answer, newcomer
    content = {chunk.digest: chunk.size for chunk in state.content}
    wrong: dict[str, Any] = {
        "away": lambda _: status(503),
        "other bytes": files({name: bytes(size) for name, size in content.items()}.get),
        "gone": lambda _: status(404),
    }
    server.answer = lambda path: wrong[kind](path) if path[-64:] in content else honest(path)
    assert not before.catch_up.load()
    asked = len(server.asked)
    assert len(before.rejected) == 1
    assert {"away": "503", "other bytes": "other bytes", "gone": "404"}[kind] in before.rejected[0]
    assert not before.catch_up.load()
    assert len(server.asked) == asked, "it was asked again"
    assert set(before.asked) == {"state"}
    assert before.state.position == Position(0, ""), "nothing has changed"
    before.catch_up._stored._not_before = 0.0
    server.answer = honest
    assert before.catch_up.load()
    assert before.is_there()


def test_a_state_of_another_size_than_ours_is_not_fetched(
    coordinator: Coordinator, newcomer: Newcomer, server: Server
) -> None:
    coordinator.step()
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    small = [torch.zeros(3)]
    expected = ExpectedState(coordinator.run.run_id, StateLayout(small).size)
    position = coordinator.state.position
    assert newcomer.catch_up._stored.state(expected, Position(0, ""), position, small) is None
    assert newcomer.rejected == ["the run's bucket gives what cannot be right (another size than ours)"]
    assert len(server.asked) == 1, "more than the index was fetched"
    assert newcomer.catch_up._stored.average_after("", 10) is None


def test_a_state_that_is_too_far_behind_the_swarm_is_left_alone(
    coordinator: Coordinator, newcomer: Newcomer, server: Server
) -> None:
    coordinator.step()
    coordinator.begin()
    wait_until(coordinator.uploaded, "the state is not there")
    coordinator.uploader, resting = None, coordinator.uploader  # it is not told of what comes
    coordinator.steps(4)
    coordinator.uploader = resting
    assert not newcomer.catch_up.load()
    assert newcomer.state.step == 0
    assert not newcomer.rejected
