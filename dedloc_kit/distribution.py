"""The dedloc_kit that runs, as a wheel: the coordinator gives it to volunteers, so that all have the same."""

import base64
import csv
import functools
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.resources import shipped, small_conversations, small_text
from dedloc_kit.version import __version__

_PACKAGE = Path(__file__).parent
_DESCRIPTION = ("METADATA", "entry_points.txt", "licenses/LICENSE")
"""What is taken over from the installation; the other files there are about the machine that it is on."""
_RECIPE = {".toml", ".md", ".svg"}
"""Of a recipe only these: beside them an organizer may keep a corpus, a tokenizer or gigabytes of token ids."""
_OWN = "coordinator.toml"
"""Says how one machine leads a run, and what lies where on it."""
_WHEEL = b"Wheel-Version: 1.0\nGenerator: dedloc_kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Wheel:
    """An archive that pip installs; see the binary distribution format of the Python packaging guide."""

    version: str
    """The public version and a hash of the content, such as `0.1.0+h3f2a91c0`. pip takes an equal version for
    installed already, and two coordinators of one public version may run different code."""
    content: bytes

    @property
    def name(self) -> str:
        """Of the file; pip reads the version from it."""
        return f"dedloc_kit-{self.version}-py3-none-any.whl"

    @property
    def pinned(self) -> str:
        """The name with the digest of the content: pip and uv refuse anything else that is served under it."""
        return f"{self.name}#sha256={hashlib.sha256(self.content).hexdigest()}"


@functools.cache
def running_wheel() -> Wheel:
    """The wheel of this very package, whether it is installed or a checkout.

    Raises UserError if it was never installed in any way: then nobody knows what it depends on.
    """
    try:
        installed = metadata.distribution("dedloc_kit")
    except metadata.PackageNotFoundError:
        raise UserError("dedloc_kit was not installed by pip; run pip install --editable . in its folder") from None
    description = {name: text.encode() for name in _DESCRIPTION if (text := installed.read_text(name)) is not None}
    return make_wheel(package_files(), description, __version__)


def package_files() -> dict[str, bytes]:
    """The content of the package by place in the wheel, with recipes and dashboards wherever they are kept."""
    files = {f"dedloc_kit/{path.relative_to(_PACKAGE).as_posix()}": path for path in _files(_PACKAGE)}
    files = {place: path for place, path in files.items() if not place.startswith("dedloc_kit/shipped/")}
    for folder in ("recipes", "dashboards"):
        root = shipped(folder)
        for path in _files(root):
            of_recipe = path.suffix in _RECIPE and path.name != _OWN and path.parent.parent == root
            if folder != "recipes" or of_recipe or path.parent in (small_text(), small_conversations()):
                files[f"dedloc_kit/shipped/{folder}/{path.relative_to(root).as_posix()}"] = path
    return {place: files[place].read_bytes() for place in sorted(files)}


def make_wheel(files: Mapping[str, bytes], description: Mapping[str, bytes], version: str) -> Wheel:
    """Pack the files and the metadata that describes them; the same ones give the same bytes, on any machine.

    :param description: files of the `.dist-info` folder by name, METADATA among them
    :param version: the public version
    """
    description = {**description, "METADATA": _with_version(description["METADATA"], version), "WHEEL": _WHEEL}
    content = "".join(f"{name} {_digest(data)}\n" for name, data in {**files, **description}.items())
    version = f"{version}+h{hashlib.sha256(content.encode()).hexdigest()[:8]}"  # digits alone would lose leading zeros
    description["METADATA"] = _with_version(description["METADATA"], version)

    folder = f"dedloc_kit-{version}.dist-info"
    packed = {**files, **{f"{folder}/{name}": data for name, data in description.items()}}
    packed[f"{folder}/RECORD"] = _record(packed, f"{folder}/RECORD")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as wheel:
        for name, data in packed.items():
            entry = zipfile.ZipInfo(name)  # its default time is the same always
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            wheel.writestr(entry, data)  # not compressed: zlib's versions do that differently, and pins must last
    return Wheel(version, archive.getvalue())


def _files(folder: Path) -> list[Path]:
    """All but what Python or the desktop has left there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [path for path in paths if path.parent.name != "__pycache__"]


def _record(packed: Mapping[str, bytes], itself: str) -> bytes:
    record = io.StringIO()
    rows = ((name, f"sha256={_digest(data)}", len(data)) for name, data in packed.items())
    csv.writer(record, lineterminator="\n").writerows((*rows, (itself, "", "")))
    return record.getvalue().encode()


def _with_version(described: bytes, version: str) -> bytes:
    return re.sub(rb"(?m)^Version: .*$", f"Version: {version}".encode(), described, count=1)


def _digest(data: bytes) -> str:
    """As a wheel's RECORD has it: base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
