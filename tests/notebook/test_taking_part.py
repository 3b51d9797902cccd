"""What a notebook shows, and asks, before a session begins."""

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import CODE
from dedloc_kit.notebook.taking_part import OTHER_ARGUMENTS, SECRETS, OpenSessions, Views, take_part
from tests.invitations import ORGANIZER
from tests.tiny import tiny_run


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cell on Colab, whose owner does not answer: what happens there, in its order."""
    happened: list[str] = []

    def secret(name: str) -> str:
        happened.append(f"asked for {name}")
        raise TimeoutError

    def module(name: str, **contents: Any) -> None:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("KAGGLE_KERNEL_RUN_TYPE", CODE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.setenv("HF_TOKEN", "of-a-test")
    module("IPython", get_ipython=lambda: SimpleNamespace(kernel=None))
    module("IPython.display", display=lambda widget: happened.append("displayed"))
    module("google")
    module("google.colab", userdata=SimpleNamespace(get=secret))
    return happened


class Ended:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.ended.set()

    def snapshot(self) -> str:
        return "over"


def cell(happened: list[str], tmp_path: Path, access: str, refused: str = "") -> None:
    """Run one for a run with this access."""
    where = tmp_path / "invitation.json"
    where.write_text(ORGANIZER.invites(tiny_run(access, access=access)).model_dump_json())

    def start(code: str) -> Any:
        if refused:
            raise UserError(refused)
        happened.append(f"begun with {code!r}")
        return Ended()

    panel = SimpleNamespace(show=lambda text: happened.append(f"shows: {text}"), widget=None)
    views = Views[Any](lambda session: panel, lambda session: None, lambda why: why, lambda text: text)
    assert take_part(str(where), None, {}, start, views, code=None, block=None) is None


def test_on_colab_the_panel_stands_before_anything_is_asked_and_an_open_run_needs_no_code(
    colab: list[str], tmp_path: Path
) -> None:
    cell(colab, tmp_path, "open")
    assert colab == [f"shows: {SECRETS}", "displayed", "begun with ''", "shows: over"]


def test_a_run_by_invitation_asks_for_the_secret_below_its_panel(
    colab: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedloc_kit.access.personal_code.getpass", lambda question: "")
    cell(colab, tmp_path, "invite")
    assert colab == [f"shows: {SECRETS}", "displayed", f"asked for {CODE}", "begun with ''", "shows: over"]


def test_what_keeps_a_session_from_beginning_is_told_in_the_same_panel(
    colab: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell(colab, tmp_path, "open", refused="no room")
    assert colab == [f"shows: {SECRETS}", "displayed", "shows: no room"]
    colab.clear()
    monkeypatch.setenv(CODE, "abc\u200b")
    cell(colab, tmp_path, "invite")
    assert "zero width space" in colab[-1]


def test_a_cell_with_other_arguments_leaves_the_session_that_goes_on_alone_and_says_so(
    colab: list[str], tmp_path: Path
) -> None:
    where = tmp_path / "invitation.json"
    where.write_text(ORGANIZER.invites(tiny_run()).model_dump_json())
    session, sessions, begun = Ended(), OpenSessions[Any](), list[str]()
    panel = SimpleNamespace(show=lambda text: colab.append(f"shows: {text}"), widget=None)
    views = Views[Any](lambda session: panel, lambda session: None, lambda why: why, lambda text: text)

    def cell(arguments: str) -> str:
        def start(code: str) -> Ended:
            begun.append(arguments)
            return session

        take_part(str(where), arguments, sessions, start, views, code="", block=True)
        return colab[-1]

    assert cell("lends") == "shows: over"
    session.ended.clear()
    assert cell("trains") == "displayed", "of a panel that says why"
    assert f"shows: {OTHER_ARGUMENTS}" in colab
    session.ended.set()
    assert cell("trains") == "shows: over"
    assert begun == ["lends", "trains"]
