"""The state of a training session."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dedloc_kit.display import human
from dedloc_kit.events import Announced, Hosted, Joined, Left, LocalProgress, State, StepDone
from dedloc_kit.machine.meters import Reading
from dedloc_kit.records.contributors import Standing
from dedloc_kit.records.orders import Decay
from dedloc_kit.session.snapshot import LossPoint, Phase, Progress
from dedloc_kit.session.state import SessionState
from dedloc_kit.session.supervisor import Notice, Resting

MAX_MICROBATCH = 60.0
"""Longer gaps are no computing: the machine slept, or waited."""
MAX_LOSSES = 300
LATE_SECONDS = 10.0
"""A training that says nothing for so long, and for much longer than usual, waits."""
FULL, FULL_SECONDS = 3, 60.0
"""So many global batches for so long, gathered and not averaged, are more than a group that takes its time to meet."""


@dataclass(frozen=True)
class Given:
    """What a worker gave: samples, bytes of an auxiliary peer, tokens answered by its experts."""

    samples: int = 0
    carried: int = 0
    answered: int = 0

    def __add__(self, other: "Given") -> "Given":
        return Given(self.samples + other.samples, self.carried + other.carried, self.answered + other.answered)


@dataclass(frozen=True)
class TrainingState(SessionState):
    """Without values, that nothing is known yet."""

    begins: ClassVar[str] = "this machine begins to train"
    working: ClassVar[str] = "training"
    last: ClassVar[str] = "the last samples are on their way"

    total_steps: int = 0
    global_batch: int = 0
    step: int = 0
    newest: StepDone | None = None
    losses: tuple[LossPoint, ...] = ()
    latest: LocalProgress | None = None
    """What the worker that runs said last."""
    filling: tuple[int, float, int] | None = None
    """The step under way, when it was first heard of, and how many samples there were then."""
    full: tuple[int, float] | None = None
    """The step whose batch is full without a round, and since when."""
    before: Given = Given()
    """By the workers before the one that runs."""
    given: Given = Given()
    """By the worker that runs."""
    auxiliary: bool = False
    """Whether it carries data and trains nothing."""
    hosted: tuple[int, int] | None = None
    """Experts that this machine keeps, and of which it has copies."""
    seconds_given: float = 0.0
    """Time that this machine has computed in this session, or carried for others."""
    heard_at: float = 0.0
    usual_gap: float | None = None
    """Seconds between two microbatches; unknown before the first one is done."""
    peers: int = 0
    """Volunteers that are training now, this one included."""
    reading: Reading | None = None
    standing: Standing | None = None
    announcement: str = ""
    stopped: str = ""
    """Why the worker before this one ended, until this one has joined."""
    next_session: str = ""
    """Whether the total goes on in the next session, as a sentence; empty before the end."""

    @property
    def session_samples(self) -> int:
        """Mine since the session began."""
        return self.before.samples + self.given.samples

    @property
    def total_samples(self) -> int:
        """Mine over all sessions."""
        return max(self.standing.samples if self.standing else 0, self.session_samples)

    @property
    def share(self) -> float | None:
        """Mine of all samples that anyone has given, 0 to 1."""
        known = self.standing
        return known.samples / known.samples_total if known is not None and known.samples_total else None

    def heard(self, notice: Notice, now: float) -> Self:
        match notice:
            case State(text="leaving"):
                return self.doing(f"leaving: {self.last}", now, then="nothing runs any more", phase=Phase.LEAVING)
            case State(text=text) if self.phase in (Phase.WORKING, Phase.WAITING):
                return self if text == "training" else self.doing(text, now, phase=Phase.WAITING)
            case Joined():
                return self._joined(notice, now)
            case Hosted(kept=kept, copies=copies):
                return replace(self, hosted=(kept, copies))
            case LocalProgress():
                return self._progressed(notice, now)
            case StepDone():
                return self._stepped(notice)
            case Announced(text=text):
                return replace(self, announcement=text)
            case Left(session_samples=samples):
                return replace(self, given=replace(self.given, samples=samples))
            case Resting(why=why):
                return replace(super().heard(notice, now), stopped=why)
        return super().heard(notice, now)

    def _joined(self, joined: Joined, now: float) -> Self:
        after = self
        if self.stopped:  # training hides what was told meanwhile, and somebody may want to know
            after = self.warned(f"the training was started again; it had stopped: {self.stopped}")
        first = "computing the first samples, which takes minutes on a slow machine", "they count in everyone's batch"
        text, then = self._work() if self.auxiliary else first
        after = after.doing(text, now, then=then, phase=Phase.WORKING, before=self.before + self.given, given=Given())
        after = replace(after, step=joined.step, device=joined.device, peer=joined.peer, stopped="", loading=None)
        return replace(after, heard_at=now, latest=None, usual_gap=None, full=None, filling=None)

    def _progressed(self, progress: LocalProgress, now: float) -> Self:
        gap = now - self.heard_at
        full = progress.swarm_samples > FULL * progress.global_batch and not progress.averaging
        since = self.full[1] if self.full is not None and self.full[0] == progress.step else now
        filling = self.filling
        if filling is None or filling[0] != progress.step:
            filling = progress.step, now, progress.swarm_samples
        losses = self.losses
        if progress.driven is not None and progress.loss is not None:  # it takes no steps, which would say so
            losses = _with_losses(losses, [LossPoint(progress.step, progress.loss, 0)])
        usual = gap if self.usual_gap is None else 0.9 * self.usual_gap + 0.1 * gap
        given = Given(progress.session_samples, progress.carried or 0, progress.answered or 0)
        phase = self.phase if self.phase is Phase.LEAVING else Phase.WORKING
        seconds = self.seconds_given + (gap if gap < MAX_MICROBATCH else 0.0)
        after = replace(self, phase=phase, latest=progress, step=max(progress.step, self.step), losses=losses)
        after = replace(after, given=given, seconds_given=seconds, heard_at=now, usual_gap=usual, loading=None)
        return replace(after, filling=filling, full=(progress.step, since) if full else None)

    def _stepped(self, done: StepDone) -> Self:
        step, losses = done.step, self.losses
        if step.loss is not None:
            losses = _with_losses(losses, [LossPoint(step.step, step.loss, done.contributions.get(self.peer, 0))])
        reached, peers = max(step.step, self.step), max(1, len(done.contributions))
        return replace(self, newest=done, losses=losses, step=reached, peers=peers, full=None)

    def stands(self, standing: Standing) -> Self:
        """As the coordinator says, losses of steps that this machine missed included."""
        losses = _with_losses(self.losses, (LossPoint(step, loss, 0) for step, loss in standing.losses))
        return replace(self, standing=standing, peers=max(1, standing.volunteers), losses=losses)

    def ended(self, failure: str | None) -> Self:
        return replace(super().ended(failure), reading=None)

    def at(self, now: float) -> Self:
        after = super().at(now)
        if after.phase is not Phase.WORKING or after.usual_gap is None:
            return after  # before the first samples: a large model on a slow machine, more likely than a line down
        goes_on = "this machine goes on by itself"
        if now - after.heard_at > max(LATE_SECONDS, 5 * after.usual_gap):
            text = "waiting for the other volunteers, whose line or yours may be down"
            return replace(after, phase=Phase.WAITING, text=text, then=goes_on, since=after.heard_at)
        if after.full is not None and now - after.full[1] > FULL_SECONDS:
            text = "the batch is full, but the other volunteers do not come; is the line down?"
            return replace(after, phase=Phase.WAITING, text=text, then="", since=after.full[1])
        text, then = after._work()
        return replace(after, text=text, then=then)

    # What a view shows

    def _work(self) -> tuple[str, str]:
        """What happens while it trains, and what comes next."""
        step, latest = "the model takes its next step", self.latest
        if self.step >= self.total_steps > 0:
            return f"all {self.total_steps:,} steps are done", "the run ends"
        if self.auxiliary:
            return "carrying data for the machines that train", step
        if latest is not None and latest.driven is not None:
            return f"sending samples through all stages of the model, {latest.driven:,} so far", step
        if latest is not None and latest.swarm_samples >= latest.global_batch:
            return "training; the batch is full, and all machines average what they learned", step
        return "training: your machine computes samples for everyone's batch", step

    def _under_way(self, decay: Decay | None) -> str:
        if decay is None:
            return f"step {self.step + 1:,} of {self.total_steps:,}"
        return f"cooldown, step {min(self.step + 2 - decay.start, decay.steps):,} of {decay.steps:,}"

    def _progress(self, now: float) -> Progress | None:
        latest = self.latest
        if self.phase is not Phase.WORKING or self._is_loading or latest is None or latest.global_batch < 1:
            return super()._progress(now)
        whole, remaining = latest.global_batch, None
        done = min(latest.swarm_samples, whole)
        mine = 0 if self.auxiliary else min(latest.samples, done)
        if self.filling is not None and done < whole:
            _, began, had = self.filling
            if (seconds := self.heard_at - began) > 0 and latest.swarm_samples > had:
                pace = seconds / (latest.swarm_samples - had)
                remaining = max(0.0, (whole - done) * pace - (now - self.heard_at))
        words = f"{self._under_way(latest.decay)}: {done:,} of {human.count(whole, 'sample')}"
        return Progress(words + ("" if self.auxiliary else f", {mine:,} by you"), done / whole, mine / whole, remaining)

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("you", f"{self.name}, anonymously" if self.anonymous else self.name)] if self.name else []
        if self.device:
            facts.append(("given", self._gave))
        standing = self.standing
        if standing is not None and not self.auxiliary:
            facts.append(("in all", human.count(self.total_samples, "sample")))
            if (share := self.share) is not None:
                facts.append(("share", f"{human.share(share)} of what all gave"))
            if standing.rank:
                facts.append(("rank", f"{standing.rank:,} of {human.count(standing.contributors, 'volunteer')}"))
        if self.hosted is not None:
            kept, copies = self.hosted
            facts.append(("experts", f"{kept:,} and copies of {copies:,} more"))
            facts.append(("answered", f"{human.count(self.before.answered + self.given.answered, 'token')} for others"))
        if self.phase.over:
            return facts
        if self.peers:
            facts.append(("training now", human.count(self.peers, "volunteer")))
        if self.device:
            speed = self.latest.samples_per_second if self.latest is not None and self.phase is Phase.WORKING else 0.0
            facts.append(("machine", self.device + (f", {human.rate(speed)} samples/s" if speed > 0 else "")))
        if (reading := self.reading) is None:
            return facts
        if reading.memory_bytes:
            facts.append(("memory", human.size(reading.memory_bytes)))
        if reading.sent_bytes_per_second or reading.received_bytes_per_second:
            sent, received = human.size(reading.sent_bytes_per_second), human.size(reading.received_bytes_per_second)
            facts.append(("network", f"{sent}/s up, {received}/s down"))
        return facts

    @property
    def _gave(self) -> str:
        for_time = f" in {human.duration(self.seconds_given)}"
        if self.auxiliary:
            return f"{human.size(self.before.carried + self.given.carried)} carried{for_time}"
        return human.count(self.session_samples, "sample") + for_time

    def _curve(self) -> tuple[LossPoint, ...] | None:
        return self.losses if self.losses or self.phase in (Phase.WORKING, Phase.WAITING) else None

    def _notes(self) -> list[tuple[str, str]]:
        notes = [("From the organizer", self.announcement)] if self.announcement else []
        if self.phase.over:
            return notes + self._thanks()
        if (newest := self.newest) is not None:
            loss = newest.step.loss
            told = "" if loss is None else f" The loss is now {loss:.4f}; lower is better."
            notes.append(("Newest step", self._meant(newest) + told))
        return notes

    def _meant(self, newest: StepDone) -> str:
        """What this machine gave to a step, and what that means."""
        mine, samples = newest.contributions.get(self.peer, 0), newest.step.samples
        whole = f"the {samples:,} samples of step {newest.step.step:,}"
        if mine:
            part = human.share(min(1.0, mine / max(1, samples)))
            return f"Your machine computed {mine:,} of {whole}: {part} of what the model learned in it."
        if self.auxiliary:
            return f"Others computed {whole}, and your machine helped to carry them."
        return f"Others computed {whole}; yours count in a later one."

    def _thanks(self) -> list[tuple[str, str]]:
        given = self.before.carried + self.given.carried if self.auxiliary else self.session_samples
        if not given:
            nothing = [("Thank you for coming", "No sample was finished this time.")]
            return [] if self.phase is Phase.FAILED else nothing
        text = f"You gave {self._gave}."
        if self.hosted is not None and (answered := self.before.answered + self.given.answered):
            text += f" Your experts answered {human.count(answered, 'token')} for others."
        if self.total_samples > self.session_samples and not self.auxiliary:
            text += f" With your earlier visits that is {human.count(self.total_samples, 'sample')}."
        if self.share and not self.auxiliary:
            text += f" That is {human.share(self.share)} of all that everyone has given."
        if self.phase is Phase.LEFT:
            text += " To come back, run the same again."
        notes = [(f"Thank you, {self.name}" if self.name else "Thank you", text)]
        return [*notes, ("Next time", self.next_session)] if self.next_session else notes

    def _links(self) -> list[tuple[str, str]]:
        # `#me`: the page says so, and remembers it in this browser.
        own = [("your page", f"{self.url}/people/{self.peer}#me")] if self.url and self.peer else []
        return super()._links() + own


def _with_losses(known: tuple[LossPoint, ...], more: Iterable[LossPoint]) -> tuple[LossPoint, ...]:
    """What this machine knows of its own samples stays."""
    losses = {point.step: point for point in known}
    for point in more:
        if point.step not in losses or not losses[point.step].mine:
            losses[point.step] = point
    points = [losses[step] for step in sorted(losses)]
    every = max(1, math.ceil(len(points) / MAX_LOSSES))
    return tuple(points[::-1][::every][::-1])
