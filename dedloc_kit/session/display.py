"""A volunteer's session in a terminal: one compact view that moves, or lines where there is no terminal."""

from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dedloc_kit.display import human
from dedloc_kit.display.console import Console
from dedloc_kit.session.session import Session
from dedloc_kit.session.snapshot import Snapshot

REFRESH_SECONDS = 0.5
_BARS, _WIDTH = "▁▂▃▄▅▆▇█", 40
_COLOURS = {"training": "green", "waiting": "yellow", "restarting": "yellow", "paused": "yellow", "failed": "red"}


def watch(session: Session) -> None:
    """Show the session until it has ended. Ctrl-C leaves, a second one at once."""
    with SessionDisplay() as display:
        try:
            while not session.ended.wait(REFRESH_SECONDS):
                display.show(session.snapshot())
        except KeyboardInterrupt:
            session.leave()
            while not session.ended.wait(REFRESH_SECONDS):
                display.show(session.snapshot())
        display.show(session.snapshot())


class SessionDisplay:
    """Shows snapshots; what others wrote is shown as it is, never as markup."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._shown: Snapshot | None = None

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
        """Bring the view up to date."""
        if self._live is not None:
            self._live.update(view(now), refresh=True)
        else:
            self._lines(now)
        self._shown = now

    def _lines(self, now: Snapshot) -> None:
        before = self._shown
        if now.phase != "failed" and (before is None or now.text != before.text):
            self._line(now.text)
        if now.losses and (before is None or now.losses[-1:] != before.losses[-1:]):
            newest = now.losses[-1]
            mine = f", {newest.mine} of its samples were mine" if newest.mine else ""
            self._line(f"step {newest.step} of {now.total_steps}  loss {newest.loss:.4f}{mine}")
        if now.announcement and (before is None or now.announcement != before.announcement):
            self._line(f"the organizer: {now.announcement}")
        for warning in now.warnings:
            if before is None or warning not in before.warnings:
                self._line(warning)

    def _line(self, text: str) -> None:
        self._console.print(Text(" ".join(text.splitlines())), soft_wrap=True)


def view(now: Snapshot) -> RenderableType:
    """The whole of a snapshot, some ten lines."""
    parts: list[RenderableType] = []
    if now.about:
        parts.append(Text(now.about, style="italic"))
    parts.append(Text(now.text, style=_COLOURS.get(now.phase, "")))
    if now.announcement:
        parts.append(Text(f"The organizer: {now.announcement}", style="bold cyan"))
    if now.global_batch and not now.over:
        bar = Table.grid(padding=(0, 1))
        done = min(now.batch_samples, now.global_batch)
        bar.add_row(
            now.under_way,
            ProgressBar(total=now.global_batch, completed=done, width=24),
            f"{done} of {now.global_batch} samples" + (f", {now.my_batch_samples} mine" if now.carried is None else ""),
        )
        parts.append(bar)
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(now):
        facts.add_row(Text(name, style="dim"), Text(value))
    parts.append(facts)
    parts += [Text(f"! {warning}", style="yellow") for warning in now.warnings]
    if now.over and (now.session_samples or now.carried):
        parts += [Text(thanks(now), style="bold green"), Text(now.next_session, style="dim")]
    how = "Ctrl-C again leaves at once" if now.phase == "leaving" else "Ctrl-C leaves"
    title, below = Text(now.run_id or "joining"), None if now.over else how
    return Panel(Group(*parts), title=title, title_align="left", subtitle=below, subtitle_align="right", width=92)


def thanks(now: Snapshot) -> str:
    """What was contributed, in a sentence."""
    where = f"; see {now.url}" if now.url else ""
    return f"Thank you: {_given(now)}{' of computing' if now.carried is None else ''}{where}"


def _given(now: Snapshot) -> str:
    if now.carried is not None:
        return f"{human.size(now.carried)} carried in {human.duration(now.seconds_given)}"
    hosted = f" and {human.count(now.answered, 'token')} answered for others" if now.over and now.answered else ""
    return f"{human.count(now.session_samples, 'sample')}{hosted} in {human.duration(now.seconds_given)}"


def _facts(now: Snapshot) -> list[tuple[str, str]]:
    facts = [("I am", now.name or "…")]
    mine = _given(now)
    if now.total_samples is not None and now.carried is None:
        mine += f"; {max(now.total_samples, now.session_samples):,} in all my sessions"
    facts.append(("given", mine))
    if now.rank is not None and now.share is not None:
        facts.append(("place", f"{now.rank} of {now.contributors}, {human.share(now.share)} of all samples"))
    if now.hosted is not None:
        kept, copies = now.hosted
        holds = f"{human.count(kept, 'expert')}, copies of {copies:,} more"
        facts.append(("hosting", f"{holds}; {human.count(now.answered, 'token')} answered for others"))
    if now.losses:
        facts.append(("loss", f"{now.losses[-1].loss:.4f}  {sparkline([point.loss for point in now.losses])}"))
    if now.peers:
        facts.append(("peers", f"{now.peers} training now"))
    if now.device and not now.over:
        speed = f", {human.rate(now.samples_per_second)} samples/s" if now.carried is None else ""
        facts.append(("machine", f"{now.device}{speed}, {human.size(now.memory_bytes)} of memory"))
        sent, received = human.size(now.sent_bytes_per_second), human.size(now.received_bytes_per_second)
        facts.append(("network", f"{sent}/s up, {received}/s down"))
    if now.url:
        facts.append(("live page", now.url))
    return facts


def sparkline(values: list[float]) -> str:
    """The values as a row of small bars, averaged to the width."""
    size = max(1, len(values) / _WIDTH)
    groups = [
        values[int(i * size) : max(int(i * size) + 1, int((i + 1) * size))] for i in range(min(_WIDTH, len(values)))
    ]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    return "".join(_BARS[round((mean - low) / (high - low) * 7)] if high > low else _BARS[0] for mean in means)
