"""What may be asked for is there, byte for byte, and no more of it than was said."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS, Commitment


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_each_part_of_a_lot_is_what_was_committed_to(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", 2)
    parts: list[bytes | memoryview] = [b"one", b"", np.arange(5, dtype=np.float32).data]
    kept.put("round", parts)
    contents = [bytes(part) for part in parts]
    root = Commitment(contents).root
    for number, content in enumerate(contents):
        found = kept.part("round", number)
        assert found == content
        assert Commitment(contents).opening(number).shows(found, root)
    assert [kept.part("round", number) for number in (-1, 3)] == [None, None]
    assert kept.part("other", 0) is None


@pytest.mark.parametrize("lots", [1, 3, 4])
def test_so_many_lots_stay(tmp_path: Path, lots: int) -> None:
    kept = Kept(tmp_path / "kept", lots)
    for number in range(6):
        kept.put(f"{number}", [bytes([number])])
        there = [each for each in range(6) if kept.part(f"{each}", 0) == bytes([each])]
        assert there == list(range(max(0, number + 1 - lots), number + 1))


def test_only_the_newest_lots_stay_and_another_of_a_name_takes_the_place_of_the_first(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", 2)
    for number in range(10):
        kept.put(f"{number}", [bytes([number]) * 100] * 3)
        assert bytes_in(tmp_path / "kept") <= 600
    assert [kept.part(f"{number}", 2) for number in (7, 8, 9)] == [None, bytes([8]) * 100, bytes([9]) * 100]
    kept.put("8", [b"again"])
    assert [kept.part("8", 0), kept.part("8", 1), kept.part("9", 0)] == [b"again", None, bytes([9]) * 100]
    kept.put("10", [b"new"])
    assert [kept.part(name, 0) for name in ("9", "8", "10")] == [None, b"again", b"new"], "8 is newer than 9"


def test_names_are_no_paths_and_what_was_there_before_is_gone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "0").write_bytes(b"of another session")
    kept = Kept(tmp_path / "kept", 2)
    assert bytes_in(tmp_path / "kept") == 0
    kept.put("../../outside", [b"inside"])
    assert kept.part("../../outside", 0) == b"inside"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    kept.close()
    assert not (tmp_path / "kept").exists()
    assert kept.part("../../outside", 0) is None


def test_a_lot_that_cannot_be_written_leaves_nothing_behind_and_the_others_stay(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", 1)
    kept.put("good", [b"here"])

    def failing() -> Iterator[bytes]:
        yield b"some"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        kept.put("bad", failing())
    with pytest.raises(ValueError, match="at most 65536"):
        kept.put("bad", [b""] * (MAX_CONTENTS + 1))
    assert kept.part("bad", 0) is None
    assert kept.part("good", 0) == b"here"
    assert bytes_in(tmp_path / "kept") == 4


def test_files_that_were_cut_or_removed_hold_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", 2)
    for name in ("cut", "removed"):
        kept.put(name, [b"first", b"second"])
    cut, removed = sorted((tmp_path / "kept").iterdir())
    cut.write_bytes(b"firsts")
    removed.unlink()
    assert [kept.part("cut", 0), kept.part("cut", 1), kept.part("removed", 0)] == [b"first", None, None]


def test_it_is_asked_while_lots_come_and_go(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", 2)
    done = threading.Event()
    wrong: list[object] = []

    def ask() -> None:
        while not done.is_set():
            for number in range(50):
                found = kept.part(f"{number}", 1)
                if found not in (None, bytes([number]) * 1000):
                    wrong.append(found)

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(50):
        kept.put(f"{number}", [b"", bytes([number]) * 1000])
    done.set()
    asking.join()
    assert wrong == []


def test_no_lots_is_no_number_of_lots(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 lots"):
        Kept(tmp_path / "kept", 0)
