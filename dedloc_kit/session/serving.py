"""The state of a serving session."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dedloc_kit.display import human
from dedloc_kit.events import Joined, Served, ServerSeen, State
from dedloc_kit.serving.coverage import coverage, named, served_by
from dedloc_kit.session.snapshot import Phase, Progress
from dedloc_kit.session.state import SessionState
from dedloc_kit.session.supervisor import Notice, Paused, Resting


@dataclass(frozen=True)
class ServingState(SessionState):
    """Without values, that nothing is known yet."""

    begins: ClassVar[str] = "this machine begins to answer"
    working: ClassVar[str] = "serving"
    last: ClassVar[str] = "users go on elsewhere"

    version: str = ""
    """Of the weights."""
    layers: int = 0
    """Of the model."""
    mine: ServerSeen | None = None
    servers: tuple[ServerSeen, ...] = ()
    earlier: int = 0
    """Tokens times layers of this session's workers before the one that runs."""

    @property
    def served(self) -> int:
        """Tokens times layers in this session."""
        return self.earlier + (self.mine.served if self.mine else 0)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Layers that nobody serves, as people read them."""
        return served_by(0, coverage(self.layers, self.servers, self.version))

    def heard(self, notice: Notice, now: float) -> Self:
        match notice:
            case State():
                return replace(super().heard(notice, now), loading=None)
            case Joined(peer=peer, device=device):
                return replace(self, phase=Phase.WORKING, since=now, peer=peer, device=device, loading=None)
            case Served(layers=layers, mine=mine, servers=servers, version=version):
                return replace(self, layers=layers, mine=mine, servers=servers, version=version or self.version)
            case Resting() | Paused():  # what the worker gave stays
                return replace(super().heard(notice, now), earlier=self.served, mine=None, servers=())
        return super().heard(notice, now)

    @property
    def _answers(self) -> bool:
        """Whether nothing is waited for."""
        return self.phase is Phase.WORKING and self.mine is not None and self.mine.state == "online"

    def at(self, now: float) -> Self:
        after = super().at(now)
        if not after._answers or after.mine is None:
            return after
        text = f"serving {self._span(after.mine)}: users' requests are answered until you leave"
        return replace(after, text=text, then="")

    def _progress(self, now: float) -> Progress | None:
        return None if self._answers and not self._is_loading else super()._progress(now)

    def _span(self, mine: ServerSeen) -> str:
        last = mine.end - 1
        which = f"layer {last}" if mine.begin == last else f"layers {mine.begin} to {last}"
        return f"{which} of {self.layers}"

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("you", self.name)] if self.name else []
        if self.device:
            facts.append(("given", f"{self.served:,} tokens x layers"))
        if (mine := self.mine) is not None:
            used = mine.cache_tokens - mine.free_tokens
            speed = f"{human.rate(mine.decoding)} tokens/s one by one, {human.rate(mine.prompts)} in prompts"
            facts.append(("holds", f"{self._span(mine)}, as {mine.form}"))
            facts.append(("speed", speed))
            facts.append(("answering", human.count(mine.sessions, "user")))
            facts.append(("cache", f"{used:,} of {human.count(mine.cache_tokens, 'token')}"))
        if self.servers:
            facts.append(("servers", f"{len(self.servers):,}"))
        if self.device and not self.phase.over:
            facts.append(("machine", self.device))
        return facts

    def _notes(self) -> list[tuple[str, str]]:
        if not self.phase.over:
            if not self.servers:
                return []
            bare = f"Nobody serves {named(self.gaps)}: until somebody does, the model answers nobody."
            return [("The model", bare if self.gaps else f"All {self.layers} layers are served.")]
        if not self.served:
            return []
        thanks = f"Thank you, {self.name}" if self.name else "Thank you"
        return [(thanks, f"Your machine passed {self.served:,} tokens x layers for others.")]
