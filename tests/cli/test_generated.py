"""An option is declared once: as a field, which the command line, Python and the worker's job take."""

import argparse
import inspect
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

import dedloc_kit
from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.main import parser
from dedloc_kit.config.machine import JoinOptions, PageOptions, PeerConfig
from dedloc_kit.config.option import HIDDEN, Option, options_of
from dedloc_kit.errors import UserError
from dedloc_kit.notebook.keywords import checked, keywords_of
from dedloc_kit.serving.config import ServerConfig


class Toy(PeerConfig):
    """As a role of its own would have it."""

    patience: Annotated[int, Field(ge=1), Option("MINUTES", "at least a minute")] = 5
    """Minutes to wait."""
    loud: bool = False
    """Say everything."""
    polite: bool = True
    """Say please."""
    secret: Annotated[str, HIDDEN] = "s"


def typed(*words: str) -> dict[str, object]:
    arguments = argparse.ArgumentParser()
    add_options(arguments, Toy)
    return given(Toy, arguments.parse_args(words))


def test_a_new_field_is_an_option_of_the_command_and_a_keyword_of_the_function() -> None:
    @keywords_of(Toy)
    def visit(where: str, *, folder: str = "", **options: object) -> dict[str, object]:
        """Go there."""
        return checked(Toy, options)

    arguments = argparse.ArgumentParser()
    add_options(arguments, Toy)
    told = " ".join(arguments.format_help().split())
    assert "--patience MINUTES minutes to wait; default: 5" in told
    assert "--no-polite" in told
    assert "secret" not in told
    parameters = inspect.signature(visit).parameters
    assert list(parameters)[:3] == ["where", "folder", "name"]
    assert (parameters["patience"].default, "secret" in parameters) == (5, False)
    assert ":param patience: Minutes to wait." in (visit.__doc__ or "")
    assert visit("x", patience=9, loud=True) == typed("--patience", "9", "--loud") == {"patience": 9, "loud": True}
    made = Toy.model_validate_json(Toy(folder=Path("f"), patience=9).model_dump_json())
    assert made.patience == 9, "through the worker's job"


def test_what_is_left_out_is_left_to_the_field() -> None:
    assert typed() == {}
    assert typed("--no-polite", "--data", "a=b") == {"polite": False, "data": {"a": Path("b").absolute()}}
    assert typed("--reachable") == {"client_mode": False}
    assert typed("--client-mode") == {"client_mode": True}


@pytest.mark.parametrize("wrong", ["0", "-3", "x", "1.5", "", "\u0663"])
def test_a_value_that_cannot_be_is_refused_in_words(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed(f"--patience={wrong}")
    assert "argument --patience: must be at least a minute" in capsys.readouterr().err


def test_a_keyword_that_is_none_names_the_nearest() -> None:
    with pytest.raises(UserError, match="pateince is not a known key; did you mean 'patience'"):
        checked(Toy, {"pateince": 3})
    with pytest.raises(UserError, match=r"patience: .* not 0"):
        checked(Toy, {"patience": 0})


@pytest.mark.parametrize(
    ("command", "kinds"),
    [("join", [JoinOptions]), ("serve", [ServerConfig, PageOptions])],
)
def test_every_field_stands_in_the_help_of_its_command(
    command: str, kinds: list[type[PeerConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    told = capsys.readouterr().out
    for name, field, option in (each for kind in kinds for each in options_of(kind)):
        negated = "no-" if field.default is True else ""
        assert (option.flag or f"--{negated}{name.replace('_', '-')}") in told
        assert field.description, f"{name} has no help"


def test_python_takes_what_the_commands_take() -> None:
    for function, kind in ((dedloc_kit.join, JoinOptions), (dedloc_kit.serve, ServerConfig)):
        assert {name for name, _, _ in options_of(kind)} <= set(inspect.signature(function).parameters)
