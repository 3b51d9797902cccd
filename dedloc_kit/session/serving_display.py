"""A server's session in a terminal: one compact view that moves, or lines where there is no terminal."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dedloc_kit.display.console import Console
from dedloc_kit.serving.coverage import named
from dedloc_kit.session.serving import ServingSession, ServingSnapshot, lines

REFRESH_SECONDS = 0.5


def watch(session: ServingSession) -> None:
    """Show the session until it has ended. Ctrl-C leaves, a second one at once."""
    console = Console(highlight=False)
    if not console.is_terminal:
        _follow(session, _Lines(console).show)
        return
    with Live(console=console, auto_refresh=False) as live:
        _follow(session, lambda now: live.update(view(now), refresh=True))


def _follow(session: ServingSession, show: Callable[[ServingSnapshot], None]) -> None:
    try:
        while not session.ended.wait(REFRESH_SECONDS):
            show(session.snapshot())
    except KeyboardInterrupt:
        session.leave()
        while not session.ended.wait(REFRESH_SECONDS):
            show(session.snapshot())
    show(session.snapshot())


class _Lines:
    """Prints what is new; what others wrote is shown as it is, never as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = ServingSnapshot(text="")

    def show(self, now: ServingSnapshot) -> None:
        before, self._shown = self._shown, now
        if now.phase != "failed" and now.text != before.text:
            self._line(now.text)
        if now.servers and now.gaps != before.gaps:
            bare = f"nobody serves {named(now.gaps)}"
            self._line(bare if now.gaps else f"all {now.layers} layers are served")
        for warning in now.warnings:
            if warning not in before.warnings:
                self._line(warning)

    def _line(self, text: str) -> None:
        self._console.print(Text(" ".join(text.splitlines())), soft_wrap=True)


def view(now: ServingSnapshot) -> RenderableType:
    """The whole of a snapshot."""
    facts = Table.grid(padding=(0, 2))
    for name, value in lines(now):
        facts.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(now.about, style="italic")] if now.about else []
    parts += [Text(now.text, style="green" if now.phase == "serving" else "yellow"), facts]
    parts += [Text(f"! {warning}", style="yellow") for warning in now.warnings]
    below = None if now.over else "Ctrl-C leaves"
    title = Text(now.run_id or "joining")
    return Panel(Group(*parts), title=title, title_align="left", subtitle=below, subtitle_align="right", width=92)
