"""The chat's notebook against a model that two server processes serve: executed, and in a real browser."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit import worker
from tests import fork_server
from tests.blocks import tiny
from tests.browser import need_chromium
from tests.inference.chats import tokenizer
from tests.notebook.browser import Lab, browser_page, open_and_run, photograph_panel
from tests.notebooks import execute, of_cells, valid
from tests.served import ServedModel
from tests.swarm.harness import processes_with, wait_until

CHECKOUT = Path(__file__).parents[2]
DEADLINE = 180

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    folder = tmp_path_factory.mktemp("served")
    tiny.model("Llama", vocab_size=257, eos_token_id=0, pad_token_id=0).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_start", fork_server.worker_process)  # as conftest does it for one test
        patch.setenv("DEDLOC_HOME", str(folder / "home"))
        with ServedModel(folder, folder / "model") as served:
            served.join(span="2:4", name="রবি")
            served.wait_until_served(tiny.LAYERS)
            yield served


def cell_of(swarm: ServedModel) -> str:
    """As it stands in the checked-in notebook, with the invitation put in and the kit of this checkout."""
    notebook = valid((CHECKOUT / "notebooks" / "chat.ipynb").read_text())
    (code,) = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    code = code.replace('INVITATION = ""', f"INVITATION = {swarm.where!r}").replace('KIT = ""', 'KIT = "#sha256="')
    return re.sub("^%pip .*$", "", code, flags=re.MULTILINE)


def environment_of(folder: Path) -> dict[str, str]:
    return {"DEDLOC_HOME": str(folder / "home"), "PYTHONPATH": str(CHECKOUT), "HF_HUB_OFFLINE": "1"}


def test_the_notebook_answers_and_leaves_nothing_behind(swarm: ServedModel, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    cells = [cell_of(swarm), "talk = chat(INVITATION)\nfor text in ('hello', 'and now?'): print(repr(talk.say(text)))"]
    notebook = of_cells(*cells)
    execute(notebook, DEADLINE, CHECKOUT, {**os.environ, **environment_of(tmp_path)})
    printed = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    answers = [line for line in printed.splitlines() if line.startswith(("'", '"'))]
    assert len(answers) == 2, printed
    assert all("unexpected" not in answer and len(answer) > 10 for answer in answers), answers
    shown = str(notebook.metadata.get("widgets", {}))
    for words in ("toy", "see what you type", "layers 0:2", "রবি</bdi> (layers 2:4)", "tokens/s"):
        assert words in shown
    wait_until(lambda: not processes_with(home), "something outlived the notebook", DEADLINE)


def test_in_a_browser_one_types_stops_and_goes_on(swarm: ServedModel, tmp_path: Path) -> None:
    need_chromium()
    with Lab(tmp_path / "lab", environment=environment_of(tmp_path)) as lab, browser_page() as page:
        lab.write("chat.ipynb", cell_of(swarm))
        open_and_run(page, lab, "chat.ipynb")
        panel = page.locator(".dedloc-chat")
        panel.get_by_role("button", name="Send").and_(page.locator(":enabled")).wait_for()
        assert "see what you type" in panel.inner_text()
        box = panel.locator("textarea")
        box.press_sequentially("hello")
        with swarm.servers[1].frozen():
            box.press("Enter")
            panel.get_by_role("button", name="Stop").and_(page.locator(":enabled")).click()
            panel.get_by_text("Stopping after the next word").wait_for()
        panel.get_by_text("(stopped)").wait_for()
        assert box.input_value() == ""
        box.fill("and now?")
        panel.get_by_role("button", name="Send").and_(page.locator(":enabled")).click()
        panel.get_by_text("tokens/s").wait_for()
        panel.get_by_text("রবি").wait_for()
        photograph_panel(page, "chat")
