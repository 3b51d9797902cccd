"""A session in a terminal."""

import io

from dedloc_kit.display.console import Console
from dedloc_kit.session.display import SessionDisplay, view
from dedloc_kit.session.snapshot import Snapshot

ANNOUNCED = Snapshot(phase="training", text="training", announcement="[bold]Half way![/bold]")


def printed(*snapshots: Snapshot) -> list[str]:
    """The lines where there is no terminal."""
    console = Console(file=io.StringIO(), width=100)
    with SessionDisplay(console) as display:
        for snapshot in snapshots:
            display.show(snapshot)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_an_announcement_is_a_line_once_and_as_it_was_written() -> None:
    assert printed(ANNOUNCED, ANNOUNCED) == ["training", "the organizer: [bold]Half way![/bold]"]


def test_an_announcement_stays_in_the_view() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(ANNOUNCED))
    assert isinstance(console.file, io.StringIO)
    assert "The organizer: [bold]Half way![/bold]" in console.file.getvalue()
