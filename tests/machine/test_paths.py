"""What no file can be called, and the home of nobody, are told in one line wherever somebody types them."""

from pathlib import Path

import pytest

from dedloc_kit.access.own_code import personal_code
from dedloc_kit.cli.generated import given
from dedloc_kit.cli.main import main, parser
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.errors import UserError

NOBODY = "~nobody-has-this-name/x"
LONG = "x" * 300


@pytest.mark.parametrize("path", [NOBODY, LONG, "/y" * 3000])
@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["chat"],
        ["check"],
        ["launch"],
        ["run", "pause"],
        ["launch", "none.toml", "--resume"],
        ["evaluate", "--task", "text", "--dataset", "none"],
    ],
)
def test_a_path_that_cannot_be_ends_in_one_line(
    words: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, path]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("dedloc: ")


def test_an_address_that_no_library_can_read_has_no_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "http://[::1"]) == 2
    assert "no coordinator answers at http://[::1" in capsys.readouterr().err


def test_the_home_of_nobody_is_a_path_like_others() -> None:
    options = parser().parse_args(["join", "x", "--folder", NOBODY, "--data", f"corpus={NOBODY}"])
    assert given(PeerConfig, options) == {"folder": Path(NOBODY), "data": {"corpus": Path(NOBODY).absolute()}}
    with pytest.raises(UserError, match="cannot be read"):
        personal_code("none", file=Path(NOBODY), ask=False)
