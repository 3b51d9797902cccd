"""A chat in a terminal: the answer as it comes, without any markup."""

from rich.text import Text

from dedloc_kit.display.console import Console
from dedloc_kit.display.human import rate
from dedloc_kit.inference.turns import WARNING, ChatSnapshot


class ChatLines:
    """Writes what is new in a snapshot."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._text, self._turns, self._written = "", 0, 0
        self._whole = True  # the last answer
        self._line(WARNING)

    def show(self, chat: ChatSnapshot) -> None:
        """Write it, and below an answer why it is not whole, who gave it, and how fast."""
        if chat.phase in ("loading", "failed") and chat.text != self._text:
            self._text = chat.text
            self._line(chat.text)
        if len(chat.turns) > self._turns:
            self._turns, self._written, self._whole = len(chat.turns), 0, False
        if self._whole:
            return
        turn = chat.turns[-1]
        self._console.print(Text(turn.answer[self._written :]), end="", soft_wrap=True)
        self._written = max(self._written, len(turn.answer))
        if chat.phase not in ("answering", "stopping"):
            self._whole = True
            self._line("")
            who = ", ".join(f"{each.name} {each.layers}" for each in chat.route)
            speed = f"{rate(turn.speed)} tokens/s" if turn.speed else ""
            for text in filter(None, (turn.note, "; ".join(filter(None, (who, speed))))):
                self._line(f"({text})")

    def _line(self, text: str) -> None:
        self._console.print(Text(text, style="dim"), soft_wrap=True)
