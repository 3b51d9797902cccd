"""The terminal's view of an evaluation: a bar while it goes on, a line for each seed, a table at the end."""

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dedloc_kit.display.bar import BarDisplay


class Display(BarDisplay):
    """Shows one evaluation."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("  {task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task("reading the data", total=None)

    def warn(self, text: str) -> None:
        self.line(text, "yellow")

    def expect(self, steps: int) -> None:
        """So many optimizer steps, or rows for a model, are ahead."""
        self._bar.reset(self._task, total=steps)

    def advance(self, name: str, rows: int) -> None:
        """So many more rows have been through the model of that name."""
        self._bar.update(self._task, description=name, advance=rows)

    def step(self, name: str, epochs: int, epoch: int, loss: float) -> None:
        """One of them is done, in this epoch of the fine-tuning of that name."""
        self._bar.update(self._task, description=f"{name}, epoch {epoch} of {epochs}, loss {loss:.3f}", advance=1)

    def table(self, headings: list[str], rows: list[list[str]]) -> None:
        table = Table(*headings)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
