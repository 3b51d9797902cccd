"""A volunteer's notebook from the first click to the thanks: real JupyterLab, real browser, real coordinator."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from playwright.sync_api import Page

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.organizer.launch import Coordinator
from tests.browser import need_chromium
from tests.notebook.browser import Lab, browser_page, open_and_run, photograph_panel
from tests.swarm.harness import processes_of, wait_until
from tests.tiny import tiny_run

WIDGETS = 'import ipywidgets; print("ipywidgets", ipywidgets.__version__)'
VOLUNTEER = """\
from dedloc_kit import join
join("{url}", name="Rabi", task_module="tests.tiny")"""
LAB_3 = ("jupyterlab==3.6.8", "ipywidgets==7.7.1", "jupyterlab_widgets==1.1.1")
"""The last of them for ipywidgets 7, which Colab has."""


@pytest.fixture(autouse=True)
def _a_browser_is_here() -> None:
    need_chromium()


def take_part(folder: Path, python: str, ipywidgets: str, pictures: str, resume: bool) -> None:
    """Join, watch, pause, perhaps resume, and leave, by clicking."""
    run = tiny_run(global_batch=4096, about="A network that learns to shift numbers, for all who test it")
    peer = CoordinatorConfig(
        folder=folder / "coordinator", swarm_host="127.0.0.1", devices="cpu", task_module="tests.tiny"
    )
    home = folder / "home"
    environment = {"DEDLOC_HOME": str(home), "HF_HOME": str(home), "TINY_PAUSE": "0.02", "CUDA_VISIBLE_DEVICES": ""}
    with (
        Coordinator(run, peer, host="127.0.0.1", port=0, on_event=lambda _: None) as coordinator,
        Lab(folder, python, environment) as lab,
        browser_page() as page,
    ):
        url = coordinator.invitation().url
        lab.write("join.ipynb", WIDGETS, VOLUNTEER.format(url=url))
        open_and_run(page, lab, "join.ipynb")
        page.get_by_text(f"ipywidgets {ipywidgets}").wait_for()
        state = page.wait_for_selector(".dedloc .state:has(.working, .failed)")
        assert state is not None
        assert state.inner_text().strip().startswith(("Computing the first samples", "Training"))
        more_samples_than(page, 0)
        worker = worker_of(home)
        page.wait_for_selector(".dedloc .chart .mine")
        photograph_panel(page, pictures)

        page.get_by_role("button", name="Pause").click()
        page.wait_for_selector(".dedloc .dot.paused")
        wait_until(lambda: not processes_of(worker), "something still runs while the volunteer pauses")
        if resume:
            given = samples(page)
            page.get_by_role("button", name="Resume").click()
            more_samples_than(page, given)
            worker = worker_of(home)

        page.get_by_role("button", name="Leave").click()
        page.wait_for_selector(".dedloc .dot.left")
        page.get_by_text("Thank you, Rabi").wait_for()
        wait_until(lambda: not processes_of(worker), "something still runs after the volunteer has left")
        photograph_panel(page, f"{pictures}-left")
    wait_until(lambda: not processes_in(home), "something still runs after JupyterLab was closed")


def samples(page: Page) -> int:
    given = page.locator(".dedloc .facts > div", has_text="Given").locator("b")
    return int(given.inner_text().partition(" ")[0].replace(",", ""))


def more_samples_than(page: Page, number: int) -> None:
    """Wait until the panel shows that more were given."""
    wait_until(lambda: samples(page) > number, f"no more than {number} samples are given")


def worker_of(home: Path) -> int:
    """The training process that was started from this home's notebook; its guardian looks the same but is younger."""
    return min(process for process, command in processes_in(home).items() if "dedloc_kit.worker" in command)


def processes_in(home: Path) -> dict[int, str]:
    """The processes with this home in their environment, and their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEDLOC_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has just ended
    return found


@pytest.mark.real
def test_a_volunteer_joins_watches_pauses_and_leaves_in_jupyterlab_4(tmp_path: Path) -> None:
    take_part(tmp_path, sys.executable, ipywidgets="8", pictures="panel-lab4", resume=False)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_same_with_the_widgets_of_colab_in_jupyterlab_3(tmp_path: Path) -> None:
    # The project's own packages are seen through; only what differs is installed.
    lab = tmp_path / "lab3"
    subprocess.run([sys.executable, "-m", "venv", lab], check=True)
    python = lab / "bin" / "python"
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", purelib], capture_output=True, text=True, check=True).stdout.strip())
    (packages / "project.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([python, "-m", "pip", "install", "--quiet", *LAB_3], check=True)
    take_part(tmp_path, str(python), ipywidgets="7.7.1", pictures="panel-lab3", resume=True)
