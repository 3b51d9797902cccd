"""The state of a session, whatever its worker does. Methods are pure: each returns a new state or a snapshot."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from dedloc_kit.display import human
from dedloc_kit.events import Loading, State, Warned
from dedloc_kit.session.snapshot import LossPoint, Phase, Progress, Snapshot
from dedloc_kit.session.supervisor import Notice, Paused, Resting, Wish

WAIT_SECONDS = 2.0
"""A longer wait has a bar."""
MAX_WARNINGS = 3


@dataclass(frozen=True)
class SessionState(ABC):
    """What training and serving share."""

    begins: ClassVar[str]
    """What comes after the start, in words."""
    working: ClassVar[str]
    """What the worker does, as a noun."""
    last: ClassVar[str]
    """What happens while it leaves."""

    phase: Phase = Phase.STARTING
    text: str = "reading the invitation"
    """What happens now."""
    then: str = ""
    """What comes next; empty if `text` says it."""
    done: float | None = None
    """How much of that is done, 0 to 1."""
    since: float = 0.0
    """When that began, in seconds of the session's clock."""
    wish: Wish = "work"
    """The volunteer's."""
    loading: Loading | None = None
    """The download on its way."""
    rest: float = 0.0
    """Seconds from `since` to the next start, in the phase `restarting`."""
    run_id: str = ""
    about: str = ""
    url: str | None = None
    """The live page."""
    name: str = ""
    """Of the volunteer."""
    anonymous: bool = False
    peer: str = ""
    """Its id; empty until it has joined, as `device`."""
    device: str = ""
    """In words."""
    warnings: tuple[str, ...] = ()
    details: str = ""

    def doing(
        self,
        text: str,
        now: float,
        *,
        then: str = "",
        phase: Phase | None = None,
        done: float | None = None,
        **changes: Any,
    ) -> Self:
        """Something else happens from now on."""
        phase = phase or self.phase
        since = self.since if (text, phase) == (self.text, self.phase) else now
        return replace(self, text=text, then=then, phase=phase, since=since, done=done, **changes)

    def warned(self, text: str) -> Self:
        """With a warning, once."""
        kept = [warning for warning in self.warnings if warning != text]
        return replace(self, warnings=(*kept, text)[-MAX_WARNINGS:])

    def wished(self, wish: Wish, now: float) -> Self:
        """As the volunteer wants it; after `leave` nothing else counts."""
        if self.wish in ("leave", wish):
            return self
        if wish == "work":
            return self.doing("starting again", now, phase=Phase.STARTING, wish=wish)
        return replace(self, wish=wish, since=now)

    def heard(self, notice: Notice, now: float) -> Self:
        """After something has happened."""
        match notice:
            case State(text=text, then=then, share=share) if self.phase in (
                Phase.STARTING,
                Phase.WORKING,
                Phase.WAITING,
            ):
                return self.doing(text, now, then=then, done=share)
            case Loading():
                return replace(self, loading=notice)
            case Warned(text=text):
                return self.warned(text)
            case Resting(why=why, seconds=seconds):
                text = f"the {self.working} stopped and starts again by itself: {why}"
                return self.doing(text, now, phase=Phase.RESTARTING, rest=seconds, loading=None)
            case Paused():
                text = "paused: nothing runs on this machine until you resume"
                return self.doing(text, now, phase=Phase.PAUSED, loading=None)
        return self

    def ended(self, failure: str | None) -> Self:
        """After the last worker."""
        if failure:
            return replace(self, phase=Phase.FAILED, text=failure, then="")
        left = self.wish == "leave"
        text = f"{'you have left' if left else 'the run is over'}, and nothing runs any more"
        return replace(self, phase=Phase.LEFT if left else Phase.FINISHED, text=text, then="")

    def at(self, now: float) -> Self:
        """As it looks at this moment, when nothing more was heard."""
        if self.wish == "work" or self.phase.over or self.phase is Phase.PAUSED:
            return self
        text = f"{'leaving' if self.wish == 'leave' else 'pausing'}: {self.last}"
        return replace(self, phase=Phase.LEAVING, text=text, then="nothing runs on this machine any more")

    def shown(self, now: float) -> Snapshot:
        """What a view shows at this moment."""
        self = self.at(now)
        title = self.run_id.rpartition("-")[0] or self.run_id  # the fingerprint tells a volunteer nothing
        return Snapshot(
            *(self.phase, self._sentence(), tuple(self._facts()), self._progress(now), self._curve(), self.warnings),
            *(title, self.about, tuple(self._notes()), tuple(self._links())),
            details=self.details if self.phase in (Phase.FAILED, Phase.RESTARTING) else "",
        )

    def _sentence(self) -> str:
        text, then = self.text, self.then
        if self.phase is Phase.FAILED:
            return text
        if self._is_loading:
            text, then = "downloading the model", self.begins
        elif self.phase is Phase.STARTING:
            then = then or self.begins
        whole = f"{text}; then {then}" if then else text
        return f"{whole[:1].upper()}{whole[1:]}{'' if whole.endswith(('.', '!', '?')) else '.'}"

    @property
    def _is_loading(self) -> bool:
        return (
            self.loading is not None
            and self.loading.received_bytes < self.loading.total_bytes
            and self.phase in (Phase.STARTING, Phase.WORKING)
        )

    def _progress(self, now: float) -> Progress | None:
        if self.phase.over or self.phase is Phase.PAUSED:
            return None
        if self._is_loading and (loading := self.loading) is not None:
            left = loading.total_bytes - loading.received_bytes
            remaining = left / loading.bytes_per_second if loading.bytes_per_second else None
            return Progress(loading.text, loading.received_bytes / loading.total_bytes, remaining=remaining)
        waited = now - self.since
        if self.phase is Phase.RESTARTING:
            return Progress(
                "waiting for the next start",
                min(1.0, waited / max(self.rest, 1e-3)),
                remaining=max(0.0, self.rest - waited),
            )
        if self.done is not None:
            return Progress(f"{human.share(self.done)} so far", self.done)
        return None if waited < WAIT_SECONDS else Progress(f"{human.duration(waited)} so far")

    @abstractmethod
    def _facts(self) -> list[tuple[str, str]]: ...

    def _curve(self) -> tuple[LossPoint, ...] | None:
        return None

    def _notes(self) -> list[tuple[str, str]]:
        return []

    def _links(self) -> list[tuple[str, str]]:
        return [("live page", self.url)] if self.url else []
