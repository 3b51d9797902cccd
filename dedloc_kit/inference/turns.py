"""A chat as it stands at one moment: all that its surfaces show."""

from dataclasses import dataclass
from typing import Literal

from dedloc_kit.blocks.plans.plan import LayerRange

ChatPhase = Literal["loading", "ready", "answering", "stopping", "failed", "over"]
WARNING = (
    "The computers that answer see what you type and what the model answers, in a form from which the text can be "
    "recovered. Type nothing that has to stay secret."
)


@dataclass(frozen=True)
class Turn:
    """What was asked, and the answer as far as it has come."""

    asked: str
    answer: str = ""
    note: str = ""
    """Why the answer is not whole; empty while it is written, and if it is."""
    tokens: int = 0
    """Of the answer."""
    seconds: float = 0.0
    """From the first of them to the last one."""

    @property
    def speed(self) -> float | None:
        """Tokens a second, once there are enough to tell."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else None


@dataclass(frozen=True)
class Answerer:
    """Somebody whose computer answers, and with which layers."""

    name: str
    layers: LayerRange


@dataclass(frozen=True)
class ChatSnapshot:
    """What there is to show."""

    phase: ChatPhase = "loading"
    text: str = "connecting"
    """What goes on, or what went wrong, in words."""
    model: str = ""
    turns: tuple[Turn, ...] = ()
    forgotten: int = 0
    """Of the turns, the first ones: the model no longer sees them."""
    route: tuple[Answerer, ...] = ()
    """Who answers now, in the order of the layers; empty before the first answer."""
