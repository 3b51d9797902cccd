"""`--json`: one object on standard output, whose keys the help names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dedloc_kit.cli.main import main
from dedloc_kit.display.console import print_json
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.records.steps import GlobalStep
from tests.cli.test_parsing import LEAVES
from tests.identities import an_identity
from tests.invitations import invited
from tests.swarm.hostile.test_terminal import ESCAPE, PEOPLE, STATE, page
from tests.tiny import tiny_run

COMMANDS = {"status", "check", "doctor", "evaluate", "run checkpoint", "run invite", "run admin-link"}


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a command prints, and nothing else, with `--json`."""
    assert main([*arguments, "--json"]) == code
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert isinstance(found, dict)
    assert {*found} <= keys_in_help(capsys, *arguments), "a key that the help does not name"
    return found


def keys_in_help(capsys: pytest.CaptureFixture[str], *arguments: str) -> set[str]:
    words = next(arguments[:count] for count in (2, 1) if " ".join(arguments[:count]) in COMMANDS)
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    keys = re.split(r" --|example:", text.partition("--json print one JSON object")[2].partition("keys: ")[2])[0]
    return {*re.split(r"[;,] (?:or )?", keys.strip())}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run at step 5, of which there is a checkpoint."""
    invitation = invited(tiny_run(access="invite"), url="http://127.0.0.1:9")
    (tmp_path / "invitation.json").write_text(invitation.model_dump_json())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000005.safetensors").touch()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=5, round="ab", time=1.0, samples=8, loss=1.0, peers=2, seconds=0.0), {})
    ledger.close()
    return tmp_path


def test_the_commands_that_find_facts_print_them_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = set()
    for words, _ in LEAVES:
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        if "--json " in capsys.readouterr().out:
            found.add(" ".join(words))
    assert found == COMMANDS


def test_the_state_of_a_run_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    with page(STATE, PEOPLE) as url:
        found = told(capsys, "status", url)
    assert (found["run_id"], found["step"], found["people"]["people"][0]["name"]) == (STATE["run_id"], 3, "Asha")
    assert found["rounds"]["left_out"][0]["step"] == 2


def test_an_error_stays_a_line_and_leaves_standard_output_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with page({}, PEOPLE) as url:
        assert main(["status", url, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"dedloc: {url} did not answer like a coordinator; check the address\n"


def test_a_checkpoint_is_told_with_its_step_and_its_place(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoints" / "step-00000005.safetensors"
    with peer_folder(run):
        assert told(capsys, "run", "checkpoint", str(run)) == {"step": 5, "path": str(path)}
        assert main(["run", "checkpoint", str(run)]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_a_personal_code_and_the_organizer_s_link_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    an_identity(run / IDENTITY_FILE)
    found = told(capsys, "run", "invite", str(run), "alice", "--days", "7")
    assert (found["person"], found["days"], found["machines"] > 0) == ("alice", 7, True)
    assert len(found["code"]) > 20
    assert told(capsys, "run", "admin-link", str(run))["link"].startswith("http://127.0.0.1:9/")


@pytest.mark.soak
def test_a_diagnosis_says_whether_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "doctor", str(tmp_path / "none.json"), code=2)
    assert not found["ok"]
    assert [each for each in found["findings"] if each["must"]]


class Facts(BaseModel):
    text: str
    number: float


def test_no_character_that_moves_a_terminal_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(Facts(text=f"é{ESCAPE}", number=float("nan")))
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.rstrip("\n").isprintable()
    assert json.loads(out) == {"text": f"é{ESCAPE}", "number": None}
