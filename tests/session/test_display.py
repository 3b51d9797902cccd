"""A session in a terminal."""

import io
from dataclasses import replace

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


def test_a_host_of_experts_sees_what_it_holds_and_what_these_answered_beside_its_samples() -> None:
    console = Console(file=io.StringIO(), width=100)
    hosting = Snapshot(phase="training", hosted=(12, 3), answered=45_678, session_samples=64, seconds_given=7200.0)
    console.print(view(hosting))
    console.print(view(replace(hosting, phase="left")))
    console.print(view(Snapshot(phase="training", session_samples=64)))
    assert isinstance(console.file, io.StringIO)
    told = " ".join(console.file.getvalue().split())
    assert "12 experts, copies of 3 more; 45,678 tokens answered for others" in told
    assert "Thank you: 64 samples and 45,678 tokens answered for others in 2 h" in told
    assert told.count("hosting") == 2


def test_a_lent_line_is_shown_with_what_it_carried_and_with_no_samples() -> None:
    console = Console(file=io.StringIO(), width=100)
    lending = Snapshot(phase="training", text="lending this machine's line", carried=1_200_000, seconds_given=7200.0)
    console.print(view(replace(lending, device="CPU, 1 core", global_batch=64, batch_samples=8, total_samples=0)))
    console.print(view(replace(lending, phase="left")))
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "1.2 MB carried in 2 h" in told
    assert "Thank you: 1.2 MB carried in 2 h" in told
    assert "mine" not in told
    assert "samples/s" not in told
    assert "of computing" not in told
