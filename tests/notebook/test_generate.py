"""The volunteers' notebooks: valid, up to date, and nothing that an invitation holds becomes code."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import IPython
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dedloc_kit.cli.main import main
from dedloc_kit.dashboard.routes import join_routes
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.notebook.generate import CHAT, PLATFORMS, Platform, Target, chat, notebook, notebooks_for
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ServingConfig
from tests.environments import make_environment, run, small_wheel
from tests.invitations import NOBODY, ORGANIZER, invited
from tests.notebooks import valid
from tests.tiny import tiny_run

CHECKED_IN = Path(__file__).parents[2] / "notebooks"
each_platform = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)


def invitation_file(folder: Path, url: str | None = "http://192.0.2.1:8000", about: str = "") -> str:
    path = folder / "invitation.json"
    changed = Invitation.of(tiny_run(about=about), (NOBODY,), wheel=running_wheel().pinned).model_copy(
        update={"url": url}
    )
    path.write_text(changed.signed(ORGANIZER.key).model_dump_json())
    return str(path)


def cells(text: str, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == kind]


def code_of(path: Path) -> str:
    (code,) = cells(path.read_text(), "code")
    return code


def assigned(code: str) -> dict[str, Any]:
    """What the cell assigns, as Python reads it once IPython has put its magics into words."""
    tree = ast.parse(TransformerManager().transform_cell(code))
    statements = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in statements}


@each_platform
def test_the_checked_in_notebooks_are_what_the_generator_makes(platform: Platform) -> None:
    made = notebook(platform, Target())
    assert (CHECKED_IN / platform.file).read_text() == made, "run python -m dedloc_kit.notebook.generate"


def test_the_notebook_for_a_chat_is_up_to_date_and_says_first_who_sees_what_is_typed() -> None:
    made = (CHECKED_IN / CHAT).read_text()
    read = valid(made)
    first, cell, after = read.cells
    target = Target(text=first.source.split("\n\n")[2])
    assert chat(target) == made, "run python -m dedloc_kit.notebook.generate"
    assert "**The computers that answer see what you type" in first.source
    assert assigned(cell.source) == {"INVITATION": "", "KIT": ""}
    assert cell.source.endswith("chat(INVITATION)")
    for words in ("stop button", "What runs", "leaves it", "IP address"):
        assert words in after.source


def test_the_notebook_for_a_chat_with_one_model_holds_its_address(tmp_path: Path) -> None:
    served = ServingConfig(name="toy", about="For all.", model="toy", config={}, manifest="0" * 64)
    invitation = Invitation.of(served, (NOBODY,), "http://192.0.2.1:8000", wheel=running_wheel().pinned)
    (tmp_path / "invitation.json").write_text(invitation.signed(ORGANIZER.key).model_dump_json())
    (path,) = notebooks_for(str(tmp_path / "invitation.json"), tmp_path / "out")
    assert path.name == CHAT
    assert assigned(code_of(path)) == {"INVITATION": f"http://192.0.2.1:8000#{ORGANIZER.peer}"}
    assert f'%pip install -q "http://192.0.2.1:8000/wheel/{running_wheel().pinned}"\n' in code_of(path)
    assert "talks with the model **toy**.\n\n> For all." in cells(path.read_text(), "markdown")[0]


@each_platform
def test_a_notebook_is_valid_and_short_and_its_one_code_cell_comes_soon(platform: Platform) -> None:
    read = valid(notebook(platform, Target()))
    kinds = [cell.cell_type for cell in read.cells]
    assert len(kinds) <= 6
    assert kinds.count("code") == 1
    assert kinds.index("code") <= 2
    assert assigned(read.cells[2].source) == {"INVITATION": "", "KIT": "", "NAME": ""}


@each_platform
def test_every_notebook_says_what_runs_what_leaves_and_how_to_stop(platform: Platform) -> None:
    text = " ".join(cells(notebook(platform, Target()), "markdown"))
    for words in ("What runs", "What leaves it", "IP address", "What stays with you", "How to stop", "trust"):
        assert words in text
    rules = {"colab": "https://research.google.com/colaboratory/faq.html", "kaggle": "https://www.kaggle.com/docs"}
    for name, link in rules.items():
        assert (link in text) == (name == platform.name)


def test_colab_shows_form_fields_and_both_services_are_asked_for_a_gpu() -> None:
    made = {platform.name: json.loads(notebook(platform, Target())) for platform in PLATFORMS}
    assert notebook(PLATFORMS[1], Target()).count("# @param {type:") == 3
    assert made["colab"]["metadata"]["accelerator"] == "GPU"
    assert made["kaggle"]["metadata"]["kaggle"]["isGpuEnabled"]
    assert made["kaggle"]["metadata"]["kaggle"]["isInternetEnabled"]


def test_a_run_s_notebooks_hold_its_address_and_say_what_it_is_for(tmp_path: Path) -> None:
    paths = notebooks_for(invitation_file(tmp_path, about="Bengali for all."), tmp_path / "out")
    assert [path.name for path in paths] == ["join.ipynb", "join_colab.ipynb", "join_kaggle.ipynb"]
    for path in paths:
        valid(path.read_text())
        assert assigned(code_of(path)) == {"INVITATION": f"http://192.0.2.1:8000#{ORGANIZER.peer}", "NAME": ""}
        assert f'%pip install -q "http://192.0.2.1:8000/wheel/{running_wheel().pinned}"\n' in code_of(path)
        assert "joins the run **tiny**.\n\n> Bengali for all." in cells(path.read_text(), "markdown")[0]


def test_the_kit_of_a_notebook_is_the_one_that_the_organizer_has_whatever_the_network_says(tmp_path: Path) -> None:
    other = running_wheel().pinned.replace("#sha256=", "#sha256=0")[:-1]
    invitation = Invitation.of(tiny_run(), (NOBODY,), "http://192.0.2.1:8000", wheel=other).signed(ORGANIZER.key)
    (tmp_path / "invitation.json").write_text(invitation.model_dump_json())
    with pytest.raises(UserError, match="another dedloc_kit than is here; write the notebooks where it runs"):
        notebooks_for(str(tmp_path / "invitation.json"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.child
def test_a_notebook_of_a_run_that_was_updated_since_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    coordinator.start()
    coordinator.entrance.give_out(invited(tiny_run(), url=coordinator.url, wheel=running_wheel().pinned))
    (path, *_) = notebooks_for(coordinator.url, tmp_path)
    monkeypatch.setattr(join_routes, "running_wheel", lambda: small_wheel(2))
    (tmp_path / "cell.ipy").write_text(code_of(path))
    # All that is installed here but the checkout: behind a .pth file those of this environment do not count.
    python = make_environment(tmp_path / "environment", "--without-pip") / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path)
    Path(packages, "others.pth").write_text(f"{Path(IPython.__file__).parents[1]}\n")
    done = subprocess.run(
        [python, "-m", "IPython", "--colors=NoColor", "cell.ipy"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PIP_NO_DEPS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    coordinator.stop()
    told = done.stdout + done.stderr
    assert "404" in told
    line = r"^RuntimeError: The program is not installed. If it says 404 .* ask the organizer for the newest one\..*$"
    assert re.search(line, told, re.MULTILINE), told


@pytest.mark.parametrize(
    "url",
    [
        'http://h/"\nimport os',
        "http://h/$(id)",
        "http://h/`id`",
        "http://h/{id}",
        "http://h/';id",
        "http://h/ --user",
        "http://name:secret@h/",
        "file:///etc/passwd",
        "http://h/\\",
    ],
)
def test_an_address_that_could_become_code_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this is not an invitation .url: |a notebook cannot hold the address"):
        notebooks_for(invitation_file(tmp_path, url), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_organizer_says_of_the_run_is_only_ever_text(tmp_path: Path) -> None:
    about = "<img src=x onerror=alert(1)> **[click](javascript:x)** $x$ `y` {run} বাংলা"
    (path, *_) = notebooks_for(invitation_file(tmp_path, about=about), tmp_path)
    shown = cells(path.read_text(), "markdown")[0].partition("> ")[2]
    quoted = shown.splitlines()[0]
    assert not set(quoted) & set("<>*[]()$`{}")
    assert "&#60;img src&#61;x" in quoted


def test_an_invitation_without_an_address_is_of_no_use_to_a_notebook(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no coordinator's address"):
        notebooks_for(invitation_file(tmp_path, url=None), tmp_path)


def test_the_command_writes_the_notebooks_into_the_run_s_folder_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["notebook", invitation_file(tmp_path)]) == 0
    folder = Path("runs") / tiny_run().run_id / "notebooks"
    assert [Path(line) for line in capsys.readouterr().out.splitlines()] == sorted(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["notebook", invitation_file(tmp_path), "--output", str(tmp_path / "file" / "folder")]) == 2
    assert "--output" in capsys.readouterr().err
