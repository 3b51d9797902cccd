"""What must last is compared with what the run knows, and written anew."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from dedloc_kit.coordinator.durability import (
    COPY_FILE,
    COPY_WRITES,
    LEDGER_FILE,
    LastingRecord,
    Outage,
    check_key,
    despite_a_full_disk,
)
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.known_peers import MEMORY_FILE, SwarmMemory, remember
from dedloc_kit.learning.train.state.checkpoint import Checkpoints, Found, load
from dedloc_kit.learning.train.state.ruined import RUINED_FILE
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.swarm.network.identity import Identity

RUN = "tiny-0123456789abcdef"


def info(step: int) -> StateInfo:
    return StateInfo(run_id=RUN, step=step, rounds=())


def state(step: int) -> Found:
    return {"weights": torch.full((1000,), float(step))}, info(step)


def record(kept: LastingRecord, *steps: int, round_id: str = "ab") -> None:
    for step in steps:
        done = GlobalStep(step=step, round=round_id, time=float(step), samples=64, loss=2.0, peers=1, seconds=1.0)
        given = Contribution(
            run_id=RUN,
            step=step,
            session="a1",
            samples=64,
            session_samples=64 * step,
            loss=2.0,
            name="Asha",
            time=float(step),
        )
        kept.step(done, {"p": given})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / IDENTITY_FILE).write_bytes(b"the key")
    (tmp_path / INVITATION_FILE).write_text('{"url": "one"}')
    return tmp_path


@pytest.fixture
def kept(folder: Path) -> LastingRecord:
    record_of = LastingRecord(folder, keep=2)
    record_of.begin(info(0))
    assert record_of.lost() == [], "a run that begins has lost nothing"
    return record_of


def cut(path: Path) -> None:
    """As an editor, a script or a drive that is full leaves a file: the same one, shorter."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def put_back(path: Path) -> None:
    """An older ledger over the present one, as a backup that is played in by hand."""
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    older = path.with_name("older.sqlite")
    Ledger(older).close()
    shutil.copyfile(older, path)


def steps_in(folder: Path) -> list[int]:
    ledger = Ledger(folder / LEDGER_FILE, read_only=True)
    try:
        assert ledger.samples_total() == 64 * len(ledger.steps())
        return [step.step for step in ledger.steps()]
    finally:
        ledger.close()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("steps", [5, COPY_WRITES + 5])
def test_a_ledger_that_is_deleted_while_the_run_goes_on_is_whole_at_the_next_start(
    folder: Path, kept: LastingRecord, steps: int
) -> None:
    record(kept, *range(1, steps + 1))
    kept.evaluation(3, Evaluation(loss=1.5), 3.0)
    (folder / LEDGER_FILE).unlink()
    record(kept, steps + 1)
    kept.repair(lambda: state(steps))
    assert kept.lost() == [], "what is recorded goes on into the open file"
    kept.close()
    again = LastingRecord(folder, keep=2)
    assert again.lost() == [f"the ledger (its copy goes to step {steps + 1})"]
    assert [(point.step, point.loss) for point in again.ledger.evaluations()] == [(3, 1.5)]
    again.close()
    assert steps_in(folder) == list(range(1, steps + 2))


@pytest.mark.parametrize("how", [cut, empty])
def test_a_ledger_that_is_damaged_while_the_run_goes_on_is_told_and_taken_from_its_copy_at_the_next_start(
    folder: Path, kept: LastingRecord, how: Callable[[Path], object]
) -> None:
    record(kept, *range(1, 8))
    kept.close()
    kept = LastingRecord(folder, keep=2)
    kept.begin(info(7))
    how(folder / LEDGER_FILE)
    for step in range(8, 8 + COPY_WRITES):
        with pytest.raises(UserError, match=r"ledger\.sqlite is damaged .*; stop the coordinator and start it again"):
            record(kept, step)
    kept.close()
    again = LastingRecord(folder, keep=2)
    assert again.lost() == ["the ledger (its copy goes to step 7)"]
    again.close()
    assert steps_in(folder) == list(range(1, 8))


def break_inside(path: Path) -> None:
    """What is broken is not what is read first."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 8192)


@pytest.mark.parametrize(
    "how", [os.unlink, cut, lambda path: path.write_bytes(b"no ledger" * 99), put_back, break_inside]
)
def test_a_ledger_that_is_lost_while_the_run_rests_is_taken_from_its_copy(
    folder: Path, kept: LastingRecord, how: Callable[[Path], object]
) -> None:
    record(kept, *range(1, 8))
    kept.close()
    how(folder / LEDGER_FILE)
    again = LastingRecord(folder, keep=2)
    again.begin(info(7))
    assert again.lost() == ["the ledger (its copy goes to step 7)"]
    assert again.lost() == [], "it is told once"
    again.close()
    assert steps_in(folder) == list(range(1, 8))


def unreadable(path: Path) -> None:
    """As on a disk that fails: nothing is wrong with what cannot even be opened."""
    is_folder = path.is_dir()
    path.rename(path.with_name("elsewhere"))
    path.touch() if is_folder else path.mkdir()


def readable(path: Path) -> None:
    path.rmdir() if path.is_dir() else path.unlink()
    path.with_name("elsewhere").rename(path)


def test_a_copy_that_cannot_be_read_counts_as_nothing(folder: Path, kept: LastingRecord) -> None:
    record(kept, *range(1, 8))
    kept.close()
    unreadable(folder / "checkpoints" / COPY_FILE)
    again = LastingRecord(folder, keep=2)
    again.begin(info(7))
    assert again.lost() == []
    again.close()
    assert steps_in(folder) == list(range(1, 8))
    assert not list(folder.glob("*.damaged*")), "the ledger itself was never touched"
    assert (folder / "checkpoints" / COPY_FILE).is_file(), "there is a new copy"


@pytest.mark.parametrize("how", [os.unlink, lambda path: path.write_bytes(b"no ledger" * 99)])
def test_a_lost_ledger_is_not_begun_anew_while_its_copy_cannot_be_read(
    folder: Path, kept: LastingRecord, how: Callable[[Path], object]
) -> None:
    copy = folder / "checkpoints" / COPY_FILE
    record(kept, *range(1, 8))
    kept.close()
    how(folder / LEDGER_FILE)
    unreadable(copy)
    with pytest.raises(UserError, match=f"{COPY_FILE}: the ledger cannot be read.*check the disk"):
        LastingRecord(folder, keep=2)
    readable(copy)
    again = LastingRecord(folder, keep=2)
    assert again.lost() == ["the ledger (its copy goes to step 7)"]
    again.close()
    assert steps_in(folder) == list(range(1, 8))


@pytest.mark.parametrize("name", [LEDGER_FILE, f"checkpoints/{COPY_FILE}"])
def test_a_ledger_of_an_earlier_version_is_told_and_nothing_is_moved(
    folder: Path, kept: LastingRecord, name: str
) -> None:
    record(kept, *range(1, 8))
    kept.close()
    for each in (LEDGER_FILE, f"checkpoints/{COPY_FILE}"):
        with closing(sqlite3.connect(folder / each)) as file:
            file.execute("PRAGMA journal_mode = DELETE")
    with closing(sqlite3.connect(folder / name)) as file:
        file.execute("PRAGMA user_version = 10")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{name} was made by an earlier version of dedloc_kit"):
        LastingRecord(folder, keep=2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_nothing_is_moved_before_there_is_a_whole_file_to_take_its_place(folder: Path, kept: LastingRecord) -> None:
    record(kept, *range(1, 8))
    kept.close()
    put_back(folder / LEDGER_FILE)
    before = (folder / LEDGER_FILE).read_bytes()
    (folder / f".{LEDGER_FILE}.tmp").mkdir()  # no new file can be written, as on a full disk
    with pytest.raises(UserError, match="written anew"):
        LastingRecord(folder, keep=2)
    assert (folder / LEDGER_FILE).read_bytes() == before
    assert not list(folder.glob("*.damaged*"))


@pytest.mark.parametrize("without_copy", [False, True])
def test_a_ledger_that_was_set_aside_though_it_was_whole_is_taken_back(
    folder: Path, kept: LastingRecord, without_copy: bool
) -> None:
    record(kept, *range(1, COPY_WRITES + 3))
    kept.ledger.close()  # killed: nothing more is copied
    (folder / LEDGER_FILE).rename(folder / f"{LEDGER_FILE}.damaged")
    if without_copy:
        (folder / "checkpoints" / COPY_FILE).unlink()
    again = LastingRecord(folder, keep=2)
    assert again.lost() == [f"the ledger ({LEDGER_FILE}.damaged goes to step {COPY_WRITES + 2})"]
    again.begin(info(COPY_WRITES + 2))
    record(again, COPY_WRITES + 3)
    again.close()
    assert steps_in(folder) == list(range(1, COPY_WRITES + 4))


def test_what_was_set_aside_is_not_taken_back_if_it_is_damaged_or_of_a_history_that_was_forgotten(
    folder: Path, kept: LastingRecord
) -> None:
    record(kept, *range(1, 10))
    kept.ledger.copy(folder / f"{LEDGER_FILE}.damaged")
    (folder / f"{LEDGER_FILE}.damaged.1").write_bytes(b"no ledger" * 99)
    record(kept, 5, round_id="cd")
    kept.close()
    again = LastingRecord(folder, keep=2)
    assert (again.lost(), again.ledger.last_step()) == ([], 5)
    again.close()


def test_a_ledger_that_is_behind_the_checkpoint_is_told_and_so_are_checkpoints_that_are_gone(
    folder: Path, kept: LastingRecord
) -> None:
    record(kept, *range(1, 4))
    kept.close()
    for state_step, told in ((4, []), (9, ["the ledger after step 3 (the checkpoint is of step 9)"])):
        again = LastingRecord(folder, keep=2)
        again.begin(info(state_step))
        assert again.lost() == told
        again.close()
    again = LastingRecord(folder, keep=2)
    again.begin(info(0))
    assert again.lost() == ["all checkpoints (the ledger goes to step 3)"]
    again.close()


def test_steps_that_were_forgotten_do_not_come_back_from_the_copy(folder: Path, kept: LastingRecord) -> None:
    record(kept, *range(1, COPY_WRITES + 3))
    record(kept, 5, round_id="cd")
    kept.ledger.close()  # killed: nothing more is copied
    again = LastingRecord(folder, keep=2)
    assert again.ledger.last_step() == 5
    again.begin(info(5))
    assert again.lost() == []
    again.close()


@pytest.mark.parametrize("how", [os.unlink, cut])
def test_a_checkpoint_that_is_gone_or_cut_off_is_told_and_the_newest_written_anew(
    folder: Path, kept: LastingRecord, how: Callable[[Path], object]
) -> None:
    for step in (1, 2, 3):
        kept.checkpoint(state(step), None)
    newest, before = kept.checkpoints.kept()
    kept.repair(lambda: state(3))
    assert kept.lost() == []
    how(before)
    kept.repair(lambda: state(3))
    assert kept.lost() == [before.name]
    how(newest)
    kept.repair(lambda: state(3))
    assert kept.lost() == ["the newest checkpoint"]
    assert load(newest)[1].step == 3
    kept.repair(lambda: state(3))
    assert kept.lost() == []
    kept.close()


@pytest.mark.parametrize("how", [os.unlink, cut, lambda path: path.write_bytes(b"another")])
@pytest.mark.parametrize("name", [IDENTITY_FILE, INVITATION_FILE, f"checkpoints/{RUINED_FILE}"])
def test_a_small_file_that_is_gone_or_damaged_is_written_anew(
    folder: Path, kept: LastingRecord, name: str, how: Callable[[Path], object]
) -> None:
    (folder / INVITATION_FILE).write_text('{"url": "two"}')  # its starter writes it again when addresses change
    kept.checkpoints.ruined.judge(7, False)
    kept.repair(lambda: state(0))
    assert kept.lost() == []
    before = (folder / name).read_bytes()
    how(folder / name)
    kept.repair(lambda: state(0))
    assert kept.lost() == [(folder / name).name]
    assert (folder / name).read_bytes() == before
    assert (folder / name).stat().st_mode & 0o077 == 0, "a key is nobody else's"
    kept.close()


def test_with_all_checkpoints_gone_it_is_still_known_which_training_had_diverged(
    folder: Path, kept: LastingRecord
) -> None:
    kept.checkpoint(state(6), None)
    kept.checkpoints.ruined.judge(4, False)
    kept.repair(lambda: state(6))
    shutil.rmtree(folder / "checkpoints")
    kept.repair(lambda: state(6))
    assert kept.lost() == [RUINED_FILE, "the newest checkpoint", "the ledger's copy"]
    kept.close()
    assert 6 in Checkpoints(folder / "checkpoints").ruined, "nothing starts from what was written there again"


def test_a_coordinator_does_not_go_on_with_another_key(tmp_path: Path) -> None:
    check_key(tmp_path)  # it has none yet
    path = tmp_path / IDENTITY_FILE
    identity = Identity(path)
    check_key(tmp_path)
    remember(tmp_path, SwarmMemory(run_id=RUN, peer=str(identity.peer_id)))
    check_key(tmp_path)
    key = path.read_bytes()
    for lost in (None, key[:100], Identity(tmp_path / "another").path.read_bytes()):
        path.unlink()
        if lost is not None:
            path.write_bytes(lost)
        with pytest.raises(UserError, match=f"volunteers follow no other; put it back.*{MEMORY_FILE}"):
            check_key(tmp_path)
        path.write_bytes(key)
    check_key(tmp_path)


def test_a_ledger_that_cannot_be_written_is_an_alert_and_so_is_its_end(folder: Path, kept: LastingRecord) -> None:
    heard = list[AnyEvent]()
    outage = Outage("the ledger", heard.append)
    unreadable(folder / "checkpoints")
    for last in (COPY_WRITES, COPY_WRITES + 1):
        with despite_a_full_disk(outage):
            record(kept, *range(1, last + 1))
    assert [getattr(event, "alert", False) for event in heard] == [True], "once"
    readable(folder / "checkpoints")
    with despite_a_full_disk(outage):
        record(kept, COPY_WRITES + 2)
    assert heard[1:] == [Warned(text="the ledger can be written again", alert=True)]
    kept.close()


def test_a_copy_that_is_gone_is_made_again(folder: Path, kept: LastingRecord) -> None:
    record(kept, 1)
    (folder / "checkpoints" / COPY_FILE).unlink()
    kept.repair(lambda: state(1))
    assert kept.lost() == ["the ledger's copy"]
    assert (folder / "checkpoints" / COPY_FILE).exists()
    kept.close()


def test_the_checkpoint_to_which_a_run_is_to_go_back_stays_though_the_newest_is_lost(kept: LastingRecord) -> None:
    for step in (1, 2):
        kept.checkpoint(state(step), None)
    kept.checkpoints.protect(1)
    kept.checkpoint(state(3), None)
    kept.checkpoints.path(3).unlink()
    kept.repair(lambda: state(4))
    kept.checkpoint(state(5), None)
    assert [load(path)[1].step for path in kept.checkpoints.kept()] == [5, 4, 1]
