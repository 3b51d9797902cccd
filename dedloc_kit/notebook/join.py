"""`join`: one call in a notebook cell, or in a script, and this machine takes part."""

import os
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.access.personal_code import personal_code
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import token
from dedloc_kit.machine.hosted import hosted
from dedloc_kit.session.session import Session
from dedloc_kit.session.snapshot import Snapshot

REFRESH_SECONDS = 0.5

_sessions: dict[str, Session] = {}
"""Those of this kernel that go on, by invitation: a cell that is run again shows the same session again."""


class Participation:
    """What `join` returns in a notebook: the same as the panel's buttons, for other cells."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pause(self) -> None:
        """Free this machine for a while; what is finished counts."""
        self._session.pause()

    def resume(self) -> None:
        """Take part again."""
        self._session.resume()

    def leave(self, timeout: float = 60.0) -> None:
        """Leave, and wait until nothing runs any more."""
        self._session.leave()
        self._session.ended.wait(timeout)

    def wait(self) -> None:
        """Block the cell until the run is over; interrupting the cell leaves."""
        _wait(self._session)

    def _ipython_display_(self) -> None:
        """Nothing: as a cell's last value it would show below the panel otherwise."""


def join(
    invitation: str,
    *,
    name: str | None = None,
    team: str | None = None,
    devices: str = "auto",
    folder: str | Path | None = None,
    task_module: str | None = None,
    code: str | None = None,
    block: bool | None = None,
) -> Participation | None:
    """See `dedloc_kit.join`."""
    where = platform()
    if block is None:
        block = where in ("colab", "kaggle batch", "terminal") or not has_front_end()
    session = _sessions.get(invitation)
    if session is None or session.ended.is_set():
        if where == "colab":
            token()  # the notebook may ask its owner for it, which only the main thread can
        settings = {"name": name, "team": team, "devices": devices, "task_module": task_module}
        given = {key: value for key, value in settings.items() if value is not None}
        if code is None:
            code = personal_code(invitation, ask=where != "kaggle batch")
        try:
            session = Session(invitation, folder=Path(folder) if folder else None, settings=given, code=code)
        except UserError as error:
            _show_refusal(str(error), where)
            return None
        _sessions[invitation] = session
    if where == "terminal":
        from dedloc_kit.session.display import watch

        watch(session)
        return None

    from IPython.display import display

    from dedloc_kit.notebook.panel import Panel

    panel = Panel(None if block else session)
    panel.show(session.snapshot())
    display(panel.widget)
    if block:
        _wait(session, panel)
        return None
    threading.Thread(target=_keep_up_to_date, args=(session, panel), name="panel", daemon=True).start()
    return Participation(session)


def _show_refusal(problem: str, where: str) -> None:
    """What keeps a session from even beginning, in the place where the panel would be."""
    if where == "terminal":
        from dedloc_kit.display.console import complain

        complain(problem)
        return
    from IPython.display import display

    from dedloc_kit.notebook.panel import Panel

    panel = Panel(None)
    panel.show(Snapshot(phase="failed", text="this machine cannot take part now", problem=problem))
    display(panel.widget)


def platform() -> Literal["colab", "kaggle batch", "kaggle", "jupyter", "terminal"]:
    """Where this runs. A Kaggle batch is a notebook that runs from top to bottom, with nobody before it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return "terminal"
    service = hosted()
    if service == "kaggle" and os.environ.get("KAGGLE_KERNEL_RUN_TYPE") == "Batch":
        return "kaggle batch"
    return service or "jupyter"


def has_front_end() -> bool:
    """Whether somebody sits before the notebook: what only executes it (nbconvert, papermill) takes no questions from
    the kernel, and ends the kernel with the last cell."""
    request: dict[str, Any] = sys.modules["IPython"].get_ipython().kernel.get_parent("shell")
    return bool(request.get("content", {}).get("allow_stdin", True))


def _keep_up_to_date(session: Session, panel: Any) -> None:
    while not session.ended.wait(REFRESH_SECONDS):
        panel.show(session.snapshot())
    panel.show(session.snapshot())


def _wait(session: Session, panel: Any = None) -> None:
    """Until the session has ended; an interrupt leaves. On Colab only the main thread can update a panel, so here."""
    while True:
        try:
            while not session.ended.wait(REFRESH_SECONDS):
                if panel is not None:
                    panel.show(session.snapshot())
            break
        except KeyboardInterrupt:
            session.leave()
    if panel is not None:
        panel.show(session.snapshot())
