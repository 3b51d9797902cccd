"""The `dedloc` command: what goes wrong is said in one line with the fix, and the exit code is 2."""

import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.cli.main import FOR_ORGANIZERS, main
from dedloc_kit.ledger import Contributor, Ledger
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.steering.orders import OrderBook
from tests.commands import assert_refused, dedloc, launch, run_file
from tests.invitations import NOBODY, ORGANIZER, invited
from tests.tiny import tiny_run


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("words") / "tokenizer"
    train_tokenizer(iter(["the quick brown fox jumps over the lazy dog. it does so again."] * 20), 60, folder)
    return folder


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["join", ""],
        ["join", " "],
        ["check", ""],
        ["serve", ""],
        ["launch", "--port", "0", ""],
        ["run", "kick", "alice", ""],
    ],
)
def test_an_empty_argument_is_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dedloc: the argument after '{arguments[-2]}' is empty; give it")


@pytest.mark.soak
def test_a_typo_in_the_configuration_names_the_nearest_key(tmp_path: Path) -> None:
    path = run_file(tmp_path)
    path.write_text(path.read_text() + "warmup_stps = 1\n")
    assert_refused(launch(path), "run.toml", "optimizer.warmup_stps", "did you mean 'warmup_steps'?")


@pytest.mark.soak
def test_a_configuration_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert_refused(launch(tmp_path / "none.toml"), "none.toml does not exist")


@pytest.mark.soak
def test_an_unknown_task_names_the_known_ones(tmp_path: Path) -> None:
    assert_refused(launch(run_file(tmp_path, task="albrt")), "there is no task 'albrt'", "did you mean 'albert'?")


@pytest.mark.soak
def test_a_missing_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    assert_refused(launch(run_file(tmp_path)), "tokenizer", "does not exist", "dedloc prepare tokenizer RUN.toml")


@pytest.mark.soak
def test_a_dataset_that_does_not_exist_is_named(tmp_path: Path, tokenizer: Path) -> None:
    result = launch(run_file(tmp_path, tokenizer=str(tokenizer)))
    assert_refused(result, str(tmp_path / "corpus"))


@pytest.mark.soak
def test_a_dashboard_port_in_use_is_said_with_the_fix(tmp_path: Path, taken_port: int) -> None:
    result = launch(run_file(tmp_path), "--port", str(taken_port))
    assert_refused(result, f"port {taken_port} is in use", "--port")


@pytest.mark.soak
def test_a_swarm_port_in_use_is_said_with_the_fix(tmp_path: Path, tokenizer: Path, taken_port: int) -> None:
    (tmp_path / "corpus.txt").write_text("One sentence. And another one.\n\n" * 100)
    path = run_file(tmp_path, tokenizer=str(tokenizer), dataset="./corpus.txt")
    result = launch(path, "--swarm-host", "127.0.0.1", "--swarm-port", str(taken_port))
    assert_refused(result, f"127.0.0.1:{taken_port}", "--swarm-port")


@pytest.mark.soak
def test_a_value_that_a_peer_cannot_have_is_refused_by_its_name(tmp_path: Path) -> None:
    refused = launch(run_file(tmp_path), "--announce-host", "two words")
    assert refused.returncode == 2
    assert "argument --announce-host: must be a name or an address" in refused.stderr


@pytest.mark.soak
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = launch(run_file(tmp_path), "--folder", str(tmp_path / "file" / "run"))
    assert_refused(result, str(tmp_path / "file" / "run"), "--folder")


@pytest.mark.soak
def test_damaged_orders_are_put_right_before_a_run_starts_without_them(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "orders.json").write_text("{")
    result = launch(run_file(tmp_path), "--folder", str(tmp_path / "run"))
    assert_refused(result, str(tmp_path / "run" / "orders.json"), "remove it to lift all orders")


@pytest.mark.soak
def test_a_coordinator_that_does_not_answer_is_said(tmp_path: Path) -> None:
    result = dedloc("join", "http://127.0.0.1:9", folder=tmp_path)
    assert_refused(result, "no coordinator answers at http://127.0.0.1:9")


@pytest.mark.soak
def test_a_swarm_that_does_not_answer_is_said(tmp_path: Path) -> None:
    path = tmp_path / "invitation.json"
    path.write_text(invited(tiny_run()).model_dump_json())
    result = dedloc("join", path, "--task-module", "tests.tiny", folder=tmp_path)
    assert_refused(result, "nobody answers at 127.0.0.1, port 9")


@pytest.mark.soak
def test_an_invitation_with_a_wrong_fingerprint_is_refused(tmp_path: Path) -> None:
    run = tiny_run()
    changed = Invitation.of(tiny_run(global_batch=65), (NOBODY,)).model_copy(update={"run_id": run.run_id})
    path = tmp_path / "invitation.json"
    path.write_text(changed.signed(ORGANIZER.key).model_dump_json())
    assert_refused(dedloc("join", path, folder=tmp_path), "wrong fingerprint", run.run_id)


@pytest.mark.soak
def test_a_run_is_paused_and_goes_on_by_its_folder_and_another_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(dedloc("run", "pause", tmp_path, folder=tmp_path), "not the folder of a run", "runs/RUN-ID")
    (tmp_path / "invitation.json").touch()
    assert dedloc("run", "pause", tmp_path, folder=tmp_path).returncode == 0
    assert OrderBook(tmp_path).read().paused
    assert dedloc("run", "resume", tmp_path, folder=tmp_path).returncode == 0
    assert not OrderBook(tmp_path).read().paused


@pytest.mark.soak
def test_a_volunteer_is_kicked_by_the_name_that_the_dashboard_shows(tmp_path: Path) -> None:
    (tmp_path / "invitation.json").touch()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.adopt(Contributor(peer, name, 1, 1, 0.0, 0.0) for peer, name in (("QmA", "Anna"), ("QmB", "Anand")))
    ledger.close()
    assert_refused(dedloc("run", "kick", tmp_path, "An", folder=tmp_path), "2 peers", "Anna (QmA)", "Anand (QmB)")
    assert dedloc("run", "kick", tmp_path, "anna", folder=tmp_path).returncode == 0
    assert [(kicked.peer, kicked.name) for kicked in OrderBook(tmp_path).read().kicked] == [("QmA", "Anna")]


@pytest.mark.soak
def test_what_is_no_invitation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "invitation.json"
    path.write_text("{}")
    assert_refused(dedloc("join", path, folder=tmp_path), "this is not an invitation")
    assert_refused(dedloc("join", "nowhere.json", folder=tmp_path), "there is no invitation at 'nowhere.json'")


def test_without_a_command_all_of_them_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "volunteer this machine" in capsys.readouterr().out


def without(packages: set[str], statement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where these packages are not installed."""
    code = f"import sys; sys.modules.update(dict.fromkeys({sorted(packages)!r})); {statement}"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.soak
@pytest.mark.parametrize("command", [("launch", "run.toml"), ("demo",), ("mirror", "http://127.0.0.1:9")])
def test_a_command_for_organizers_says_what_to_install_where_it_is_missing(command: tuple[str, ...]) -> None:
    result = without(FOR_ORGANIZERS, "from dedloc_kit.cli.main import main; sys.exit(main(sys.argv[1:]))", *command)
    assert_refused(result, command[0], "which only organizers install; run pip install 'dedloc_kit[organizer]'")


@pytest.mark.real
def test_whoever_only_takes_part_needs_nothing_that_organizers_install() -> None:
    roles = "from dedloc_kit import worker; from dedloc_kit.roles import volunteer, collector, rehearsal"
    session = "from dedloc_kit.session import terminal; from dedloc_kit.notebook import generate, join, panel"
    before = (
        "from dedloc_kit.cli import doctor, main; from dedloc_kit.organizer import check, init, prepare, prepare_tokens"
    )
    result = without(FOR_ORGANIZERS, f"{roles}; {session}; {before}")
    assert result.returncode == 0, result.stderr


def test_what_only_organizers_install_is_the_extra_of_that_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {requirement.partition(">")[0] for requirement in project["optional-dependencies"]["organizer"]}
    assert extra | {"starlette"} == FOR_ORGANIZERS, "fastapi brings starlette"


@pytest.mark.soak
def test_an_unknown_recipe_names_the_known_ones(tmp_path: Path) -> None:
    assert_refused(dedloc("demo", "--recipe", "none", folder=tmp_path), "there is no recipe 'none'", "albert-demo")


@pytest.mark.parametrize("command", ["launch run.toml", "doctor", "api x", "mirror x", "serve x"])
@pytest.mark.parametrize("port", ["65536", "99999", "-1", "8000.0", "٨"])
def test_a_port_that_cannot_be_is_refused(command: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), f"--port={port}"])
    assert "argument --port: must be a TCP port, from 0 to 65535" in capsys.readouterr().err
