"""`serve`: this machine holds some layers of a served model."""

from html import escape
from pathlib import Path
from typing import Any

from dedloc_kit.errors import UserError
from dedloc_kit.notebook.keywords import checked, keywords_of
from dedloc_kit.notebook.taking_part import OpenSessions, Participation, Views, refuse, take_part
from dedloc_kit.serving.config import ServerConfig
from dedloc_kit.session.serving import ServingSession, ServingSnapshot, lines

_sessions: OpenSessions[ServingSession] = {}


class ServingPanel:
    """Shows the snapshots of one session; `widget` is what the cell displays.

    :param session: none where buttons are dead while a cell runs (Colab); then the panel says how to leave
    """

    def __init__(self, session: ServingSession | None) -> None:
        import ipywidgets

        from dedloc_kit.notebook.panel import style

        self._session = session
        self._text = ipywidgets.HTML()
        parts = [style("panel.css"), self._text]
        if session is not None:
            layout = {"width": "auto", "min_width": "84px"}
            self._pause = ipywidgets.Button(description="Pause", tooltip="Free this machine for a while", layout=layout)
            self._leave = ipywidgets.Button(description="Leave", tooltip="Let others go on, and end", layout=layout)
            self._pause.on_click(self._pause_or_resume)
            self._leave.on_click(lambda _: session.leave())
            parts.append(ipywidgets.HBox([self._pause, self._leave]))
        self.widget = ipywidgets.VBox(parts)
        self.widget.add_class("dedloc")

    def show(self, now: ServingSnapshot) -> None:
        """Bring the panel up to date."""
        self._text.value = markup(now, buttons=self._session is not None)
        if self._session is not None:
            self._pause.description = "Resume" if now.phase == "paused" else "Pause"
            self._pause.disabled = now.phase not in ("serving", "paused")
            self._leave.disabled = now.over or now.phase == "leaving"

    def _pause_or_resume(self, button: Any) -> None:
        assert self._session is not None
        button.disabled = True
        (self._session.resume if button.description == "Resume" else self._session.pause)()


def markup(now: ServingSnapshot, *, buttons: bool) -> str:
    """The panel as HTML; what others wrote is escaped."""
    about = f'<div class="about">{escape(now.about)}</div>' if now.about else ""
    text = now.text[:1].upper() + now.text[1:]
    problem = f" {escape(now.problem)}" if now.problem else ""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in lines(now))
    notes = "".join(f'<div class="note">{escape(warning)}</div>' for warning in now.warnings)
    if not buttons and not now.over:
        notes += '<div class="quiet small">To leave, stop this cell with its stop button.</div>'
    return (
        f'<div class="head"><span class="title">{escape(now.run_id or "a served model")}</span></div>{about}'
        f'<div class="state" role="status" aria-live="polite"><div><b>{escape(text)}</b>{problem}</div></div>'
        f"<table>{rows}</table>{notes}"
    )


@keywords_of(ServerConfig)
def serve(
    invitation: str,
    *,
    folder: str | Path | None = None,
    code: str | None = None,
    block: bool | None = None,
    **options: Any,
) -> Participation | None:
    """Let this machine hold some layers of a model that its community serves, and show how it goes.

        from dedloc_kit import serve

        serve("http://HOST:8000", name="Asha")

    In Jupyter the cell returns, and the panel's buttons pause and leave; on Colab the cell runs until its stop button
    leaves. In a script or terminal it shows a compact view and Ctrl-C leaves.

    :param invitation: the page's URL (`http://...`) or an invitation's file
    :param folder: keeps your identity and what was fetched; by default one in your home folder
    :param code: what lets you into a swarm that is not open to all; as for `join`
    :param block: whether the call waits until the session ends; by default as described above
    """
    views = Views(ServingPanel, _watch, _refused, _waiting)
    try:
        given = checked(ServerConfig, options)
    except UserError as error:
        refuse(str(error), views)
        return None

    def start(code: str) -> ServingSession:
        return ServingSession(invitation, folder=Path(folder) if folder else None, settings=given, code=code)

    return take_part(invitation, (given, folder, code), _sessions, start, views, code=code, block=block)


def _watch(session: ServingSession) -> None:
    from dedloc_kit.session.serving_display import watch

    watch(session)


def _refused(problem: str) -> ServingSnapshot:
    return ServingSnapshot(phase="failed", text="this machine cannot take part now", problem=problem)


def _waiting(text: str) -> ServingSnapshot:
    return ServingSnapshot(text=text)
