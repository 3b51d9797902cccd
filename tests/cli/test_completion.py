"""A shell completes commands, options and their choices, out of the parsers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dedloc_kit.cli.completion import SHELLS
from dedloc_kit.cli.main import main
from dedloc_kit.cli.table import COMMANDS

ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_dedloc
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "dedloc.bash"
    path.write_text(script("bash", capsys))
    return path


def completed(bash: Path, *words: str) -> list[str]:
    """What a real bash offers for the last of these words."""
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", str(bash), *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.child
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_options_and_choices(bash: Path) -> None:
    assert completed(bash, "dedloc", "ru") == ["run"]
    assert completed(bash, "dedloc", "run", "ro") == ["rollback"]
    assert completed(bash, "dedloc", "join", "--sw") == ["--swarm-host", "--swarm-port"]
    assert completed(bash, "dedloc", "join", "http://x", "--name", "run", "--swarm-p") == ["--swarm-port"]
    assert completed(bash, "dedloc", "export", "runs/x", "--to", "g") == ["gguf"]
    assert completed(bash, "dedloc", "run", "rollback", "runs/x", "--r") == ["--rate"]
    assert completed(bash, "dedloc", "--print-completion", "") == [*SHELLS]
    assert completed(bash, "dedloc", "") == [each.name for below in COMMANDS.values() for each in below]
    assert completed(bash, "dedloc", "join", "ru") == [], "the shell names files"


@pytest.mark.child
@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "bash"])
def test_other_shells_read_theirs_without_a_fault(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert "rollback" in text
    assert "swarm-port" in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    path = tmp_path / "dedloc"
    path.write_text(text)
    subprocess.run([shell, "-n", str(path)], check=True, timeout=60)
