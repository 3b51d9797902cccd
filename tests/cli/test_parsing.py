"""The parser of the command line: one command is imported, all of them are listed under headings."""

import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dedloc_kit.cli import commands
from dedloc_kit.cli.main import main, parser
from dedloc_kit.cli.table import COMMANDS, Command

SLOW = ("numpy", "pydantic", "rich", "torch", "hivemind", "transformers", "huggingface_hub", "requests")
IMPORTED = """
import contextlib, sys
from dedloc_kit.cli.main import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sys.modules)
"""


def leaves(below: Sequence[Command], *before: str) -> Iterator[tuple[list[str], Command]]:
    """The commands that do something, with the words that name them."""
    for command in below:
        words = [*before, command.name]
        yield from leaves(command.below, *words) if command.below else [(words, command)]


LEAVES = [leaf for commands in COMMANDS.values() for leaf in leaves(commands)]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of these arguments, which are wrong."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_every_file_of_the_commands_is_a_command() -> None:
    files = {each.name for each in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.") if not each.ispkg}
    listed = {command.module or command.name for _, command in LEAVES}
    assert files == {f"{commands.__name__}.{name}" for name in listed}


@pytest.mark.child
@pytest.mark.parametrize(("arguments", "needed"), [(["--help"], set()), (["demo", "--help"], {"demo"})])
def test_help_imports_the_command_that_is_named_and_nothing_slow(arguments: list[str], needed: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    assert not {name.partition(".")[0] for name in imported} & {*SLOW}
    assert {*re.findall(r"dedloc_kit\.cli\.commands\.(\S+)", " ".join(imported))} == needed


def test_all_commands_stand_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().out
    titles = [*COMMANDS, "options"]
    for title, following in pairwise(titles):
        part = told.partition(f"\n{title}:\n")[2].partition(f"\n{following}:\n")[0]
        assert re.findall(r"^  ([a-z-]+)", part, re.MULTILINE) == [command.name for command in COMMANDS[title]]


def test_a_group_without_a_command_lists_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare"]) == 2
    told = capsys.readouterr().out
    assert told.startswith("usage: dedloc prepare [-h] COMMAND")
    assert "tokenizer  train the tokenizer" in told


@pytest.mark.parametrize(
    ("typed", "usage", "said"),
    [
        ("join x --devicse cpu", "dedloc join", "no option '--devicse'; did you mean --devices?"),
        ("join x --devicse=cpu", "dedloc join", "no option '--devicse'; did you mean --devices?"),
        ("join --devicse", "dedloc join", "no option '--devicse'; did you mean --devices?"),
        ("join x --client", "dedloc join", "no option '--client'; did you mean --client-mode?"),
        ("prepare tokens x --psh y", "dedloc prepare tokens", "no option '--psh'; did you mean --push?"),
        ("--versoin", "dedloc", "no option '--versoin'; did you mean --version?"),
        ("status x y", "dedloc status", "no place for 'y'"),
        ("jion x", "dedloc", "no command 'jion'; did you mean 'dedloc join'?"),
        ("prepare tokenzier x", "dedloc prepare", "did you mean 'dedloc prepare tokenizer'?"),
        ("tokenizer x", "dedloc", "no command 'tokenizer'; did you mean 'dedloc prepare tokenizer'?"),
        ("qqqqqq", "dedloc", "no command 'qqqqqq'; 'dedloc --help' lists all"),
    ],
)
def test_an_unknown_word_is_answered_with_the_usage_and_the_nearest(
    typed: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(typed.split(), capsys)
    assert told.startswith(f"usage: {usage} [-h]")
    assert said in told


def test_a_text_that_looks_like_an_option_is_one_only_if_it_is_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no place for '--a text'" in refused(["status", "x", "--a text"], capsys)
    assert "there is no place for '--devicse'" in refused(["status", "x", "--", "--devicse"], capsys)


def test_at_most_twenty_names_stand_at_the_top() -> None:
    names = [command.name for commands in COMMANDS.values() for command in commands]
    assert len(names) == len({*names}) <= 20


@pytest.mark.parametrize(
    ("behind", "line"),
    [
        ("kick bob RUN", "kick RUN bob"),
        ("announce 'Half way!' RUN", "announce RUN 'Half way!'"),
        ("rollback 1200 RUN --rate 0.5", "rollback RUN 1200 --rate 0.5"),
        ("rollback --rate 0.5 1200 RUN", "rollback --rate 0.5 RUN 1200"),
        ("invite alice RUN", "invite RUN alice"),
        ("revoke alice RUN", "revoke RUN alice"),
    ],
)
def test_arguments_that_are_swapped_are_answered_with_the_right_line(
    behind: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "our run")
    (tmp_path / "our run").mkdir()
    assert main(["run", *(folder if word == "RUN" else word for word in shlex.split(behind))]) == 2
    right = line.replace("RUN", shlex.quote(folder))
    assert capsys.readouterr().err == f"dedloc: the run's folder comes first: dedloc run {right}\n"


def test_an_export_into_the_folder_of_a_run_is_answered_with_the_right_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "invitation.json").touch()
    assert main(["export", "our-model", str(tmp_path), "--to", "gguf"]) == 2
    assert f"comes first: dedloc export {tmp_path} our-model, with the options" in capsys.readouterr().err


def test_what_a_group_has_is_listed_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = " ".join(capsys.readouterr().out.split())
    for group in (each for below in COMMANDS.values() for each in below if each.below):
        assert f"{group.name} {group.help}: {', '.join(each.name for each in group.below)}" in told


def test_an_empty_text_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "announce", str(tmp_path / "none"), ""]) == 2
    assert "none is not the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize("words", [words for words, _ in LEAVES], ids=" ".join)
def test_the_help_of_a_command_ends_with_an_example_that_it_takes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    title, example = capsys.readouterr().out.splitlines()[-2:]
    assert title == "example:"
    dedloc, *typed = shlex.split(example)
    assert dedloc == "dedloc"
    assert parser().parse_args(typed).command == " ".join(words)


def test_how_to_leave_and_what_stays_is_said_before_one_joins(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["join", "--help"])
    assert "leave with Ctrl-C. What it has given until then stays" in " ".join(capsys.readouterr().out.split())
