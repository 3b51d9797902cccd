"""A session in a terminal."""

import io
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from dedloc_kit.display.console import Console
from dedloc_kit.session.snapshot import CANNOT, LossPoint, Phase, Progress, Snapshot
from dedloc_kit.session.terminal import SessionDisplay, view, watch

HOSTILE = "<script>x</script>[bold]\x1b[2J"
TRAINING = Snapshot(
    Phase.WORKING,
    "Training: your machine computes samples.",
    facts=(("given", "64 samples in 2 h"), ("machine", "CPU")),
    progress=Progress("step 41 of 100: 128 of 512 samples, 64 by you", 0.25, 0.125, 90.0),
    losses=(LossPoint(1, 3.0, 0), LossPoint(2, 2.0, 8)),
    title="toy",
    notes=(("From the organizer", "[bold]Half way![/bold]"),),
    links=(("live page", "http://h:8000"),),
)


def printed(*snapshots: Snapshot) -> list[str]:
    """The lines where there is no terminal."""
    console = Console(file=io.StringIO(), width=100)
    with SessionDisplay(console) as display:
        for snapshot in snapshots:
            display.show(snapshot)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def seen(snapshot: Snapshot) -> str:
    """The view, without its frame."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(view(snapshot))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    return " ".join(text.replace("│", " ").split())


def test_the_view_shows_the_whole_snapshot() -> None:
    told = seen(TRAINING)
    for part in (
        *("toy", "Training: your machine computes samples.", "From the organizer: [bold]Half way![/bold]"),
        *("128 of 512 samples, 64 by you, about 1 min left", "given 64 samples in 2 h", "machine CPU"),
        *("loss █▁", "live page http://h:8000", "Ctrl-C leaves"),
    ):
        assert part in told
    assert "Ctrl-C again leaves at once" in seen(replace(TRAINING, phase=Phase.LEAVING))
    assert "Ctrl-C" not in seen(replace(TRAINING, phase=Phase.LEFT))
    assert "! the clock is wrong" in seen(replace(TRAINING, warnings=("the clock is wrong",)))
    assert "12 s so far" in seen(replace(TRAINING, progress=Progress("12 s so far")))


def test_without_a_terminal_each_change_is_a_line() -> None:
    full = replace(TRAINING, text="Training; the batch is full.")
    step = replace(TRAINING, notes=(("Newest step", "Your machine computed 8 of the 64 samples of step 2."),))
    paused = replace(TRAINING, phase=Phase.WAITING, text="Paused.", notes=(), warnings=("the line\nis slow",))
    assert printed(TRAINING, TRAINING, full, TRAINING, step, full, paused, TRAINING) == [
        "Training: your machine computes samples.",
        "From the organizer: [bold]Half way![/bold]",
        "Training; the batch is full.",
        "Newest step: Your machine computed 8 of the 64 samples of step 2.",
        "From the organizer: [bold]Half way![/bold]",
        "Paused.",
        "the line is slow",
        "Training: your machine computes samples.",
        "From the organizer: [bold]Half way![/bold]",
    ]


@pytest.mark.parametrize("shown", [seen, lambda now: "\n".join(printed(now))])
def test_what_others_wrote_does_not_take_over_the_terminal(shown: Callable[[Snapshot], str]) -> None:
    pair = (HOSTILE, HOSTILE)
    told = shown(
        Snapshot(
            *(Phase.WORKING, HOSTILE, (pair,), Progress(HOSTILE), None, (HOSTILE,)),
            *(HOSTILE, HOSTILE, (pair,), (pair,), HOSTILE),
        )
    )
    assert "\x1b[2J" not in told
    assert "[bold]" in told


class Scripted:
    """A session that is over after so many looks; Ctrl-C comes at the first ones."""

    def __init__(self, last: Snapshot, interrupts: int = 0) -> None:
        self.ended = threading.Event()
        self._last, self._interrupts = last, interrupts
        self.left = 0

    def snapshot(self) -> Snapshot:
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt
        self.ended.set()
        return self._last

    def pause(self) -> None:
        raise AssertionError

    resume = pause

    def leave(self) -> None:
        self.left += 1


def test_ctrl_c_leaves_and_a_second_one_ends_at_once() -> None:
    once = Scripted(Snapshot(Phase.LEFT, "You have left."), interrupts=1)
    assert watch(once) == 0
    assert once.left == 1
    twice = Scripted(Snapshot(Phase.LEFT, "You have left."), interrupts=2)
    with pytest.raises(KeyboardInterrupt):
        watch(twice)
    assert twice.left == 1


def test_a_failure_is_told_once_with_its_reason_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Snapshot(Phase.FAILED, "there is no invitation at x; check the path")
    assert watch(Scripted(failed)) == 2
    said = capsys.readouterr()
    assert said.err == "dedloc: there is no invitation at x; check the path\n"
    assert said.out == ""
    assert CANNOT in seen(failed)
