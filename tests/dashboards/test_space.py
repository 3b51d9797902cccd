"""The Hugging Face Space, built and started as its Dockerfile says."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import requests

from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import running_wheel
from dedloc_kit.ledger import Ledger
from dedloc_kit.resources import shipped
from tests.between import man_in_the_middle
from tests.hang import HANG
from tests.invitations import NOBODY, invited
from tests.ledgers import a_step, given
from tests.loopback_hub import loopback_hub
from tests.swarm.harness import processes_of, wait_until
from tests.tiny import tiny_run

SPACE = shipped("dashboards") / "space"
USER = 1000


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, such as ("RUN", "python app.py install")."""
    lines = (SPACE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines) if name and name != "#"]


def test_the_page_of_the_space_has_the_header_that_the_hub_reads() -> None:
    _, header, text = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    values = dict(line.split(": ", 1) for line in header.splitlines())
    assert (values["sdk"], values["app_port"]) == ("docker", "7860")
    assert len(values["short_description"]) <= 60
    assert values["colorFrom"] in {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert "DEDLOC_INVITATION" in text
    assert ("USER", "user") in instructions()
    assert {("ARG", "DEDLOC_INVITATION"), ("ARG", "DEDLOC_KIT")} <= set(instructions())
    assert "DEDLOC_KIT" in text
    assert any(re.search(r"useradd .*--uid 1000\b", rest) for name, rest in instructions() if name == "RUN")


@pytest.mark.child
def test_without_the_variable_the_space_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-S", SPACE / "app.py"], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "set the variable DEDLOC_INVITATION in the Space's settings" in done.stderr


@pytest.fixture(scope="module")
def app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


WHEEL = f"dedloc_kit-0.1.0+h01234567-py3-none-any.whl#sha256={'0' * 64}"


def test_the_kit_is_the_one_of_the_variable_or_the_one_that_the_hub_names(
    app: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        invitation = invited(tiny_run(), url="http://192.0.2.1:8000", wheel=WHEEL).model_dump_json().encode()
        hub.commits["us/model"] = [{"invitation.json": invitation}]
        assert app.kit("us/model") == f"http://192.0.2.1:8000/wheel/{WHEEL}"
        monkeypatch.setenv("DEDLOC_KIT", f"https://run.example.org/wheel/{WHEEL}")
        assert app.kit("us/model") == app.kit("http://192.0.2.1:8000") == f"https://run.example.org/wheel/{WHEEL}"


@pytest.mark.parametrize("pin", ["", "http://192.0.2.1:8000", f"http://192.0.2.1:8000/wheel/{WHEEL[:-1]}", "--user"])
def test_without_a_pin_the_space_installs_nothing(
    app: ModuleType, pin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEDLOC_KIT", pin)
    assert not app.install("http://192.0.2.1:8000")
    assert "set the variable DEDLOC_KIT" in capsys.readouterr().err


@pytest.mark.child
def test_a_space_does_not_install_what_a_man_in_the_middle_serves(
    app: ModuleType, coordinator: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "installed"))
    monkeypatch.setenv("DEDLOC_KIT", f"{coordinator.url}/wheel/{running_wheel().pinned}")
    with man_in_the_middle() as through_him:
        for name, value in through_him.items():
            monkeypatch.setenv(name, value)
        assert not app.install(coordinator.url)
    assert not (tmp_path / "installed").exists()


class Space:
    """A home folder that plays the container: its user may write there and nowhere else."""

    def __init__(self, home: Path, variables: dict[str, str]) -> None:
        self.home, self.folder = home, home / "app"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("LC_")},
            **{"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "PIP_NO_INDEX": "1", **variables},
        }
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        python = [str(home / "bin" / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = subprocess.run(python, capture_output=True, text=True, check=True).stdout.strip()
        # All packages but the kit: behind a .pth file its own .pth files, with the checkout, do not count.
        Path(packages, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for path in (home, *home.rglob("*")):
            if not path.is_symlink() and os.geteuid() == 0:
                os.chown(path, USER, USER)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        if os.geteuid() == 0:  # it may read all packages, wherever they are
            reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
            command = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *reading, *command)
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True)

    def build(self) -> list[str]:
        """Do what the Dockerfile says as the user; returns the command that is to be started."""
        as_user = False
        for name, rest in instructions():
            match name:
                case "USER":
                    as_user = True
                case "WORKDIR":
                    self.folder.mkdir()
                    os.chown(self.folder, USER, USER)
                case "COPY":
                    *options, source, _target = shlex.split(rest)
                    assert options == ["--chown=user"]
                    shutil.copy(SPACE / source, self.folder)
                case "RUN" if as_user:
                    assert self.start("sh", "-c", rest).wait(HANG) == 0, rest
                case "CMD":
                    command: list[str] = json.loads(rest)
        return command


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Dashboard]:
    """A run of two steps whose peers cannot be reached from here."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (1, 2):
        ledger.record_step(a_step(step), {"12D3KooAsha": given(step, 64, 64 * step)})
    ledger.close()
    served = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    served.start()
    served.entrance.give_out(invited(tiny_run(), (NOBODY,), served.url))
    yield served
    served.stop()


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="cannot act as another user")
def test_the_space_is_built_and_shows_the_run(coordinator: Dashboard, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # pytest's are for their owner alone
        if folder.is_relative_to(tempfile.gettempdir()) and os.geteuid() == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    space = Space(
        tmp_path / "home",
        {
            "DEDLOC_INVITATION": coordinator.url,
            "DEDLOC_KIT": f"{coordinator.url}/wheel/{running_wheel().pinned}",
            "PORT": str(port),
        },
    )
    process = space.start(*space.build())
    try:
        url = f"http://127.0.0.1:{port}"

        def step() -> int:
            try:
                return int(requests.get(f"{url}/api/state", timeout=HANG).json()["step"])
            except requests.ConnectionError:
                return 0

        wait_until(lambda: step() == 2, "the run is not shown", HANG)
        page = requests.get(url, timeout=HANG)
        assert page.text.startswith("<!doctype html>")
        assert "https://huggingface.co" in page.headers["Content-Security-Policy"], "it may be shown inside the Hub"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(HANG)
    assert code == 0
    installed = subprocess.run(
        [space.home / "bin" / "python", "-c", "import dedloc_kit; print(dedloc_kit.__file__)"],
        cwd=space.folder,
        env=space.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(installed.stdout).is_relative_to(space.home), "it came from the coordinator"
    wait_until(lambda: not processes_of(process.pid), "a process of the Space is left")
