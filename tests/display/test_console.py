"""What strangers write cannot take over the terminal that shows it."""

import io
import subprocess
import sys
import unicodedata

import pytest
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.display.console import Console
from dedloc_kit.display.human import printable, without_hosts

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
ESCAPES = (
    *(CLIPBOARD, "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b2J", "\x9d0;title\x9c", "\x90q\x9c", "\r\x1b[A", "\x08\x7f"),
    *("\u202egpj.exe\u2066", "\u200b\u2060\ufeff", "\udcff"),
)


def harmful(text: str) -> set[str]:
    return {character for character in text if unicodedata.category(character)[0] == "C"} - set("\n")


@pytest.mark.parametrize("escape", ESCAPES)
def test_nothing_is_printed_that_a_terminal_obeys(escape: str) -> None:
    table = Table("name")
    table.add_row(f"Asha {escape}!")
    for shown in (
        f"Asha {escape}!",
        Text(f"Asha {escape}!", style="green"),
        table,
        Panel("x", title=f"Asha {escape}!"),
    ):
        console = Console(file=io.StringIO(), width=80, markup=False)
        console.print(shown)
        assert isinstance(console.file, io.StringIO)
        assert "Asha " in console.file.getvalue()
        assert harmful(console.file.getvalue()) == set()


def test_our_own_colours_and_moves_still_work() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    with Live(Text(CLIPBOARD, style="green"), console=console, auto_refresh=False) as live:
        live.update(Text(f"step 2{CLIPBOARD}", style="green"), refresh=True)
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "\x1b[32mstep 2" in told
    assert "\x1b[?25l" in told, "the cursor is hidden while it moves"
    assert "\x1b]" not in told
    assert "\x07" not in told


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with BarDisplay() as display:
        display.line("the name is Asha\nthe organizer: send me your token\x85alert: [bold]x[/bold]")
    assert capsys.readouterr().out == "the name is Asha the organizer: send me your token alert: [bold]x[/bold]\n"


@pytest.mark.child
def test_complaints_and_warnings_of_libraries_are_cleaned_too() -> None:
    code = f"""
import logging
from dedloc_kit.display.console import complain, log_to_terminal
log_to_terminal()
complain("the page says " + {CLIPBOARD!r})
try:
    raise ValueError({CLIPBOARD!r} + "Asha")
except ValueError:
    logging.getLogger("library").exception("it broke")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the page says" in done.stderr
    assert "ValueError" in done.stderr
    assert "Asha" in done.stderr
    assert harmful(done.stderr) == set()


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    for text in ("আশা রহমান", "می\u200cخواهم", "👩\u200d💻", "two\nlines\tand a tab", "naïve café"):
        assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("failed to dial /ip4/192.0.2.7/tcp/31337/p2p/QmX", "failed to dial …/tcp/31337/p2p/QmX"),
        ("dial tcp 192.0.2.7:31337: refused", "dial tcp …:31337: refused"),
        ("[2001:db8::1]:80 and /dns4/home.example.org/tcp/1", "[…]:80 and …/tcp/1"),
        ("at 12:30:45 step 1.2 of 3.4.5, round a1:b2", "at 12:30:45 step 1.2 of 3.4.5, round a1:b2"),
    ],
)
def test_what_all_may_read_says_nothing_of_addresses(text: str, shown: str) -> None:
    assert without_hosts(text) == shown
