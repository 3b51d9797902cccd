"""Files as people have them: what arrives is what stands in them, and what is wrong costs no more than itself."""

import bz2
import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources import formats
from dedloc_kit.learning.data.sources.blocks import Blocks
from dedloc_kit.learning.data.sources.charsets import which
from dedloc_kit.learning.data.sources.data_issues import HOPELESS, Loss
from dedloc_kit.learning.data.sources.formats import json_rows
from dedloc_kit.learning.data.sources.hub_files import subsets_in
from dedloc_kit.learning.data.sources.shards import find_splits, strays
from dedloc_kit.learning.data.sources.stream import documents, in_order, texts
from dedloc_kit.learning.data.sources.tables import MAX_ROW
from tests.learning.data.texts import BENGALI, lines


def read(path: Path, warn: Callable[[str], None] = pytest.fail, **source: str) -> list[str]:
    return list(in_order(Source(dataset=str(path), **source), texts, warn=warn))  # type: ignore[arg-type]


class Told(str):
    """A warning with the numbers of that moment."""

    files: int
    unreadable: int
    rows: int


def stream(path: Path, blocks: int = 4) -> tuple[list[str], list[Told]]:
    """The documents that a volunteer reads of very little data, sorted, each once, and what it was told is lost."""
    told: list[Told] = []

    def warn(text: str) -> None:
        assert isinstance(text, Loss)
        now, losses = Told(text), text.losses
        now.files, now.unreadable, now.rows = losses.files, len(losses.unreadable), losses.bad_rows
        told.append(now)

    found = Blocks([Source(dataset=str(path))], texts, seed=0, warn=warn, checked=False).from_block(0)
    return sorted({text for block in islice(found, blocks) for text in block.items}), told


@pytest.mark.parametrize("odd", [7, 1.5, True, ["a"], {"a": 1}, [], {}], ids=repr)
@pytest.mark.parametrize("place", [0, 150, 300])
def test_a_row_of_another_type_costs_that_row_and_leaves_the_others_as_they_are(
    tmp_path: Path, odd: Any, place: int
) -> None:
    path = tmp_path / "bn.jsonl"
    path.write_bytes(lines([*BENGALI[:place], odd, *BENGALI[place:]]))
    found, told = stream(path)
    assert found == sorted(BENGALI)
    assert [(each.rows, each.unreadable) for each in told] == [(1, 0)]
    assert told[0].startswith(f"row {place + 1} of {path} is left out: it holds {type(odd).__name__}, not text")


def test_a_cut_last_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "bn.jsonl"
    path.write_bytes(lines(BENGALI)[:-30])
    found, told = stream(path)
    assert found == sorted(BENGALI[:-1])
    assert len(told) == 1
    assert f"row 300 of {path} is left out: it is no whole JSON object, and the file ends in it" in told[0]


def test_lines_that_are_no_objects_lack_the_column_or_are_no_utf8_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "bn.jsonl"
    bad = [b"oops", b"[1]", b"12", b'"text"', b'{"content": "x"}', b'{"text": "\xff"}', b"[" * 10_000, b"9" * 9_000]
    path.write_bytes(
        b"\xef\xbb\xbf" + lines(["first", None, " "]) + b"\n\n" + b"\n".join(bad) + b"\n" + lines(["last"])
    )
    found, told = stream(path)
    assert found == ["first", "last"]
    assert told[0].rows == 1
    assert told[0].startswith(f"row 6 of {path} is left out: it is no whole JSON object")
    more = tmp_path / "more.jsonl"
    more.write_bytes(lines(["first"]) + b"\n".join(bad * 2) + b"\n" + lines(["last"]))
    assert [each.rows for each in stream(more)[1]] == [1, 10], "the 1st, 10th, 100th ... of all passes together"
    more.write_bytes(b"\n".join(bad * 2) + b"\n" + lines(["last"]))
    assert [each.rows for each in stream(more)[1]] == [1, 10], "before the first good one too"


def test_of_a_file_that_is_lost_as_one_the_rows_are_not_counted_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines([*BENGALI[:150], 7, *BENGALI[150:]]))
    (tmp_path / "b.jsonl").write_bytes(b"no JSON\n" * 20)
    told = stream(tmp_path)[1]
    assert max((each.unreadable, each.rows) for each in told) == (1, 1)
    assert {each.files for each in told} == {2}


def test_bad_rows_are_counted_between_two_that_are_told_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines([*BENGALI[:100], 1, 2, *BENGALI[100:], 3]))
    (tmp_path / "b.jsonl").write_bytes(lines([*BENGALI[:150], 4, *BENGALI[150:]]))
    told: list[str] = []
    found = documents([Source(dataset=str(tmp_path))], seed=0, warn=told.append)
    assert len(list(islice(found, 1500))) == 1500, "more than two passes"
    (first,) = told
    assert isinstance(first, Loss)
    assert first.losses.bad_rows == 4


def test_an_array_of_objects_is_read_to_where_it_breaks(tmp_path: Path) -> None:
    path = tmp_path / "bn.json"
    whole = json.dumps([{"text": text} for text in BENGALI], indent=1)
    path.write_text(whole)
    assert read(path) == BENGALI
    path.write_text(whole[:-20])
    found, told = stream(path)
    assert found == sorted(BENGALI[:-1])
    assert [(each.unreadable, each.rows) for each in told] == [(1, 0)]


def test_a_blank_line_ends_a_document_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\ufeffOne line\nand another.\n\n \t\n\nA second\r\ndocument.\r\n\r\nThe last".encode())
    assert read(path) == ["One line\nand another.", "A second\ndocument.", "The last"]


def test_a_text_file_without_blank_lines_is_cut_so_that_it_fits_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_TEXT", 10)
    path = tmp_path / "book.txt"
    path.write_text("1234567\n1234567\n123\n" + "x" * 25)
    assert read(path) == ["1234567\n1234567", "123\nxxxxxxxxxx", "xxxxxxxxxx", "xxxxx"]


VALUES = ["007", "NA", "1e5", 'a "quoted" one', "x" * 200_000, "null"]
QUOTED = 'between quotes,\twith "some" and\ntwo lines'


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_table_is_read_as_it_stands_without_guessing_types(tmp_path: Path, kind: str) -> None:
    values = [*VALUES, QUOTED] if kind == "csv" else VALUES
    path = tmp_path / f"table.{kind}"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        if kind == "csv":
            csv.writer(file).writerows([["id", "text"], *([number, value] for number, value in enumerate(values))])
        else:
            file.write("".join(f"{number}\t{value}\r\n" for number, value in [("id", "text"), *enumerate(values)]))
    assert read(path) == values
    with path.open("a", newline="") as file:
        file.write("only one field\n")
    found, told = stream(path)
    assert found == sorted(values)
    line = 10 if kind == "csv" else 8
    assert told[0].startswith(f"row {line} of {path} is left out: it has 1 fields where the first line names 2")


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("lone", ['"so she said', '"so" she said', '"', '"so ""she"" said'])
def test_a_quote_that_never_ends_is_text_and_costs_no_other_row(tmp_path: Path, kind: str, lone: str) -> None:
    values = [f"sentence {number}" for number in range(100)]
    values[11] = values[40] = lone
    path = tmp_path / f"table.{kind}"
    between = "," if kind == "csv" else "\t"
    path.write_text("".join(f"{number}{between}{value}\n" for number, value in [("id", "text"), *enumerate(values)]))
    assert read(path) == values


def test_blank_lines_before_the_names_of_columns_are_no_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n\r\ntext,id\na b,1\n")
    assert read(path) == ["a b"]
    path.write_text("\n\n")
    assert read(path) == []


def test_rows_are_lost_one_by_one_where_a_quote_never_ends_and_no_fields_fit(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('id,text\n1,first\n2,"never,ends\n3,one,two\n4,"between\nquotes"\n5,"at the end\n')
    told: list[str] = []
    assert read(path, told.append) == ["first", "between\nquotes"]
    (first,) = told
    assert first.startswith(f"row 3 of {path} is left out: it has a quote that does not end")
    assert isinstance(first, Loss)
    assert first.losses.bad_rows == 3, "lines of the file"


def test_not_each_quote_that_never_ends_takes_the_time_of_all_that_follows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id,text\n" + 'y",z,"w\n' * 10_000 + "1,last\n")  # each line ends between quotes
    assert read(path, lambda _: None) == ["last"]


LONG = b"x" * (MAX_ROW + 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", b'{"text": "' + LONG + b'"}\n{"text": "last"}\n'),
        ("a.csv.gz", b'id,text\n1,"' + LONG + b'"\n2,last\n'),
        ("a.tsv.gz", b"id\ttext\n1\t" + LONG + b"\n2\tlast\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_of_many_times_its_file_is_left_out(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content, 1))
    told: list[str] = []
    assert read(tmp_path / name, told.append) == ["last"]
    assert "is left out: it is longer than 16 MiB" in told[0]


def test_a_field_of_many_lines_is_held_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'id,text\n1,"' + (b"x" * 1000 + b"\n") * 18_000 + b'"\n2,last\n', 1))
    told: list[str] = []
    assert read(path, told.append) == ["last"]
    assert "row 2 of" in told[0]
    assert "has a quote that does not end" in told[0]


def test_an_array_is_read_entry_by_entry() -> None:
    file = io.BytesIO(b"[" + b'{"text": "one"}, ' * 150_000 + b'{"text": "last"}]')
    rows = json_rows(file, ("text",))
    assert next(rows) == {"text": "one"}
    assert file.tell() < 2**21
    assert [row for row in rows if row != {"text": "one"}] == [{"text": "last"}]


def test_an_entry_of_an_array_that_is_too_long_or_never_ends_costs_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'[{"text": "first"}, {"text": "' + LONG * 3 + b'"}, {"text": "last"}]', 1))
    found, told = stream(path, blocks=1)
    assert found == ["first"]
    assert "after 1 usable rows" in told[0]
    assert "a JSON array whose entry 2 is no whole JSON object of at most 16 MiB" in told[0]
    assert (told[0].unreadable, told[0].rows) == (1, 0), "as a file, for nobody knows how many rows it had"


def packed_zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".zst", packed_zstd)]
)
@pytest.mark.parametrize("name", ["bn.jsonl", "bn.ndjson", "bn.json", "a::b #1% ক.jsonl"])
def test_packed_files_and_odd_names_are_read(
    tmp_path: Path, name: str, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / (name + suffix)
    path.write_bytes(pack(lines(BENGALI)))
    assert read(path) == read(tmp_path) == BENGALI


def test_a_packed_file_that_is_cut_costs_what_follows(tmp_path: Path) -> None:
    varied = [f"{number} {hash(str(number))}" for number in range(20_000)]
    (tmp_path / "bn.jsonl.gz").write_bytes(gzip.compress(lines(varied))[:-5000])
    found, told = stream(tmp_path)
    assert found == sorted(varied[: len(found)])
    assert 1000 < len(found) < 20_000
    assert told[-1].unreadable == 1
    assert "EOFError" in told[-1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_utf16_is_named_with_the_fix_and_not_the_internet(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    content = {"a.txt": "Some English.\n" * 9, "a.jsonl": '{"text": "Some English"}\n' * 9, "a.csv": "text\nSome\n"}
    path.write_bytes(content[name].encode(encoding))
    with pytest.raises(UserError, match=rf"{path} is UTF-16 .*iconv -f UTF-16 -t UTF-8$"):
        stream(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Это предложение номер {}, и оно достаточно длинное."),
        ("koi8_r", "Это предложение номер {}, и оно достаточно длинное."),
        ("cp932", "これは文書番号{}であり、十分に長い文です。"),
        ("gb18030", "这是第{}个文档，它足够长，可以作为一篇文章。"),
        ("cp949", "이것은 {}번째 문장이며 충분히 깁니다."),
        ("cp1253", "Αυτή είναι η πρόταση αριθμός {} και είναι αρκετά μεγάλη."),
        ("koi8_u", "Це речення номер {}, і воно досить довге. Їжак їв яблука, а ґава дивилася."),
    ],
    ids=lambda value: value if value.isascii() else "",
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.csv"])
def test_an_encoding_is_named_that_the_text_itself_tells(tmp_path: Path, encoding: str, text: str, name: str) -> None:
    values = [text.format(number) for number in range(100)]
    content = {
        "a.txt": "\n\n".join(values).encode(encoding),
        "a.jsonl.gz": gzip.compress(lines(values).decode().encode(encoding)),
        "a.csv": "\n".join(["text", *(f'"{value}"' for value in values)]).encode(encoding),
    }
    (tmp_path / name).write_bytes(content[name])
    wrong = rf"{tmp_path / name} has no usable row among 100: row \d is not UTF-8; it may be (\S+)( or \S+)*; look at"
    with pytest.raises(UserError, match=wrong) as error:
        stream(tmp_path)
    (named,) = re.findall(r"iconv -f (\S+) -t UTF-8$", str(error.value))
    assert values[0].encode(encoding).decode(named) == values[0], "what the advice makes of it"


def test_of_latin1_no_encoding_is_named_as_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("Où êtes-vous né ? Au château, à côté de l'école.\n\n" * 2).encode("latin-1"))
    with pytest.raises(
        UserError,
        match=rf"{path} has no usable row among 2: row 1 is not UTF-8; it may be CP125. or .*iconv -f CP125. ",
    ):
        stream(tmp_path)
    path.write_bytes(b"\xfd\xff\xfe\x81\x82 \xff\n" * 3)
    with pytest.raises(
        UserError, match=r"row 1 is not UTF-8; find out its encoding, and convert it with: iconv -f ENC"
    ):
        stream(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Esta é a frase número {}, não há razão para preocupações; coração e ação."),
        ("cp1252", "Die Straße Nummer {} ist länger als die übrigen; schöne Grüße aus München."),
        ("iso8859_2", "Příliš žluťoučký kůň úpěl ďábelské ódy číslo {}, a to je dost dlouhá věta."),
        ("cp1255", "זהו משפט מספר {} והוא ארוך מספיק כדי להיות מסמך שלם."),
    ],
    ids=lambda value: value if value.isascii() else "",
)
def test_of_encodings_that_are_hardly_told_apart_the_right_one_is_named(encoding: str, text: str) -> None:
    told = which("\n\n".join(text.format(number) for number in range(100)).encode(encoding))
    named = re.findall(r"(?:CP|ISO|KOI)[\w-]+", told.partition(";")[0])
    assert codecs.lookup(encoding).name in [codecs.lookup(name).name for name in named], told


def test_what_is_in_no_usual_encoding_is_not_taken_for_japanese() -> None:
    spanish = "Esta es la frase número {}, ¿cómo está usted? El niño comió piñas mañana."
    told = which("\n\n".join(spanish.format(number) for number in range(100)).encode("cp850"))
    assert told == "find out its encoding, and convert it with: iconv -f ENCODING -t UTF-8"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_half_a_character_that_is_written_as_such_becomes_a_mark(tmp_path: Path, name: str) -> None:
    """In a row of bytes that are not UTF-8 it does not."""
    path = tmp_path / name
    rows = [
        rb'{"text": "half \ud83d here"}',
        rb'{"text": "whole \uD83d\ude00"}',
        b'{"text": "bad \xff \\uD83d"}',
        rb'{"text": "\udc80"}',
    ]
    path.write_bytes(b"\n".join(rows) if name == "a.jsonl" else b"[" + b",\n".join(rows) + b"]")
    told: list[str] = []
    assert read(path, told.append) == ["half \ufffd here", "whole \U0001f600", "\ufffd"]
    (first,) = told
    assert first.startswith(f"row 3 of {path} is left out: it is not UTF-8")
    assert list(json_rows(io.BytesIO(rb'{"words": ["one", "\ud800"]}'), ("words",))) == [{"words": ["one", "\ufffd"]}]


def test_a_shard_with_another_column_costs_that_shard_and_is_counted_once(tmp_path: Path) -> None:
    for number in range(4):
        column = "content" if number == 2 else "text"
        values = [f"{number}-{row}" for row in range(10)]
        parquet.write_table(pyarrow.table({column: values}), tmp_path / f"train-{number:05d}-of-00004.parquet")
    found, told = stream(tmp_path)
    expected = {f"{number}-{row}" for number in (0, 1, 3) for row in range(10)}
    assert found == sorted(expected), "each once in every pass"
    assert [(each.files, each.unreadable, each.rows) for each in told] == [(4, 1, 0)]
    assert "train-00002-of-00004.parquet has no column 'text'; set the column to one of: content" in told[0]


def test_many_files_of_no_use_are_not_all_tried(tmp_path: Path) -> None:
    for number in range(HOPELESS + 5):
        parquet.write_table(pyarrow.table({"content": ["x"]}), tmp_path / f"{number}.parquet")
    told: list[str] = []
    with pytest.raises(UserError, match=r"no file of the dataset .* can be read: .* has no column 'text'"):
        next(documents([Source(dataset=str(tmp_path))], seed=0, warn=told.append))
    assert len(told) == HOPELESS


def test_what_save_to_disk_writes_is_read(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    both = {"train": Dataset.from_dict({"text": BENGALI}), "test": Dataset.from_dict({"text": ["held out"]})}
    DatasetDict(both).save_to_disk(tmp_path)
    assert read(tmp_path) == BENGALI
    assert read(tmp_path, split="test") == ["held out"]


LAYOUTS = {
    "names": {"bn_train.jsonl": "train", "bn_test.jsonl": "test", "wiki-dev.jsonl": "validation"},
    "folders": {"train/a.jsonl": "train", "test/a.jsonl": "test", "valid/x/y.jsonl": "validation"},
    "shards": {"data/train-00000-of-00001.parquet": "train", "data/extra-00000-of-00001.parquet": "extra"},
    "no split": {"a.txt": "train", "contest.jsonl": "train", "latest.csv": "train", "trainees.parquet": "train"},
    "mixed": {"corpus.jsonl": "train", "eval.jsonl": "test", "train.jsonl": "train"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_belong_to_the_splits_that_they_have_on_the_hub(tmp_path: Path, layout: str) -> None:
    for name in (*LAYOUTS[layout], "dataset_infos.json", "state.json", ".cache/x.jsonl", "notes.docx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = find_splits(Source(dataset=str(tmp_path)), pytest.fail)
    by_name = {str(Path(shard.path).relative_to(tmp_path)): split for split, of in found.items() for shard in of}
    assert by_name == LAYOUTS[layout]
    assert strays(Source(dataset=str(tmp_path))) == ["notes.docx"]


def test_a_split_is_also_found_by_the_name_that_it_has_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_bytes(lines(["held out"]))
    assert read(tmp_path, split="dev") == read(tmp_path, split="validation") == ["held out"]


PAIRS = [{"en": f"sentence {number}", "bn": text, "more": {"deep": text}} for number, text in enumerate(BENGALI[:50])]


def write_pairs(path: Path) -> None:
    from datasets import Dataset

    columns = {"id": list(range(50)), "translation": PAIRS}
    match path.suffix:
        case ".jsonl":
            path.write_bytes(lines(PAIRS, "translation"))
        case ".parquet":
            parquet.write_table(pyarrow.table(columns), path)
        case ".arrow":
            Dataset.from_dict(columns).save_to_disk(path.parent)


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet", "train.arrow"])
def test_a_column_within_another_one_is_named_and_read(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path / name)
    assert read(tmp_path, column="translation.bn") == BENGALI[:50]
    assert read(tmp_path, column="translation.more.deep") == BENGALI[:50]
    inner = "translation.bn, translation.en, translation.more.deep"
    for wrong in ("text", "translation.text", "translation.bn.deep"):
        with pytest.raises(UserError, match=rf"has no column '{wrong}'; set the column to one of: (id, )?{inner}$"):
            read(tmp_path, column=wrong)
    inner = "translation.en, translation.bn, translation.more.deep"
    with pytest.raises(
        UserError, match=r"holds dict, not text, in the column 'translation'; set the source's column"
    ) as e:
        read(tmp_path, column="translation")
    assert set(str(e.value).rpartition(": ")[2].split(", ")) == set(inner.split(", "))


def test_a_column_within_another_one_may_be_empty_or_lack_in_a_row(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(lines([{"bn": "one"}, None, {"bn": None}, {"en": "x"}, "text", {"bn": "two"}], "translation"))
    told: list[str] = []
    assert read(path, told.append, column="translation.bn") == ["one", "two"]
    assert told[0].startswith(f"row 4 of {path} is left out: it has no column 'translation.bn'")


def test_all_subsets_of_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("uk", "bn", "train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(lines(BENGALI))
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match=r"has no subset 'en'; set the source's subset to one of: bn, uk$"):
        read(tmp_path, subset="en")
    with pytest.raises(UserError, match=r"has no subset 'en'; leave the subset out$"):
        read(tmp_path / "uk", subset="en")


def test_all_subsets_are_found_in_what_datasets_says_of_them(tmp_path: Path) -> None:
    from datasets import load_dataset_builder

    names = [f"language-{number}" for number in range(60)]
    for name in names:
        (tmp_path / f"{name}.jsonl").write_bytes(lines([name]))
    card = "configs:\n" + "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in names)
    (tmp_path / "README.md").write_text(f"---\n{card}---\n")
    for subset in (None, "language-99"):
        with pytest.raises(ValueError, match="language-59") as error:
            load_dataset_builder(str(tmp_path), name=subset)
        assert subsets_in(error.value) == names
    assert subsets_in(ValueError("anything else")) == []
