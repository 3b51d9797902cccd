"""What every view in a terminal is made of: lines, and a bar below them while there is something to wait for."""

from types import TracebackType
from typing import Self

from rich.markup import escape
from rich.progress import Progress, ProgressColumn

from dedloc_kit.display.console import Console


class BarDisplay:
    """Lines above a bar; where there is no terminal, the lines alone. Texts are shown as they are, without markup."""

    def __init__(self, *columns: ProgressColumn, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False)
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def line(self, text: str, style: str | None = None) -> None:
        """One line above the bar; a text with several lines could pass one of them off as ours."""
        self.console.print(escape(" ".join(text.splitlines())), style=style, soft_wrap=True)
