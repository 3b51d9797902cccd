"""The description of the interface, as programs of other people read it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.records.invitation import INVITATION_FILE
from tests.dashboard.runs import RUN, fill
from tests.hang import HANG
from tests.invitations import invited

PER_SECOND = 10
"""Who asks faster is soon told to wait, and tells nothing about the rest."""


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    (tmp_path / INVITATION_FILE).touch()  # a run was launched here
    fill(tmp_path / "ledger.sqlite")
    served = Dashboard(RUN, tmp_path / "ledger.sqlite", organizer=organizer.routes(tmp_path, RUN.fingerprint))
    served.entrance.give_out(invited(RUN))
    served.start()
    yield served
    served.stop()


def test_the_description_is_valid(dashboard: Dashboard) -> None:
    from openapi_spec_validator import validate  # compiles grammars for seconds, in each process that collects

    validate(requests.get(dashboard.url + "/api/openapi.json", timeout=HANG).json())


@pytest.mark.soak
@pytest.mark.timeout(320)
def test_schemathesis_finds_nothing(dashboard: Dashboard, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--exclude-path", "/api/events", "--max-examples", "5", "--seed", "1"]
    options += ["--rate-limit", f"{PER_SECOND}/s", "--no-color"]
    done = subprocess.run(
        [program, "run", dashboard.url + "/api/openapi.json", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    paths = requests.get(dashboard.url + "/api/openapi.json", timeout=HANG).json()["paths"]
    assert f"Tested: {sum(map(len, paths.values())) - 1}\n" in done.stdout, "not all was tried"
