"""What the call in a notebook's cell asks for."""

from pathlib import Path
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

    monkeypatch.setattr(join, "take_part", lambda begin, kind, where, options, **_: asked.append(options))
    dedloc_kit.join("http://10.0.0.1:8000", name="Asha", **chosen)  # type: ignore[arg-type]
    (settings,) = asked
    assert JoinOptions(folder=Path("f"), **settings).drive_only == bool(chosen)
