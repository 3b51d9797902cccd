"""Pictures of all kinds, and files that are none."""

import io
import struct
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.images import MAX_IN_A_ROW, Encoded, decode, decoded, encoded_images
from dedloc_kit.learning.data.sources.data_issues import Loss
from dedloc_kit.learning.data.sources.shards import Shard, find_shards
from dedloc_kit.learning.data.sources.stream import in_order, shuffled
from tests.pictures import draw, encoded, striped, write_pictures

RED = Image.new("RGB", (40, 30), (250, 10, 10))


def no_warning(text: str) -> None:
    raise AssertionError(text)


def numbered(number: int) -> bytes:
    return encoded(Image.new("RGB", (4, 4), (number, 0, 0)))


def is_red(data: bytes, tolerance: int = 12) -> bool:
    pixels = decode(data, 8).astype(int)
    assert pixels.shape == (8, 8, 3)
    return bool((abs(pixels - np.array([250, 10, 10])) <= tolerance).all())


@pytest.mark.parametrize(
    "data",
    [
        encoded(RED, "PNG"),
        encoded(RED, "JPEG"),
        encoded(RED, "WEBP", lossless=True),
        encoded(RED.convert("P"), "PNG"),
        encoded(RED.convert("RGBA"), "PNG"),
        encoded(RED.convert("CMYK"), "JPEG"),
        encoded(RED.resize((1, 1)), "PNG"),
        encoded(RED.resize((1, 300)), "PNG"),
        encoded(RED.resize((20_000, 20)), "JPEG"),
    ],
    ids=["png", "jpeg", "webp", "palette", "transparent", "cmyk", "1x1", "thin", "wide"],
)
def test_any_kind_of_picture_becomes_red_green_and_blue(data: bytes) -> None:
    assert is_red(data)


@pytest.mark.parametrize(("mode", "levels"), [("L", 256), ("1", 2), ("LA", 256), ("I;16", 256)])
def test_a_picture_without_colours_keeps_its_grays(mode: str, levels: int) -> None:
    """A gray that goes from black to white in four bars."""
    bars = Image.new("L", (8, 8))
    grays = [0, 80, 160, 255] if levels > 2 else [0, 0, 255, 255]
    for number, gray in enumerate(grays):
        bars.paste(gray, (2 * number, 0, 2 * number + 2, 8))
    picture = Image.fromarray(np.asarray(bars).astype(np.uint16) * 256) if mode == "I;16" else bars.convert(mode)
    pixels = decode(encoded(picture), 8).astype(int)
    assert (pixels == pixels[..., :1]).all()
    assert abs(pixels[4, ::2, 0] - np.array(grays)).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_says(kind: str, mode: str, orientation: int) -> None:
    corner = Image.new("RGB", (96, 64))
    corner.paste((255, 255, 255), (16, 0, 48, 32))  # of the middle square
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    pixels = decode(encoded(corner.convert(mode), kind, exif=exif), 8).astype(int)
    places = {1: "top left", 2: "top right", 3: "bottom right", 4: "bottom left"}
    places |= {5: "top left", 6: "top right", 7: "bottom right", 8: "bottom left"}
    corners = {"top left": (0, 0), "top right": (0, 7), "bottom right": (7, 7), "bottom left": (7, 0)}
    assert {name for name, place in corners.items() if pixels[place].min() > 200} == {places[orientation]}


def test_a_picture_whose_exif_is_broken_is_as_it_stands() -> None:
    assert is_red(encoded(RED, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\xff"))


def test_a_picture_is_resized_whole_up_to_its_middle_square() -> None:
    wide = Image.new("RGB", (60, 20))
    wide.paste((255, 255, 255), (20, 0, 40, 20))
    assert decode(encoded(wide), 10).min() > 200, "the black sides are cut off"


@pytest.mark.parametrize("size", [9_000, 20_000])
def test_a_picture_of_many_pixels_is_refused_before_it_is_decoded(size: int) -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    claim = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    with pytest.raises(ValueError, match=r"9000 x 9000 pixels are too many|DecompressionBombError"):
        decode(claim + struct.pack(">I", 0) + b"IDAT", 8)


def test_a_jpeg_whose_coefficients_take_too_much_is_refused_though_it_would_be_read_at_an_eighth() -> None:
    data = bytearray(encoded(RED, "JPEG", progressive=True, subsampling=0))
    at = data.index(b"\xff\xc2") + 5  # where the frame says its height and width
    data[at : at + 4] = struct.pack(">HH", 12_000, 12_000)
    with pytest.raises(ValueError, match="12000 x 12000 pixels are too many"):
        decode(bytes(data), 8)


def test_a_picture_is_refused_whose_text_takes_many_times_its_file() -> None:
    texts = PngImagePlugin.PngInfo()
    for number in range(2):
        texts.add_text(f"text {number}", "x" * 900_000, zip=True)
    data = encoded(RED, "PNG", pnginfo=texts)
    assert len(data) < 5_000
    with pytest.raises(ValueError, match="Too much memory"):
        decode(data, 8)


LARGE = """
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from PIL import ExifTags, Image, PngImagePlugin
from dedloc_kit.learning.data.pictures.images import decode

file = io.BytesIO()
Image.new("L", (8000, 8000)).save(file, "PNG", compress_level=1)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda _: decode(file.getvalue(), 8), range(2)))
(most,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(most.split()[1]) // 1024)
"""


@pytest.mark.child
@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can tell the most memory that it had")
def test_large_pictures_are_decoded_one_after_the_other_whatever_the_threads() -> None:
    said = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True).stdout
    assert int(said) < 550, "MiB; one alone takes some 400 with Python, two at a time 720"


BROKEN = {
    "empty": b"",
    "text": b"no picture at all",
    "truncated": encoded(draw(0), "PNG")[:-100],
    "truncated jpeg": encoded(draw(0, 200), "JPEG")[:2000],
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_picture_raises_one_kind_of_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"holds no picture that can be decoded \((\w+Error: |none of JPEG, PNG)"):
        decode(BROKEN[name], 8)


def test_broken_pictures_are_left_out_and_counted_and_the_rest_keeps_order_and_labels(tmp_path: Path) -> None:
    files: list[bytes | None] = [numbered(0), *BROKEN.values(), None, numbered(1), *[b"x"] * 6, numbered(2)]
    path = tmp_path / "train.parquet"
    write_pictures(path, files, list(range(len(files))))
    source = Source(dataset=str(tmp_path), column="image")
    warnings: list[str] = []
    read = partial(encoded_images, label="label")
    found = list(decoded(in_order(source, read, warn=warnings.append), 4))
    assert [(int(pixels[0, 0, 0]), label) for pixels, label in found] == [(0, 0), (1, 7), (2, 14)]
    first, tenth = warnings
    assert first.startswith(f"row 2 of {path} is left out: it holds no picture that can be decoded (none of JPEG")
    assert tenth.startswith(f"10 bad rows are left out so far; row 12 of {path} is left out: it holds no picture")
    assert isinstance(tenth, Loss)
    assert tenth.losses.bad_rows == 12


def test_a_broken_picture_is_counted_once_in_all_passes_however_they_are_shuffled(tmp_path: Path) -> None:
    for name, broken in (("a", {3}), ("b", {0, 19})):
        files: list[bytes | None] = [b"x" if each in broken else numbered(each) for each in range(20)]
        write_pictures(tmp_path / f"{name}.parquet", files, [0] * 20)
    told: list[str] = []
    source = Source(dataset=str(tmp_path), column="image")
    stream = decoded(shuffled([source], encoded_images, seed=1, warn=told.append), 4)
    found = [int(pixels[0, 0, 0]) for pixels, _ in islice(stream, 5 * 37)]
    assert set(found) == set(range(20))
    (first,) = told
    assert isinstance(first, Loss)
    assert (first.losses.bad_rows, first.losses.unreadable) == (3, {})


def test_a_stream_of_nothing_but_broken_pictures_ends_with_what_to_do() -> None:
    broken = (Encoded(number, b"x", None) for number in range(2 * MAX_IN_A_ROW))
    with pytest.raises(UserError, match=r"none of the first 2048 pictures .*check the source"):
        list(decoded(broken, 8))


def test_a_path_in_the_data_is_never_opened(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train.parquet", [None], [0])
    (found,) = encoded_images(*only_shard(tmp_path), no_warning)
    assert isinstance(found, Encoded)
    assert (found.data, found.label) == (b"", None)


def only_shard(folder: Path) -> tuple[Source, Shard]:
    source = Source(dataset=str(folder), column="image")
    (shard,) = find_shards(source, no_warning)
    return source, shard


def test_a_column_that_holds_no_pictures_or_no_classes_is_named(tmp_path: Path) -> None:
    source, _ = only_shard(striped(tmp_path, 4))

    def read(column: str, label: str | None) -> None:
        wrong = source.model_copy(update={"column": column})
        list(in_order(wrong, partial(encoded_images, label=label), warn=lambda _: None))

    with pytest.raises(UserError, match=r"holds int, not pictures, in column 'label'"):
        read("label", None)
    with pytest.raises(UserError, match=r"holds dict, not classes, in column 'image'"):
        read("image", "image")
    with pytest.raises(UserError, match="no column 'colour'"):
        read("image", "colour")


def test_a_shard_of_broken_pictures_costs_that_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.learning.data.pictures.images.MAX_IN_A_ROW", 8)
    files = [Encoded(number, data, None) for number, data in enumerate([numbered(7), *[b"x"] * 100, numbered(9)])]
    found = [int(pixels[0, 0, 0]) for pixels, _ in decoded(iter(files), 4)]
    assert found == [7, 9]


def test_the_order_depends_on_the_seed_alone_however_the_threads_run(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train.parquet", [numbered(each) for each in range(100)], [0] * 100)
    source = Source(dataset=str(tmp_path), column="image")

    def order(seed: int) -> list[int]:
        files = shuffled([source], encoded_images, seed=seed, warn=no_warning)
        return [int(pixels[0, 0, 0]) for pixels, _ in islice(decoded(files, 2), 400)]

    assert order(1) == order(1) != order(2)
    assert set(order(1)) == set(range(100)), "and it goes on after the last picture"


def test_only_a_few_pictures_are_decoded_ahead_and_the_threads_end_with_the_stream() -> None:
    taken = 0

    def files() -> Iterator[Encoded]:
        nonlocal taken
        while True:
            taken += 1
            yield Encoded(taken, numbered(0), None)

    stream = decoded(files(), 4)
    for _ in range(5):
        next(stream)
    assert taken < 5 + 33
    assert isinstance(stream, Iterator)
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode") and stuck(thread)]


def stuck(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def test_pictures_come_from_a_tar_of_webdataset_too(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for number in range(3):
            for name, data in ((f"{number}.png", numbered(number)), (f"{number}.cls", str(number % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    source = Source(dataset=str(tmp_path), column="png")
    read = partial(encoded_images, label="cls")
    found = list(decoded(in_order(source, read, warn=no_warning), 4))
    assert [(int(pixels[0, 0, 0]), label) for pixels, label in found] == [(0, 0), (1, 1), (2, 0)]
