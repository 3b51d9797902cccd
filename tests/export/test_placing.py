"""An export is there as a whole or not at all, and takes the place of nothing but an earlier one."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from dedloc_kit.errors import UserError
from dedloc_kit.export.placing import check_free, clear_leftovers, placed
from dedloc_kit.export.source import Exported
from dedloc_kit.records.state import StateInfo

INFO = StateInfo(run_id="tiny-0123456789abcdef", step=7, rounds=("aa", "bb"))


def write(out: Path, text: str) -> None:
    with placed(out, INFO) as folder:
        (folder / "weights").write_text(text)


def half_written(out: Path, error: Exception) -> None:
    with placed(out) as folder:
        (folder / "weights").write_text("half")
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_an_empty_one_and_an_earlier_export_are_written_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new" / "folder", tmp_path / "empty"):
        for text in ("one", "other"):
            write(out, text)
            assert (out / "weights").read_text() == text
        assert names(out) == ["exported.json", "weights"]
        written = Exported.of(out)
        assert written is not None
        assert written.is_of(INFO)
        assert not written.is_of(INFO.model_copy(update={"rounds": ("aa",)}))
        assert out.stat().st_mode & 0o777 == 0o755
    assert names(tmp_path) == ["empty", "new"]
    assert names(tmp_path / "new") == ["folder"]


def test_what_a_person_has_put_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    write(tmp_path / "export", "ours")
    (tmp_path / "export" / "notes" / "inner").mkdir(parents=True)
    write(tmp_path / "export", "again")
    (tmp_path / "export" / "notes").mkdir()
    (tmp_path / "export" / "notes" / "mine").write_text("mine")
    write(tmp_path / "false", "ours")
    (tmp_path / "false" / "exported.json").write_text("[]")
    before = sorted(tmp_path.rglob("*"))
    for name, said in (("file", "no folder"), ("link", "no folder")):
        with pytest.raises(UserError, match=rf"/{name} is {said}; name a new one$"):
            write(tmp_path / name, "ours")
    for name in ("folder", "export", "false"):
        with pytest.raises(
            UserError, match=rf"/{name} holds something else, such as \S+; name a new folder, or remove it$"
        ):
            write(tmp_path / name, "ours")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "export" / "weights").read_text() == "again"


def test_what_comes_there_meanwhile_is_not_overwritten_either(tmp_path: Path) -> None:
    out = tmp_path / "out"
    exporting = placed(out)
    exporting.__enter__()
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        exporting.__exit__(None, None, None)
    assert names(out) == ["mine"]
    assert names(tmp_path) == ["out"]


def test_of_a_failed_export_nothing_is_left_and_the_earlier_one_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "one")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(UserError, match=r"/out cannot be written \(No space left on device\); make room on the disk"):
        half_written(out, full)
    with pytest.raises(UserError, match=r"^as it was$"), placed(out):
        raise UserError("as it was")
    with pytest.raises(RuntimeError, match="a bug"), placed(out):
        raise RuntimeError("a bug")
    with pytest.raises(KeyboardInterrupt), placed(out):
        raise KeyboardInterrupt
    assert (out / "weights").read_text() == "one"
    assert names(tmp_path) == ["out"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"/file/out cannot be written \((File exists|Not a directory)\)"):
        write(tmp_path / "file" / "out", "two")


@pytest.mark.parametrize("save", [lambda path: Tokenizer(models.BPE()).save(path), lambda path: save_file({}, path)])
def test_what_libraries_in_rust_say_of_a_disk_is_one_line(tmp_path: Path, save: Callable[[str], None]) -> None:
    said = r"^[^\n]*/out cannot be written \([^\n]*\); make room on the disk"
    with pytest.raises(UserError, match=said), placed(tmp_path / "out") as folder:
        save(str(folder / "none" / "file"))
    assert names(tmp_path) == []


def test_what_a_killed_process_has_left_is_cleared(tmp_path: Path) -> None:
    for name in (".out-abc", ".out-abc.old", ".other-abc"):
        (tmp_path / name).mkdir()
    write(tmp_path / "out", "one")
    clear_leftovers(tmp_path / "out")
    assert names(tmp_path) == [".other-abc", "out"]
    check_free(tmp_path / "out")
