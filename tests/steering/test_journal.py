from pathlib import Path

import pytest

from dedloc_kit.records.orders import Announcement
from dedloc_kit.steering.journal import Journal


def said(text: str) -> Announcement:
    return Announcement(text=text, time=1.0)


def test_without_a_file_nothing_has_happened(tmp_path: Path) -> None:
    assert Journal(tmp_path / "log", Announcement).newest(10) == []


def test_the_newest_come_first_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log", Announcement)
    for text in ("one", "two"):
        journal.add(said(text))
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"text": "half of\n\xff\xfe\n[]\n')
    journal.add(said("three"))
    assert journal.newest(10) == [said("three"), said("two"), said("one")]
    assert journal.newest(2) == [said("three"), said("two")]


def test_what_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "none" / "log", Announcement).add(said("one"))
