"""A chat in a terminal: the answer as it comes, without any markup."""

from rich.text import Text

from dedloc_kit.display.console import Console
from dedloc_kit.display.human import rate
from dedloc_kit.inference.turns import ChatSnapshot


class ChatLines:
    """Writes what is new in a snapshot: the answers, and beside them, where a pipe does not take it, all else."""

    def __init__(self, answers: Console | None = None, notes: Console | None = None, greeting: str = "") -> None:
        """:param greeting: said once the model is ready"""
        self._answers = answers or Console(highlight=False)
        self._notes = notes or Console(highlight=False, stderr=True)
        self._greeting = greeting
        self._said: set[str] = set()
        self._text, self._turns, self._written = "", 0, 0
        self._whole = True  # the last answer

    def show(self, chat: ChatSnapshot) -> None:
        """Write it, and below an answer why it is not whole, who gave it, and how fast."""
        self._once(chat.warning)
        if chat.phase == "loading" and chat.text != self._text:
            self._text = chat.text
            self.tell(chat.text)
        if chat.phase == "ready":
            self._once(chat.model and f"{chat.model} is ready{self._greeting}")
            self._once(chat.remark)
        if len(chat.turns) != self._turns:
            self._whole = len(chat.turns) < self._turns  # a new conversation has begun
            self._turns, self._written = len(chat.turns), 0
        if self._whole:
            return
        turn = chat.turns[-1]
        self._answers.print(Text(turn.answer[self._written :]), end="", soft_wrap=True)
        self._written = max(self._written, len(turn.answer))
        if chat.phase not in ("answering", "stopping"):
            self._whole = True
            self._answers.print()
            who = ", ".join(f"{each.name} {each.layers}" for each in chat.route)
            speed = f"{rate(turn.speed)} tokens/s" if turn.speed else ""
            for text in filter(None, (turn.note, "; ".join(filter(None, (who, speed))))):
                self.tell(f"({text})")

    def tell(self, text: str) -> None:
        """Write a line beside the answers."""
        self._notes.print(Text(text, style="dim"), soft_wrap=True)

    def _once(self, text: str) -> None:
        if text and text not in self._said:
            self._said.add(text)
            self.tell(text)
