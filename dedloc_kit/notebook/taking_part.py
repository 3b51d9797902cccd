"""One call in a notebook cell, or in a script, and this machine takes part: the same for all ways to do so."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from dedloc_kit.access.personal_code import personal_code
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import token
from dedloc_kit.machine.hosted import hosted

REFRESH_SECONDS = 0.5
SECRETS = "looking for this notebook's secrets; where Colab asks whether it may read one, allow it or cancel"


class Session(Protocol):
    """What goes on in the background, until `ended` is set."""

    ended: threading.Event

    def snapshot(self) -> Any: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def leave(self) -> None: ...


S = TypeVar("S", bound=Session)


class Participation:
    """What a call returns in a notebook: the same as the panel's buttons, for other cells."""

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
        """Block the cell until it is over; interrupting the cell leaves."""
        _wait(self._session)

    def _ipython_display_(self) -> None:
        """Nothing: as a cell's last value it would show below the panel otherwise."""


@dataclass(frozen=True)
class Views(Generic[S]):
    """How sessions of one kind are shown.

    :ivar panel: makes the notebook's, with buttons if there is a session
    :ivar watch: in a terminal, until it has ended
    :ivar refused: a snapshot that says why a session could not even begin
    :ivar waiting: a snapshot that says what it waits for before it begins
    """

    panel: Callable[[S | None], Any]
    watch: Callable[[S], None]
    refused: Callable[[str], Any]
    waiting: Callable[[str], Any]


OTHER_ARGUMENTS = "this machine takes part already, with other arguments; leave first, then run this cell again"

OpenSessions = dict[str, tuple[object, S]]
"""The sessions of this kernel by invitation, each with the arguments that it was begun with."""


def take_part(
    invitation: str,
    arguments: object,
    sessions: OpenSessions[S],
    start: Callable[[str], S],
    views: Views[S],
    *,
    code: str | None,
    block: bool | None,
) -> Participation | None:
    """Begin, or show again what goes on.

    :param arguments: of the call; a session that goes on with others is not changed, and the cell says so
    :param sessions: a cell that is run again shows the same one again
    :param start: begins one with a personal code, empty for none; raises UserError
    """
    where = platform()
    if block is None:
        block = where in ("colab", "kaggle batch", "terminal") or not has_front_end()
    begun, panel = sessions.get(invitation), None
    going = begun is not None and not begun[1].ended.is_set()
    if begun is not None and going and begun[0] != arguments:
        _show_refusal(OTHER_ARGUMENTS, where, views, panel)
        return None
    if begun is not None and going:
        session = begun[1]
    else:
        if block and where != "terminal":  # first of all: a secret that the notebook's owner is asked for takes long
            panel = _shown(views.panel(None), views.waiting(SECRETS if where == "colab" else "reading the invitation"))
        try:
            if where == "colab":
                token()  # the notebook may ask its owner for it, which only the main thread can
            if code is None:
                code = personal_code(invitation, ask=where != "kaggle batch")
            session = start(code)
            sessions[invitation] = arguments, session
        except UserError as error:
            _show_refusal(str(error), where, views, panel)
            return None
    if where == "terminal":
        views.watch(session)
        return None

    if panel is None:
        panel = _shown(views.panel(None if block else session), session.snapshot())
    if block:
        _wait(session, panel)
        return None
    threading.Thread(target=_keep_up_to_date, args=(session, panel), name="panel", daemon=True).start()
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


def _shown(panel: Any, snapshot: Any) -> Any:
    from IPython.display import display

    panel.show(snapshot)
    display(panel.widget)
    return panel


def refuse(problem: str, views: Views[S]) -> None:
    """Show what keeps a session from even beginning."""
    _show_refusal(problem, platform(), views, None)


def _show_refusal(problem: str, where: str, views: Views[S], panel: Any) -> None:
    """What keeps a session from even beginning, in the place where the panel would be."""
    if where == "terminal":
        from dedloc_kit.display.console import complain

        complain(problem)
        return
    if panel is None:
        _shown(views.panel(None), views.refused(problem))
    else:
        panel.show(views.refused(problem))


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
