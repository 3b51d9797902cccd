"""A real JupyterLab, and a real browser that opens notebooks in it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.sync_api import Page

from tests.browser import ARTIFACTS, open_browser, photograph
from tests.notebooks import of_cells
from tests.swarm.harness import wait_until

DEADLINE = 120_000
"""Milliseconds: machines that test are busy."""
_CHECKOUT = str(Path(__file__).parents[2])
_READY = """async () => {
  const until = async (condition) => {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, 50));
  };
  const notebook = window.jupyterapp.shell.currentWidget;
  await notebook.sessionContext.ready;
  const kernel = notebook.sessionContext.session.kernel;
  await kernel.info;
  await until(() => kernel.connectionStatus === 'connected' && kernel.status === 'idle');
  const widgets = 'application/vnd.jupyter.widget-view+json';
  await until(() => notebook.content.rendermime.mimeTypes.includes(widgets));
  const manager = await notebook.content.rendermime.createRenderer(widgets)._manager.promise;
  await until(() => manager.restoredStatus);
}"""
"""The kernel answers, and the page has asked it for the widgets of earlier: what is displayed before is never drawn."""


class Lab:
    """A JupyterLab of its own in a process group of its own; leaving the context ends it and its kernels."""

    def __init__(
        self, folder: Path, python: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> None:
        """
        :param python: the interpreter that has JupyterLab, which is also the kernel's
        :param environment: variables for the kernels
        """
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self._folder, self._python, self._environment = folder, python, environment or {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self) -> Self:
        overrides = self._folder / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        overrides.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": quiet}))
        settings = {"LabApp": {"expose_app_in_browser": True}}
        (self._folder / "config" / "jupyter_lab_config.json").write_text(json.dumps(settings))
        places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
        environment = {f"JUPYTER_{name}": str(self._folder / place) for name, place in places.items()}
        environment |= {f"JUPYTERLAB_{name}_DIR": str(self._folder / name) for name in ("SETTINGS", "WORKSPACES")}
        with (self._folder / "lab.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(self._python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                    f"--port={self.url.rpartition(':')[2]}",
                    f"--ServerApp.root_dir={self.notebooks}",
                    "--IdentityProvider.token=",  # loopback only, and for seconds
                    "--ServerApp.token=",
                    "--LabApp.extension_manager=readonly",
                ],
                env={**os.environ, **environment, "PYTHONPATH": _CHECKOUT, **self._environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, f"JupyterLab did not start; see {self._folder / 'lab.log'}", DEADLINE / 1000)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def write(self, name: str, *cells: str) -> None:
        """A notebook of these code cells."""
        notebook = of_cells(*cells)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        (self.notebooks / name).write_text(json.dumps(notebook))

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "lab.log").read_text()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/api/status", timeout=5):
            return True
        return False


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a headless Chromium; a picture of it is kept if something goes wrong."""
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(DEADLINE)
        try:
            yield page
        except BaseException:
            ARTIFACTS.mkdir(exist_ok=True)
            page.screenshot(path=ARTIFACTS / "failed.png")
            raise


def open_and_run(page: Page, lab: Lab, name: str) -> None:
    """Open a notebook and run all its cells."""
    page.goto(f"{lab.url}/lab/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext")
    page.evaluate(_READY)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")


def photograph_panel(page: Page, name: str) -> None:
    """Keep pictures of what the volunteer sees, in both themes, on a desktop and on a small screen."""
    for theme in ("Light", "Dark"):
        page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {theme}"
        )
        page.wait_for_selector(
            f"body[data-jp-theme-light='{'true' if theme == 'Light' else 'false'}']", state="attached"
        )
        for width in (1280, 800):
            page.set_viewport_size({"width": width, "height": 900})
            page.locator(".dedloc").scroll_into_view_if_needed()
            photograph(page, f"{name}-{width}-{theme.lower()}", whole=False)
