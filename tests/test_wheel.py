"""The wheel is complete: it works without the checkout that it was built from."""

import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from dedloc_kit.distribution import package_files
from tests.environments import make_environment, run

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    run(sys.executable, "-m", "pip", "wheel", *options, CHECKOUT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment where the wheel is installed; all other packages are those that run here."""
    folder = tmp_path_factory.mktemp("installed")
    python = make_environment(folder / "environment", "--without-pip") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, folder=folder)
    # Behind a .pth file the .pth files of the running environment do not count, and with them the editable
    # installation of the checkout.
    ours, theirs = (
        Path(sysconfig.get_path("purelib")),
        Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder)),
    )
    (theirs / "dependencies.pth").write_text(f"{ours}\n")
    return python.parent


@pytest.mark.real
def test_an_installed_wheel_finds_everything_that_it_needs(commands: Path, tmp_path: Path) -> None:
    python, environment = commands / "python", commands.parent
    show = """
import dedloc_kit
from dedloc_kit.resources import recipe, shipped, small_text
from dedloc_kit.config.loading import load_run
print(dedloc_kit.__file__, recipe("albert-demo"), shipped("dashboards"), small_text(), sep="\\n")
print(load_run(recipe("albert-demo") / "run.toml").run_id)
"""
    *paths, run_id = run(python, "-c", show, folder=tmp_path).splitlines()
    assert len(paths) == 4
    for path in map(Path, paths):
        assert path.is_relative_to(environment), path
        assert path.exists()
    assert run_id.startswith("albert-demo-")
    assert "join" in run(commands / "dedloc", "--help", folder=tmp_path)


@pytest.mark.soak
def test_every_module_of_an_installed_wheel_has_what_it_imports(commands: Path, tmp_path: Path) -> None:
    every_module = """
import importlib, pkgutil, dedloc_kit
for module in pkgutil.walk_packages(dedloc_kit.__path__, "dedloc_kit."):
    importlib.import_module(module.name)
"""
    run(commands / "python", "-c", every_module, folder=tmp_path)
    run(commands / "python", "-m", "pip", "check", folder=tmp_path)


@pytest.mark.soak
def test_the_wheel_holds_the_package_and_nothing_of_the_checkout_beside_it(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "--list", wheel, folder=wheel.parent)
    tops = {line.split("/")[0] for line in names.splitlines()[1:]}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dedloc_kit"}
    assert "__pycache__" not in names


@pytest.mark.soak
def test_the_wheel_that_a_coordinator_serves_has_the_same_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        built = {name: archive.read(name) for name in archive.namelist() if name.startswith("dedloc_kit/")}
    served = package_files()
    assert served.keys() == built.keys()
    assert [name for name in built if served[name] != built[name]] == []
