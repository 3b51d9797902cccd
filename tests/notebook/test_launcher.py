"""What a notebook shows, and asks, before a session begins."""

import re
import sys
import threading
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ipywidgets
import pytest

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import CODE
from dedloc_kit.notebook.launcher import OTHER_ARGUMENTS, SECRETS, take_part
from dedloc_kit.session.snapshot import CANNOT, Phase, Snapshot
from tests.invitations import ORGANIZER
from tests.notebook.test_panel import widgets_of
from tests.tiny import tiny_run

displayed: list[Any] = []


def words(widget: Any) -> str:
    """What the panel says of the moment."""
    texts = [inner.value for inner in widgets_of(widget) if isinstance(inner, ipywidgets.HTML)]
    (state,) = [text for text in texts if 'class="state"' in text]
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", state).split()))


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cell on Colab, whose owner does not answer: what happens there, in its order."""
    happened: list[str] = []

    def show(widget: Any) -> None:
        displayed.append(widget)
        happened.append(f"shows: {words(widget)}")

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
    displayed.clear()
    module("IPython.display", display=show)
    module("google")
    module("google.colab", userdata=SimpleNamespace(get=secret))
    return happened


class Ended:
    """A session that goes on until `ended` is set."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.ended.set()

    def snapshot(self) -> Snapshot:
        return Snapshot(Phase.LEFT, "It is over.")

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def leave(self) -> None: ...


def cell(happened: list[str], tmp_path: Path, access: str, refused: str = "") -> None:
    """Run one for a run with this access."""
    where = tmp_path / "invitation.json"
    where.write_text(ORGANIZER.invites(tiny_run(access, access=access)).model_dump_json())

    def begin(_where: str, *, code: str, **_: object) -> Ended:
        if refused:
            raise UserError(refused)
        happened.append(f"begun with {code!r}")
        return Ended()

    assert take_part(begin, JoinOptions, str(where), {}, folder=None, code=None, block=None) is None
    happened.append(words(displayed[-1]))


def test_on_colab_the_panel_stands_before_anything_is_asked_and_an_open_run_needs_no_code(
    colab: list[str], tmp_path: Path
) -> None:
    cell(colab, tmp_path, "open")
    assert colab == [f"shows: {SECRETS}", "begun with ''", "It is over."]


def test_a_run_by_invitation_asks_for_the_secret_below_its_panel(
    colab: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedloc_kit.access.own_code.getpass", lambda question: "")
    cell(colab, tmp_path, "invite")
    assert colab == [f"shows: {SECRETS}", f"asked for {CODE}", "begun with ''", "It is over."]


def test_what_keeps_a_session_from_beginning_is_told_in_the_same_panel(
    colab: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell(colab, tmp_path, "open", refused="no room")
    assert colab == [f"shows: {SECRETS}", f"{CANNOT} no room"]
    colab.clear()
    monkeypatch.setenv(CODE, "abc\u200b")
    cell(colab, tmp_path, "invite")
    assert "zero width space" in colab[-1]


def test_an_option_that_is_none_is_refused_in_a_panel(colab: list[str], tmp_path: Path) -> None:
    options = {"microbtach": 8}
    assert take_part(Ended, JoinOptions, "x", options, folder=None, code="", block=True) is None
    assert colab[-1].startswith(f"shows: {CANNOT}")
    assert "microbatch" in colab[-1]


def test_a_cell_with_other_arguments_leaves_the_session_that_goes_on_alone_and_says_so(
    colab: list[str], tmp_path: Path
) -> None:
    where = tmp_path / "invitation.json"
    where.write_text(ORGANIZER.invites(tiny_run()).model_dump_json())
    session, begun = Ended(), list[str]()

    def cell(**options: Any) -> str:
        def begin(_where: str, *, settings: dict[str, Any], **_: object) -> Ended:
            begun.append(" ".join(settings))
            return session

        take_part(begin, JoinOptions, str(where), options, folder=None, code="", block=True)
        return words(displayed[-1])

    assert cell(auxiliary=True) == "It is over."
    session.ended.clear()
    assert cell(microbatch=8) == f"{CANNOT} {OTHER_ARGUMENTS}"
    session.ended.set()
    assert cell(microbatch=8) == "It is over."
    assert begun == ["auxiliary", "microbatch"]
