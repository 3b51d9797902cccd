"""A chat as it stands at one moment: all that its surfaces show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dedloc_kit.blocks.plans.plan import LayerRange

ChatPhase = Literal["loading", "ready", "answering", "stopping", "failed", "over"]
WARNING = (
    "The computers that answer see what you type and what the model answers, in a form from which the text can be "
    "recovered. Type nothing that has to stay secret."
)
"""Of a model that others serve."""
READY = "ready"
Told = Callable[[str], None]
"""Told what goes on, in words."""


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
    text: str = "loading"
    """What goes on, or what went wrong, in words."""
    model: str = ""
    warning: str = ""
    """Who else sees what is typed; empty if nobody does."""
    remark: str = ""
    """How this model answers, if not as a model for chats does."""
    system: str = ""
    """What the model is told before the first turn."""
    turns: tuple[Turn, ...] = ()
    forgotten: int = 0
    """Of the turns, the first ones: the model no longer sees them."""
    route: tuple[Answerer, ...] = ()
    """Who answers now, in the order of the layers; empty before the first answer, and for a model on this machine."""


def heard(turns: Sequence[Turn]) -> list[Turn]:
    """Those that a conversation consists of: all that were answered, and the last one."""
    return [*(turn for turn in turns[:-1] if turn.answer), *turns[-1:]]


def messages_of(turns: Sequence[Turn], system: str = "") -> list[dict[str, str]]:
    """A conversation as chat templates and data sets have it."""
    said = [pair for turn in heard(turns) for pair in (("user", turn.asked), ("assistant", turn.answer))]
    if said and not said[-1][1]:
        said.pop()
    return [{"role": role, "content": text} for role, text in ([("system", system)] if system else []) + said]
