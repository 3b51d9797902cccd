"""Installing the kit on Colab or Kaggle changes nothing that is preinstalled there.

An environment holds stubs of what is preinstalled, metadata only, and the pip that Colab has resolves the kit's wheel
in it for that platform's Python, without installing anything.
"""

import json
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from dedloc_kit.distribution import Wheel, make_wheel, running_wheel
from tests.environments import make_environment, run

PREINSTALLED = Path(__file__).parent / "preinstalled"
PIP = "pip==24.1.2"
# These exist as source only. There pip builds them; resolving for another Python than one's own takes wheels.
SOURCES = ("varint-1.0.2", "prefetch_generator-1.0.3", "python_baseconv-1.2.2")
PLATFORM = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 28)] + ["--platform=manylinux2014_x86_64"]

pytestmark = pytest.mark.soak  # all of them ask the package index


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def preinstalled(*files: str) -> dict[str, str]:
    """Canonical names and what the metadata says; later files go before earlier ones."""
    found = {}
    for line in "".join((PREINSTALLED / file).read_text() for file in files).splitlines():
        if not line.startswith("#"):
            package, _, needs = line.partition(" needs ")
            name, version = package.split("==")
            requirements = [f"Requires-Dist: {need}\n" for need in needs.split("; ") if need]
            found[canonical(name)] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(requirements)}"
    return found


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colab's pip; it runs from its wheel."""
    folder = tmp_path_factory.mktemp("pip")
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PIP, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel / "pip"


def would_install(
    wheel: Wheel, python: str, stubs: dict[str, str], pip: Path, folder: Path, extra: str = ""
) -> dict[str, str]:
    """What pip would install beside the stubs, by canonical name with the version.

    :param extra: of the kit, such as `[organizer]`
    """
    commands = make_environment(folder / "environment", "--without-pip")
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    for name, text in stubs.items():
        stub = site / f"{name.replace('-', '_')}-0.dist-info"  # pip takes the version from the metadata
        stub.mkdir()
        (stub / "METADATA").write_text(text)
    for source in SOURCES:
        name, version = source.split("-")
        with zipfile.ZipFile(folder / f"{source}-py3-none-any.whl", "w") as built:
            built.writestr(f"{source}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            built.writestr(f"{source}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    (folder / wheel.name).write_bytes(wheel.content)
    options = ("--dry-run", "--report=report.json", "--find-links=.", "--only-binary=:all:", "--implementation=cp")
    target = (f"--python-version={python}", *PLATFORM, f"{wheel.name}{extra}")
    run(commands / "python", pip, "install", "--quiet", *options, *target, folder=folder)
    report = json.loads((folder / "report.json").read_text())
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}


@pytest.mark.parametrize(
    ("python", "files", "extra"),
    [("3.13", ["colab.txt"], "[corpus,organizer,pictures]"), ("3.12", ["colab.txt", "kaggle.txt"], "")],
    ids=["colab-organizer", "kaggle-volunteer"],  # an organizer installs all that a volunteer does
)
def test_installing_the_kit_changes_nothing_that_is_preinstalled(
    python: str, files: list[str], extra: str, pip: Path, tmp_path: Path
) -> None:
    stubs = preinstalled(*files)
    installed = would_install(running_wheel(), python, stubs, pip, tmp_path, extra)
    assert {"dedloc-kit", "hivemind", "grpcio-tools", "varint"} <= installed.keys()
    assert ({"maxminddb", "rensa"} <= installed.keys()) is bool(extra), "volunteers need neither"
    assert {name: version for name, version in installed.items() if name in stubs} == {}


def test_it_takes_the_limit_on_grpcio_tools_to_leave_protobuf_alone(pip: Path, tmp_path: Path) -> None:
    text = str(metadata.distribution("dedloc_kit").read_text("METADATA"))
    described = text.replace("Requires-Dist: grpcio-tools<1.72\n", "")
    assert described != text
    unlimited = make_wheel({}, {"METADATA": described.encode()}, "0.1.0")
    installed = would_install(unlimited, "3.13", preinstalled("colab.txt"), pip, tmp_path)
    assert int(installed["protobuf"].split(".")[0]) > 5
