"""Files that are packed, or not, whatever their names say."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.packed import MAX_WINDOW
from dedloc_kit.learning.data.sources.reading import metadata_of
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.token_shards import read_token_shard
from tests.learning.data.texts import BENGALI, lines


def read(path: Path) -> list[str]:
    return list(in_order(Source(dataset=str(path)), texts, warn=pytest.fail))


def zstd(data: bytes, window: int = 17) -> bytes:
    """In one frame of one block, which is not packed.

    :param window: the logarithm of the bytes that whoever unpacks it is to keep
    """
    return bytes.fromhex("28b52ffd00") + bytes([window - 10 << 3]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


def xz(data: bytes, window: int = 2**16) -> bytes:
    """As `zstd`, but for the window, which is no logarithm."""
    packed = lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**16}])
    bits = window.bit_length() - 1
    changed = packed.replace(bytes([0x21, 1, 8]), bytes([0x21, 1, 2 * (bits - 12)]))
    header = changed[12 : 12 + 4 * changed[12] + 4]
    return changed[:12] + header[:-4] + crc(header[:-4]) + changed[12 + len(header) :]


def crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": xz,
    "zstd": zstd,
    "nothing": bytes,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.jsonl.zst"])
def test_what_a_file_is_tell_its_first_bytes_and_not_its_name(tmp_path: Path, packer: str, name: str) -> None:
    (tmp_path / name).write_bytes(PACKERS[packer](lines(BENGALI[:100])))
    assert read(tmp_path) == BENGALI[:100]


@pytest.mark.parametrize("packer", ["gzip", "bz2", "xz", "zstd"])
def test_a_file_that_is_packed_twice_is_named(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(PACKERS[packer](gzip.compress(lines(BENGALI[:100]))))
    with pytest.raises(UserError, match=rf"{path} is packed twice; unpack it once, with: (gzip|bzip2|xz|zstd) -d$"):
        read(path)


@pytest.mark.parametrize("packer", ["xz", "zstd"])
def test_a_parquet_file_that_is_packed_so_that_nobody_can_seek_in_it_is_named(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"text": BENGALI[:10]}), path)
    path.write_bytes(PACKERS[packer](path.read_bytes()))
    with pytest.raises(UserError, match=rf"{path} is packed; unpack it with: {packer} -d$"):
        read(path)


def test_a_pdf_file_is_no_text_of_an_unknown_encoding(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    with pytest.raises(UserError, match=rf"{path} is a PDF file; take its text out with: pdftotext$"):
        read(path)


def test_streams_of_xz_that_follow_each_other_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.xz"
    path.write_bytes(xz(lines(BENGALI[:10])) + bytes(70_000) + xz(lines(BENGALI[10:20])) + bytes(4))
    assert read(path) == BENGALI[:20]
    path.write_bytes(xz(lines(BENGALI[:10])) + xz(lines(BENGALI[10:20]))[:-40])
    with pytest.raises(UserError, match=rf"{path} cannot be read .*EOFError"):
        read(path)


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (zstd(lines(BENGALI[:10]), 31), "zstd -d --long=31"),
        (xz(lines(BENGALI[:10]), 4 * MAX_WINDOW), "xz -d"),
    ],
    ids=["zstd", "xz"],
)
def test_a_file_that_takes_gigabytes_to_unpack_is_named_with_the_fix(tmp_path: Path, data: bytes, fix: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"^{path} takes too much memory to unpack; unpack it with: {fix}$"):
        read(path)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 123456789\n"


@pytest.mark.parametrize("name", ["train.txt", "train.parquet", "train.jsonl.gz", "train.arrow", "train.tar"])
def test_pointers_of_git_lfs_are_named_with_the_fix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(UserError, match=rf"^{tmp_path / name} is a Git LFS pointer.*fetch it with: git lfs pull$"):
        read(tmp_path)


def test_a_pointer_in_the_place_of_tokens_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_text(POINTER)
    shard = Shard(str(tmp_path / "train.parquet"), "parquet")
    with pytest.raises(UserError, match=r"^/.*train\.parquet is a Git LFS pointer"):
        next(read_token_shard(shard, "hash", 100, pytest.fail))
    with pytest.raises(UserError, match=r"^/.*train\.parquet is a Git LFS pointer"):
        metadata_of(shard, pytest.fail)


def test_other_kinds_under_the_name_of_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    parquet.write_table(pyarrow.table({"text": BENGALI}), path)
    with pytest.raises(UserError, match=rf"^{path} is a Parquet file; rename it to \.parquet$"):
        read(path)
    path.write_bytes(b"PK\x03\x04...")
    with pytest.raises(UserError, match=f"^{path} is a ZIP archive"):
        read(path)
