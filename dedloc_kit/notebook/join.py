"""`join`: this machine trains in a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dedloc_kit.notebook.taking_part import Going, Participation, Views, take_part
from dedloc_kit.session.session import Session
from dedloc_kit.session.snapshot import Snapshot

_sessions: Going[Session] = {}


def join(
    invitation: str,
    *,
    name: str | None = None,
    team: str | None = None,
    devices: str = "auto",
    folder: str | Path | None = None,
    task_module: str | None = None,
    data: Mapping[str, str | Path] | None = None,
    drive_only: bool = False,
    host_experts: bool = False,
    code: str | None = None,
    block: bool | None = None,
    lends: bool = False,
    gives_state: bool = False,
    compile: bool = False,
) -> Participation | None:
    """See `dedloc_kit.join` and `dedloc_kit.lend`."""
    settings = {"name": name, "team": team, "devices": devices, "task_module": task_module}
    chosen = {key: value for key, value in settings.items() if value is not None}
    flags = {"drive_only": drive_only, "hosts_experts": host_experts, "lends": lends, "gives_state": gives_state}
    flags["compile"] = compile
    copies = {name: Path(path).expanduser().absolute() for name, path in (data or {}).items()}
    given = {**chosen, **flags, "data": copies}

    def start(code: str) -> Session:
        return Session(invitation, folder=Path(folder) if folder else None, settings=given, code=code)

    views = Views(_panel, _watch, _refused, _waiting)
    return take_part(invitation, (given, folder, code), _sessions, start, views, code=code, block=block)


def _panel(session: Session | None) -> Any:
    from dedloc_kit.notebook.panel import Panel

    return Panel(session)


def _watch(session: Session) -> None:
    from dedloc_kit.session.display import watch

    watch(session)


def _refused(problem: str) -> Snapshot:
    return Snapshot(phase="failed", text="this machine cannot take part now", problem=problem)


def _waiting(text: str) -> Snapshot:
    return Snapshot(text=text)
