"""One evaluation at the terminal: the device that computes, a bar while it goes on, and the result at the end."""

from typing import Literal, TypeVar

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.display.console import print_json
from dedloc_kit.learning.evaluate.report import Report, SuitesReport
from dedloc_kit.learning.train.computing.device import describe_device, half_precision, pick_device, set_threads

Finished = TypeVar("Finished", Report, SuitesReport)


class Session(BarDisplay):
    """
    :param threads: of the CPU; 0 for all cores
    :param as_json: print the result as JSON on standard output, and all else on standard error
    :ivar device: the best one that `device` allows, tried out
    :ivar half: what models of text compute with there, as training does; none for float32
    """

    def __init__(
        self, device: Literal["auto", "cpu", "cuda"] = "auto", threads: int = 0, as_json: bool = False
    ) -> None:
        """Raises UserError if there is no such device."""
        super().__init__(
            *(TextColumn("  {task.description}", markup=False), BarColumn(), TaskProgressColumn()),
            TimeRemainingColumn(),
            stderr=as_json,
        )
        self.device = pick_device(device)
        self.half = half_precision(self.device)
        set_threads(threads)
        self._as_json = as_json
        self._task = self._bar.add_task("reading the data", total=None)

    @property
    def where(self) -> str:
        """The device in words, and in which half precision a model of text computes there, if in any."""
        half = "" if self.half is None else f" in {str(self.half).removeprefix('torch.')}"
        return f"{describe_device(self.device)}{half}"

    def warn(self, text: str) -> None:
        self.line(text, "yellow")

    def expect(self, steps: int) -> None:
        """So many optimizer steps, or rows for a model, are ahead."""
        self._bar.reset(self._task, total=steps)

    def advance(self, name: str, rows: int) -> None:
        """So many more rows have been through the model of that name."""
        self._bar.update(self._task, description=name, advance=rows)

    def step(self, name: str, epochs: int, epoch: int, loss: float) -> None:
        """One more step is done, in this epoch of the fine-tuning of that name."""
        self._bar.update(self._task, description=f"{name}, epoch {epoch} of {epochs}, loss {loss:.3f}", advance=1)

    def finish(self, report: Finished) -> Finished:
        """Show the result."""
        rows = report.table()
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*map(Text, row.values()))
        self.console.print(table)
        for text in report.comparisons():
            self.line(text)
        if self._as_json:
            print_json(report)
        return report
