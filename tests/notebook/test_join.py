"""What the call in a notebook's cell asks for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dedloc_kit
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.notebook import join


@pytest.mark.parametrize("chosen", [{}, {"drive_only": True}])
def test_a_notebook_may_only_drive_where_its_owner_says_so(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, bool]
) -> None:
    asked = list[dict[str, Any]]()

    def session(invitation: str, *, folder: Any, settings: dict[str, Any], code: str) -> Any:
        asked.append(settings)
        return SimpleNamespace()

    monkeypatch.setattr(join, "Session", session)
    monkeypatch.setattr(join, "take_part", lambda invitation, arguments, sessions, start, views, **options: start(""))
    dedloc_kit.join("http://10.0.0.1:8000", name="Asha", **chosen)  # type: ignore[arg-type]
    (settings,) = asked
    assert JoinOptions(folder=Path("f"), **settings).drive_only == bool(chosen)
