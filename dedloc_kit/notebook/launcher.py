"""One call in a notebook cell, or in a script, and this machine takes part: the same for all ways to do so."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.access.own_code import personal_code
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.display.console import complain
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import token
from dedloc_kit.machine.hosted import hosted
from dedloc_kit.notebook.keywords import checked
from dedloc_kit.session.snapshot import Phase, Snapshot, Watched, follow
from dedloc_kit.session.terminal import watch

SECRETS = "Looking for this notebook's secrets; where Colab asks whether it may read one, allow it or cancel."
READING = "Reading the invitation; then this machine is checked."
OTHER_ARGUMENTS = "this machine takes part already, with other arguments; leave first, then run this cell again"


open_sessions: dict[str, tuple[object, Watched]] = {}
"""The sessions of this kernel by invitation, each with the arguments that it was begun with: a cell that is run again
shows the same one again."""


class Participation:
    """What a call returns in a notebook: the same as the panel's buttons, for other cells."""

    def __init__(self, session: Watched) -> None:
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
        """Block the cell until it is over; interrupting the cell leaves."""
        _wait(self._session, lambda _: None)

    def _ipython_display_(self) -> None:
        """Nothing: as a cell's last value it would show below the panel otherwise."""


def take_part(
    begin: Callable[..., Watched],
    kind: type[PeerConfig],
    invitation: str,
    options: dict[str, Any],
    *,
    folder: str | Path | None,
    code: str | None,
    block: bool | None,
) -> Participation | None:
    """Begin a session, or show again the one that goes on.

    :param begin: a kind of Watched; raises UserError
    :param options: fields of `kind`; a session that goes on with others is not changed, and the cell says so
    """
    where, panel = platform(), None
    if block is None:
        block = where in ("colab", "kaggle batch", "terminal") or not has_front_end()
    try:
        settings = checked(kind, options)
        arguments = kind, settings, folder, code
        begun, session = open_sessions.get(invitation, (None, None))
        if session is None or session.ended.is_set():
            if block and where != "terminal":  # first: a secret that the notebook's owner is asked for takes long
                panel = _shown(Snapshot(Phase.STARTING, SECRETS if where == "colab" else READING), None)
            if where == "colab":
                token()  # the notebook may ask its owner for it, which only the main thread can
            if code is None:
                code = personal_code(invitation, ask=where != "kaggle batch")
            session = begin(invitation, folder=Path(folder) if folder else None, settings=settings, code=code)
            open_sessions[invitation] = arguments, session
        elif begun != arguments:
            raise UserError(OTHER_ARGUMENTS)
    except UserError as error:
        if where == "terminal":
            complain(str(error))
        else:
            _shown(Snapshot(Phase.FAILED, str(error)), panel)
        return None
    if where == "terminal":
        watch(session)
        return None
    panel = _shown(session.snapshot(), panel, None if block else session)
    if block:
        _wait(session, panel.show)
        return None
    threading.Thread(target=follow, args=(session, panel.show), name="panel", daemon=True).start()
    return Participation(session)


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


def _shown(snapshot: Snapshot, panel: Any, session: Watched | None = None) -> Any:
    """In this panel, or in a new one below the cell."""
    from IPython.display import display

    from dedloc_kit.notebook.panel import Panel

    shown = panel or Panel(session)
    shown.show(snapshot)
    if panel is None:
        display(shown.widget)
    return shown


def _wait(session: Watched, show: Callable[[Snapshot], object]) -> None:
    """Until the session has ended; an interrupt leaves. On Colab only the main thread can update a panel, so here."""
    while True:
        try:
            return follow(session, show)
        except KeyboardInterrupt:
            session.leave()
