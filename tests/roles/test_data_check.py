"""What `dedloc check` says of data: what it understood of a folder, and each thing that is wrong with its fix."""

import json
import re
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.text.conversations import conversations
from dedloc_kit.roles import data_check as module
from dedloc_kit.roles.data_check import survey
from tests.chat_runs import turns, write_rows
from tests.learning.data.texts import BENGALI, FAULTS, LONG, ODD, all_that_goes_wrong, lines
from tests.pictures import draw, encoded, write_pictures


def test_a_good_folder_is_described_and_nothing_is_odd(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(lines(LONG))
    (tmp_path / "test.jsonl").write_bytes(lines(["held out"]))
    found = survey(Source(dataset=str(tmp_path)), 60, pytest.fail)
    assert (found.odd, found.faults) == ([], [])
    mean = sum(map(len, LONG)) / 300
    assert found.lines[:2] == [
        f"{tmp_path}: files by split: test 1, train 1",
        f"{tmp_path}, train: 300 documents looked at in 1 of 1 files, {mean:.0f} characters each on average",
    ]
    assert found.lines[2:] == [f"{tmp_path}, train: begins with: {text[:80]}" for text in LONG[:3]]


def test_conversations_are_looked_at_as_they_are_read_and_may_be_short(tmp_path: Path) -> None:
    rows = [{"messages": turns(f"What is {number}?", "A number.")} for number in range(20)]
    write_rows(tmp_path / "train.jsonl", [*rows, {"messages": turns("And this?")}])
    found = survey(Source(dataset=str(tmp_path)), 60, pytest.fail, read=conversations)
    assert found.faults == []
    assert found.lines[2] == f"{tmp_path}, train: begins with: user: What is 0? assistant: A number."
    assert len(found.documents) == 20
    (odd,) = found.odd
    assert "1 of the 21 rows that were read are left out; row 21 has no assistant turn" in odd


def test_one_look_tells_all_that_is_wrong_each_in_one_line_with_the_fix(tmp_path: Path) -> None:
    all_that_goes_wrong(tmp_path)
    found = survey(Source(dataset=str(tmp_path)), 60, pytest.fail)
    assert found.lines[0] == f"{tmp_path}: files by split: test 1, train 6"
    for fault, (wrong, fix) in zip(found.faults, FAULTS, strict=True):
        assert wrong in fault
        assert fix in fault
        assert "\n" not in fault
        assert "Internet" not in fault
    for odd, words in zip(found.odd, ODD, strict=True):
        assert words in odd


def test_folders_that_are_mixed_are_odd_unless_they_are_those_of_a_split_or_chosen(tmp_path: Path) -> None:
    for language in ("bn", "en", "uk", "test"):
        (tmp_path / language).mkdir()
        (tmp_path / language / "a.jsonl").write_bytes(lines([f"{language} {text}" for text in LONG]))
    (odd,) = survey(Source(dataset=str(tmp_path)), 60, pytest.fail).odd
    assert odd.startswith(
        f"{tmp_path}: the files in the folders bn, en, uk are mixed; for those of one folder alone set"
    )
    for chosen in ({"subset": "bn"}, {"split": "test"}):
        assert survey(Source(dataset=str(tmp_path), **chosen), 60, pytest.fail).odd == []  # type: ignore[arg-type]


RUSSIAN = [
    f"Это предложение номер {number}, и оно достаточно длинное, чтобы быть документом." * 2 for number in range(40)
]


@pytest.mark.parametrize(
    ("texts", "encoding", "read_as"),
    [
        (BENGALI, "utf-8", "latin-1"),
        (RUSSIAN, "utf-8", "cp1251"),
        (RUSSIAN, "cp1251", "latin-1"),
        (RUSSIAN, "koi8_r", "cp1252"),
        (["これは文書番号であり、十分に長い文です。" * 6] * 20, "shift_jis", "latin-1"),
        (["Où êtes-vous né ? C’était l’été à l’école." * 3] * 20, "utf-8", "cp1252"),
        (["Où êtes-vous né ? C’était l’été à l’école." * 3] * 20, "utf-8", ""),
        (RUSSIAN, "utf-8", ""),
        (BENGALI, "utf-8", ""),
        (["Þetta er setning númer eitt, æ ö á ð." * 4] * 20, "utf-8", ""),
        (["Cœur naïve façade — “Übergröße” 5 €. Ÿ Ž š" * 3] * 20, "utf-8", ""),
    ],
)
def test_texts_that_were_read_in_another_encoding_are_odd(
    tmp_path: Path, texts: list[str], encoding: str, read_as: str
) -> None:
    shown = [text.encode(encoding).decode(read_as) if read_as else text for text in texts]
    (tmp_path / "train.jsonl").write_bytes(lines([text * 3 for text in shown]))
    found = survey(Source(dataset=str(tmp_path)), 60, pytest.fail)
    odd = [line for line in found.odd if "another encoding than they were written in" in line]
    assert len(odd) == bool(read_as)
    assert not found.faults


def test_characters_that_were_lost_are_odd(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(lines([text.replace("a", "\ufffd") for text in LONG]))
    (odd,) = survey(Source(dataset=str(tmp_path)), 60, pytest.fail).odd
    assert "300 of 300 documents hold U+FFFD, where a character was lost" in odd


def test_a_large_file_is_sampled_says_so_and_its_last_line_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 100)
    (tmp_path / "a.jsonl").write_bytes(lines(LONG))
    (tmp_path / "b.jsonl").write_bytes(lines(LONG)[:-30])
    found = survey(Source(dataset=str(tmp_path)), 60, pytest.fail)
    assert "200 documents looked at in 2 of 2 files" in found.lines[1]
    assert found.lines[1].endswith("not read: what follows in 2 of 2 files")
    (cut,) = found.odd
    assert "b.jsonl: 1 of the 100 rows" in cut
    assert "(the last one) is no whole JSON object: the file ends in it" in cut


def test_a_broken_picture_among_good_ones_is_odd_and_a_file_of_nothing_else_a_fault(tmp_path: Path) -> None:
    good = [encoded(draw(number)) for number in range(8)]
    write_pictures(tmp_path / "a.parquet", [*good[:4], good[0][:-100], *good[4:], None], [0] * 10)
    write_pictures(tmp_path / "b.parquet", [b"no picture"] * 3, [0] * 3)
    found = survey(Source(dataset=str(tmp_path), column="image"), 60, pytest.fail)
    (odd,), (fault,) = found.odd, found.faults
    assert odd.startswith(f"{tmp_path / 'a.parquet'}: 2 of the 10 rows that were read are left out; row 5 holds no pic")
    assert fault.startswith(f"{tmp_path / 'b.parquet'} has no usable row among 3: row 1 holds no picture")


def test_many_files_are_looked_into_within_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (tmp_path / f"{number:03d}.jsonl").write_bytes(lines(LONG))
    clock = SimpleNamespace(monotonic=partial(next, count()))  # a second passes with each look at it
    monkeypatch.setattr(module, "time", clock)
    found = survey(Source(dataset=str(tmp_path)), 300, pytest.fail)
    (looked,) = re.findall(r"documents looked at in (\d+) of 200 files", found.lines[1])
    assert 50 < int(looked) <= 100, "the clock is looked at three times or more for each"
    assert "not read: what follows in" in found.lines[1]


def test_what_is_off_by_an_order_of_magnitude_is_said_in_words(tmp_path: Path) -> None:
    escaped = tmp_path / "escaped.jsonl"
    escaped.write_bytes(lines([json.dumps(text) for text in BENGALI]))
    (spelled,) = survey(Source(dataset=str(escaped)), 60, pytest.fail).odd
    assert "300 of 300 documents spell characters" in spelled
    short = tmp_path / "lines.txt"
    short.write_text("One line.\n\n" * 50)
    assert any("9 characters a document are few" in odd for odd in survey(Source(dataset=str(short)), 60, print).odd)
    book = tmp_path / "book.txt"
    book.write_text("A line of a book without blank lines.\n" * 30_000)
    assert any("divide them, in .txt by blank lines" in odd for odd in survey(Source(dataset=str(book)), 60, print).odd)
