"""A session in a terminal: one compact view that moves, or lines where there is no terminal."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dedloc_kit.display.console import Console, complain
from dedloc_kit.session.snapshot import CANNOT, Phase, Progress, Snapshot, Watched, follow

_BARS, _WIDTH = "▁▂▃▄▅▆▇█", 40
_COLOURS = {
    Phase.WORKING: "green",
    **dict.fromkeys((Phase.WAITING, Phase.RESTARTING, Phase.PAUSED), "yellow"),
    Phase.FAILED: "red",
}


def watch(session: Watched) -> int:
    """Show the session until it has ended; returns the exit code. Ctrl-C leaves, a second one at once."""
    with SessionDisplay() as display:
        try:
            follow(session, display.show)
        except KeyboardInterrupt:
            session.leave()
            follow(session, display.show)
    last = session.snapshot()
    if last.phase is not Phase.FAILED:
        return 0
    complain(last.text)
    return 2


class SessionDisplay:
    """Shows snapshots; what others wrote is shown as it is, never as markup."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._phase: Phase | None = None
        self._doing = set[str]()  # said since the phase began
        self._said = list[str]()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, now: Snapshot) -> None:
        """Bring the view up to date, or write the lines that are new."""
        if self._live is not None:
            self._live.update(view(now), refresh=True)
            return
        if now.phase is not self._phase:
            self._phase, self._doing = now.phase, set()
        if now.text not in self._doing and now.phase is not Phase.FAILED:  # that reason is said once, at the end
            self._doing.add(now.text)
            self._line(now.text)
        before, self._said = self._said, [*(f"{label}: {text}" for label, text in now.notes), *now.warnings]
        for line in self._said:
            if line not in before:
                self._line(line)

    def _line(self, text: str) -> None:
        self._console.print(Text(" ".join(text.splitlines())), soft_wrap=True)


def view(now: Snapshot) -> RenderableType:
    """The whole of a snapshot, some ten lines."""
    parts: list[RenderableType] = [Text(now.about, style="italic")] if now.about else []
    parts.append(Text(CANNOT if now.phase is Phase.FAILED else now.text, style=_COLOURS.get(now.phase, "")))
    if now.progress is not None:
        parts.append(_bar(now.progress))
    for label, text in now.notes:
        parts.append(Text.assemble((f"{label}: ", "bold cyan"), text))
    parts.append(_table(now.facts, 2))
    curve = [("loss", sparkline([point.loss for point in now.losses]))] if now.losses else []
    parts.append(_table([*curve, *now.links], 1))
    parts += [Text(f"! {warning}", style="yellow") for warning in now.warnings]
    how = "Ctrl-C again leaves at once" if now.phase is Phase.LEAVING else "Ctrl-C leaves"
    title, below = Text(now.title or "joining"), None if now.phase.over else how
    return Panel(Group(*parts), title=title, title_align="left", subtitle=below, subtitle_align="right", width=92)


def _table(pairs: Sequence[tuple[str, str]], beside: int) -> Table:
    """Labels and values, so many pairs beside each other."""
    table = Table.grid(padding=(0, 2))
    for begin in range(0, len(pairs), beside):
        row = pairs[begin : begin + beside]
        table.add_row(*(part for label, value in row for part in (Text(label, style="dim"), Text(value))))
    return table


def _bar(progress: Progress) -> Table:
    known = progress.fraction is not None
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=1.0, completed=progress.fraction or 0.0, width=20, pulse=not known),
        Text(", ".join(filter(None, (progress.text, progress.left)))),
    )
    return bar


def sparkline(values: list[float]) -> str:
    """The values as a row of small bars, averaged to the width."""
    size = max(1, len(values) / _WIDTH)
    groups = [
        values[int(i * size) : max(int(i * size) + 1, int((i + 1) * size))] for i in range(min(_WIDTH, len(values)))
    ]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    return "".join(_BARS[round((mean - low) / (high - low) * 7)] if high > low else _BARS[0] for mean in means)
