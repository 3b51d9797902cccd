"""The terminal's view of an evaluation: a bar while it goes on, a line for each seed, a table at the end."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table


class Display:
    """Shows one evaluation; names and texts are shown as they are, without markup."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._bar = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("reading the data", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def line(self, text: str, style: str | None = None) -> None:
        """One line above the bar."""
        self.console.print(escape(text), style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.line(text, "yellow")

    def expect(self, steps: int) -> None:
        """So many optimizer steps are ahead."""
        self._bar.update(self._task, total=steps)

    def step(self, name: str, epochs: int, epoch: int, loss: float) -> None:
        """One of them is done, in this epoch of the fine-tuning of that name."""
        self._bar.update(self._task, description=f"{name}, epoch {epoch} of {epochs}, loss {loss:.3f}", advance=1)

    def table(self, headings: list[str], rows: list[list[str]]) -> None:
        table = Table(*headings)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
