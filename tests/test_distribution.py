"""The wheel that volunteers get is the package that runs, and pip takes it for what it is."""

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from io import BytesIO
from pathlib import Path

import pytest

from dedloc_kit import distribution
from dedloc_kit.dashboard.routes import join_routes
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import Wheel, make_wheel, package_files, running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.version import __version__
from tests.between import EVIL, man_in_the_middle
from tests.environments import DESCRIPTION, make_environment, run, small_wheel
from tests.tiny import tiny_run


def contents(wheel: Wheel) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(wheel.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_its_recipes_and_dashboards_and_nothing_else() -> None:
    names = contents(running_wheel()).keys()
    assert "dedloc_kit/cli/main.py" in names
    assert "dedloc_kit/dashboard/static/index.html" in names
    assert "dedloc_kit/shipped/recipes/albert-demo/run.toml" in names
    assert "dedloc_kit/shipped/dashboards/README.md" in names
    assert "dedloc_kit/shipped/recipes/text/train.txt" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dedloc_kit"}
    assert not [name for name in names if "__pycache__" in name or "/." in name or "/tests/" in name]


def test_the_wheel_says_what_the_installation_says_but_for_the_version() -> None:
    files, wheel = contents(running_wheel()), running_wheel()
    folder = f"dedloc_kit-{wheel.version}.dist-info"
    theirs = metadata.metadata("dedloc_kit")
    ours = metadata.PathDistribution(zipfile.Path(BytesIO(wheel.content), f"{folder}/")).metadata
    assert ours["Version"] == wheel.version
    assert wheel.version.startswith(f"{__version__}+h")
    assert ours.get_all("Requires-Dist") == theirs.get_all("Requires-Dist")
    assert ours["Requires-Python"] == theirs["Requires-Python"]
    assert b"dedloc = dedloc_kit.cli.main:main" in files[f"{folder}/entry_points.txt"]


def test_the_record_lists_every_file_with_its_digest_and_size() -> None:
    files = contents(make_wheel({"dedloc_kit/a, b.md": b"text", "dedloc_kit/c.py": b""}, DESCRIPTION, "0.1.0"))
    *names, record = files
    *rows, itself = csv.reader(files[record].decode().splitlines())
    assert itself == [record, "", ""]
    assert [row[0] for row in rows] == names
    for name, digest, size in rows:
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={expected}", len(files[name]))


def test_the_same_content_is_the_same_wheel_and_other_content_another_version() -> None:
    assert small_wheel(1) == small_wheel(1)
    assert small_wheel(1).version != small_wheel(2).version
    described = {"METADATA": DESCRIPTION["METADATA"].replace(b"\n\n", b"\nRequires-Dist: numpy\n\n")}
    files = {"dedloc_kit/__init__.py": b"answer = 1\n"}
    assert make_wheel(files, described, "0.1.0").version != small_wheel(1).version
    text = contents(small_wheel(1))[f"dedloc_kit-{small_wheel(1).version}.dist-info/METADATA"]
    assert text.endswith(b"\n\nVersion: of the text\n")


def test_what_an_organizer_keeps_beside_a_recipe_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "recipes/ours/run.toml",
        "recipes/ours/coordinator.toml",
        "recipes/ours/corpus.txt",
        "recipes/ours/tokens/README.md",
        "dashboards/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(distribution, "shipped", lambda folder: tmp_path / folder)
    shipped = [name for name in package_files() if name.startswith("dedloc_kit/shipped/")]
    assert shipped == ["dedloc_kit/shipped/dashboards/x.py", "dedloc_kit/shipped/recipes/ours/run.toml"]


def test_without_an_installation_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    with pytest.raises(UserError, match="pip install --editable"):
        running_wheel.__wrapped__()


@pytest.mark.soak
def test_pip_installs_the_wheel_and_then_again_only_if_its_content_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    coordinator.start()
    python = make_environment(tmp_path / "environment", "--without-pip") / "python"
    served = running_wheel()
    for content, installs in ((served, True), (served, False), (small_wheel(2), True)):
        monkeypatch.setattr(join_routes, "running_wheel", lambda content=content: content)
        options = ("--no-deps", "--no-compile", f"{coordinator.url}/wheel/{content.pinned}")
        told = run(sys.executable, "-m", "pip", "--python", python, "install", *options, folder=tmp_path)
        assert (f"Successfully installed dedloc-kit-{content.version}" in told) == installs
        if content == served:  # what is installed gives away the very same
            show = "import dedloc_kit.distribution as d; print(d.__file__, d.running_wheel().version)"
            file, version = run(python, "-c", show, folder=tmp_path).split()
            assert Path(file).is_relative_to(tmp_path)
            assert version == served.version
    assert run(python, "-c", "import dedloc_kit; print(dedloc_kit.answer)", folder=tmp_path) == "2"
    coordinator.stop()


UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
installers = pytest.mark.parametrize(
    "installer",
    [
        pytest.param((sys.executable, "-m", "pip", "install"), id="pip"),
        pytest.param(
            (str(UV), "pip", "install", "--no-cache", "--python", sys.executable),
            id="uv",
            marks=pytest.mark.skipif(UV is None, reason="uv is not installed"),
        ),
    ],
)


@pytest.mark.soak
@installers
def test_what_a_man_in_the_middle_puts_into_the_wheel_is_refused(
    installer: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 6, also after the run, when somebody else has the address that stands in old notebooks."""
    coordinator = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    coordinator.start()
    wheel = small_wheel(1)
    monkeypatch.setattr(join_routes, "running_wheel", lambda: wheel)
    bare, pinned = (f"{coordinator.url}/wheel/{name}" for name in (wheel.name, wheel.pinned))

    def install(url: str, folder: str, environment: Mapping[str, str]) -> str:
        """The code that gets into the folder, or what the installer says."""
        target = tmp_path / folder
        done = subprocess.run(
            [*installer, "--no-deps", "--target", str(target), url],
            env={**os.environ, **environment, "PIP_NO_COMPILE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        code = target / "dedloc_kit" / "__init__.py"
        return code.read_text() if code.exists() else done.stdout + done.stderr

    with man_in_the_middle() as through_him:
        assert install(bare, "bare", through_him) == EVIL, "without a pin he has his way"
        for moment in ("while it goes on", "when it is over"):
            if moment == "when it is over":
                coordinator.stop()
            told = install(pinned, moment, through_him)
            assert not (tmp_path / moment / "dedloc_kit").exists()
            assert re.search("do not match the hashes|hash mismatch", told, re.IGNORECASE), told
    coordinator = Dashboard(tiny_run(), tmp_path / "ledger.sqlite", port=int(coordinator.url.rpartition(":")[2]))
    coordinator.start()
    assert install(pinned, "good", {}) == "answer = 1\n"
    coordinator.stop()


@pytest.mark.soak
def test_another_process_with_other_settings_packs_the_same_bytes(tmp_path: Path) -> None:
    code = "import os; os.umask(0); from dedloc_kit.distribution import running_wheel; print(running_wheel().pinned)"
    environment = {**os.environ, "TZ": "Asia/Dhaka", "PYTHONHASHSEED": "7", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == running_wheel().pinned


def test_the_bytes_do_not_depend_on_the_version_of_zlib() -> None:
    with zipfile.ZipFile(BytesIO(running_wheel().content)) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.soak
def test_the_wheel_is_made_without_torch_and_hivemind() -> None:
    code = "import sys; from dedloc_kit.distribution import running_wheel; running_wheel(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "dedloc_kit.distribution" in loaded
    assert not {"torch", "hivemind", "numpy"} & set(loaded)
