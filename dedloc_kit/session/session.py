"""One volunteer's session: finds out what there is to do, keeps a worker at it, and tells how it goes."""

import math
import platform
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.client import fetch_standing, find_invitation
from dedloc_kit.config.machine import JoinOptions, parsed
from dedloc_kit.errors import UserError
from dedloc_kit.events import Announced, Hosted, Joined, Left, Loading, LocalProgress, State, StepDone, Warned
from dedloc_kit.machine.account import CODE, Account, who_am_i
from dedloc_kit.machine.home import known_copies, next_session, peer_folder
from dedloc_kit.machine.meters import Meters, Reading
from dedloc_kit.machine.proxies import proxy_obstacle
from dedloc_kit.machine.survey import check, check_clock, check_connections, clock_skew, machine_at, tpu
from dedloc_kit.memory import initial_peers
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.session.snapshot import Fill, LossPoint, Snapshot, overdue
from dedloc_kit.session.supervisor import Notice, Paused, Resting, Supervisor
from dedloc_kit.version import __version__
from dedloc_kit.worker import Worker, volunteer_job

METER_SECONDS = 2.0
STANDING_SECONDS = 10.0
MAX_MICROBATCH = 60.0
"""Longer gaps are no computing: the machine slept, or waited."""
MAX_LOSSES, MAX_WARNINGS = 300, 3
LOG_BYTES, LOG_LINES = 8_000, 40


class Session:
    """One volunteer's session: from the invitation to the thanks. Starts at once, in the background."""

    def __init__(
        self,
        where: str,
        *,
        folder: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        code: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Raises UserError if the folder is another volunteer's or cannot be written.

        :param where: a coordinator's URL, a Hub repository or an invitation's file
        :param folder: keeps this volunteer's identity; without one, a free one in the home folder
        :param settings: keys of PeerConfig that the volunteer has chosen
        :param code: what lets this volunteer into a run that is not open to all; see `personal_code`
        :param environment: variables for the worker
        """
        self.ended = threading.Event()
        """Set when nothing runs any more; the last snapshot then says how it ended."""
        self._where, self._settings, self._code = where, dict(settings or {}), code
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(peer_folder(folder))
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._wish: Literal["train", "pause", "leave"] = "train"
        self._account: Account | None = None
        self._peer = ""
        self._stopped = ""  # why the worker before this one has ended, until this one has joined
        self._last_stop = ""  # the same for good: the organizer is told
        self._worker_samples = 0  # given by the worker that runs now
        self._earlier_samples = 0  # given by those before
        self._worker_carried = self._earlier_carried = 0  # bytes, likewise
        self._worker_answered = self._earlier_answered = 0  # tokens, likewise
        self._heard = time.monotonic()  # from the training
        self._usual_gap: float | None = None  # between two microbatches; not known before the first one is done
        self._fill = Fill()
        self._losses: dict[int, LossPoint] = {}
        self._supervisor = Supervisor(self._job, folder=self._folder, on_notice=self._take, environment=environment)
        threading.Thread(target=self._watch, name="session", daemon=True).start()

    @property
    def worker(self) -> Worker | None:
        """The process that trains, or the one that did last."""
        return self._supervisor.worker

    def snapshot(self) -> Snapshot:
        """How things stand now."""
        with self._lock:
            now = self._now
        if self.ended.is_set() or now.phase == "paused":
            return now
        if self._wish != "train":
            doing = "leaving" if self._wish == "leave" else "pausing"
            return replace(now, phase="leaving", text=f"{doing}: the last samples are on their way")
        if now.phase != "training":
            return now
        return overdue(now, time.monotonic() - self._heard, self._usual_gap, self._fill.seconds)

    def pause(self) -> None:
        """Free this machine; what is finished counts. Returns at once; does nothing after `leave`."""
        if self._wish == "leave":
            return
        self._wish = "pause"
        self._supervisor.pause()

    def resume(self) -> None:
        """Take part again after a pause; nothing after `leave`."""
        if self._wish == "leave":
            return
        self._wish = "train"
        self._set(phase="starting", text="starting again")
        self._supervisor.resume()

    def leave(self) -> None:
        """Leave for good; returns at once, `ended` is set when nothing runs any more."""
        self._wish = "leave"
        self._supervisor.leave()

    # What there is to do, in the supervisor's thread

    def _job(self) -> Mapping[str, Any]:
        """Everything that the worker needs; found out while it imports its libraries."""
        self._set(phase="starting", text="reading the invitation", problem=None, details="")
        invitation, new = find_invitation(self._where, self._folder)
        if not new:
            self._warn(f"no coordinator answers at {self._where}; trying the peers known from the last time")
        run = invitation.run_config()
        self._set(
            run_id=run.run_id,
            about=run.about,
            url=invitation.url,
            total_steps=run.optimizer.total_steps,
            global_batch=run.global_batch,
        )
        if self._account is None:
            self._account = who_am_i(self._settings.get("name"), self._folder)
            if self._account.warning:
                self._warn(self._account.warning)
        self._set(name=self._account.name, anonymous=self._account.anonymous, text="checking the machine")
        copies = known_copies(run.run_id, invitation.organizer) | dict(self._settings.get("data", {}))
        settings = {**self._settings, "data": copies, "folder": self._folder.resolve(), "name": self._account.name}
        peer = parsed(JoinOptions, settings)
        if not self._peer:  # what stops it later may pass, such as a line that is down
            self._check_machine(invitation, peer)
        self._set(text="loading the libraries")
        secrets = {**self._account.environment(), **({CODE: self._code} if self._code else {})}
        return {**volunteer_job(invitation, peer, self._last_stop), "environment": secrets}

    def _check_machine(self, invitation: Invitation, peer: JoinOptions) -> None:
        """Warn of what may be a problem; raises UserError if this machine cannot take part."""
        from huggingface_hub.constants import ENDPOINT

        machine, state = machine_at(self._folder), invitation.run_config().optimizer.state_dtype
        parameters, lends, gives = invitation.held_parameters, peer.auxiliary, peer.give_state
        for text in check(machine, parameters, devices=peer.devices, state=state, lends=lends, gives_state=gives):
            self._warn(text)
        if not peer.auxiliary and (no_use := tpu()):
            self._warn(no_use)
        if told := proxy_obstacle(ENDPOINT):  # much data is there, not all
            self._warn(told)
        skew = clock_skew(invitation.url) if invitation.url else None
        if skew is not None and (told := check_clock(skew)):
            self._warn(told)
        check_connections(initial_peers(invitation, self._folder), page_answers=skew is not None)

    # What happens, in the supervisor's threads

    def _take(self, notice: Notice) -> None:
        match notice:
            case State(text=text):
                if self._now.phase == "starting":
                    self._set(text=text)
                elif self._now.phase == "training" and text != "training":  # the organizer has paused the run
                    self._set(phase="waiting", text=text)
            case Loading():
                if self._now.phase in ("starting", "loading"):
                    self._set(phase="loading", text=f"downloading the model: {notice.text}")
            case Joined():
                self._earlier_samples += self._worker_samples
                self._earlier_carried += self._worker_carried
                self._earlier_answered += self._worker_answered
                self._worker_carried = self._worker_answered = 0
                self._worker_samples, self._heard, self._peer = 0, time.monotonic(), notice.peer
                self._usual_gap, self._fill = None, Fill()
                if self._stopped:  # training hides what was told meanwhile, and somebody may want to know
                    self._warn(f"the training was started again; it had stopped: {self._stopped}")
                    self._stopped = ""
                # `#me`: the page says so, and remembers it in this browser.
                own_page = f"{self._now.url}/people/{self._peer}#me" if self._now.url else None
                self._set(phase="training", text="training", step=notice.step, device=notice.device, own_page=own_page)
            case Hosted(kept=kept, copies=copies):
                self._set(hosted=(kept, copies))
            case LocalProgress():
                self._progress(notice)
            case StepDone(step=step, contributions=contributions):
                self._fill.stepped()
                if step.loss is not None:
                    self._add_losses([LossPoint(step.step, step.loss, contributions.get(self._peer, 0))])
                self._set(step=max(step.step, self._now.step), peers=max(1, len(contributions)))
            case Announced(text=text):
                self._set(announcement=text)
            case Warned(text=text):
                self._warn(text)
            case Left():
                self._worker_samples = notice.session_samples
                self._set(session_samples=self._earlier_samples + self._worker_samples)
            case Resting(why=why, seconds=seconds):
                self._set(
                    phase="restarting",
                    text=f"the training stopped and starts again in {seconds:.0f} s: {why}",
                    details=self._details(why),
                )
                self._stopped = self._last_stop = why
            case Paused():
                self._set(phase="paused", text="paused: nothing runs on this machine", samples_per_second=0.0)

    def _progress(self, progress: LocalProgress) -> None:
        now = time.monotonic()
        gap, self._heard = now - self._heard, now
        self._usual_gap = gap if self._usual_gap is None else 0.9 * self._usual_gap + 0.1 * gap
        self._worker_samples = progress.session_samples
        self._fill.heard(progress)
        self._set(
            phase="training",
            text="training",
            step=max(progress.step, self._now.step),
            batch_samples=progress.swarm_samples,
            my_batch_samples=progress.samples,
            session_samples=self._earlier_samples + progress.session_samples,
            seconds_given=self._now.seconds_given + (gap if gap < MAX_MICROBATCH else 0.0),
            samples_per_second=progress.samples_per_second,
            decay=progress.decay,
        )
        if progress.carried is not None:
            self._worker_carried = progress.carried
            self._set(carried=self._earlier_carried + progress.carried, text="lending this machine's line")
        if progress.answered is not None:
            self._worker_answered = progress.answered
            self._set(answered=self._earlier_answered + progress.answered)
        if progress.driven is not None:
            self._set(text=f"driving: {progress.driven:,} samples have gone through all stages")
            if progress.loss is not None:  # it takes no steps, of which this would be known otherwise
                self._add_losses([LossPoint(progress.step, progress.loss, 0)])

    def _add_losses(self, points: Iterable[LossPoint]) -> None:
        for point in points:
            known = self._losses.get(point.step)
            if known is None or not known.mine:
                self._losses[point.step] = point
        losses = [self._losses[step] for step in sorted(self._losses)]
        every = max(1, math.ceil(len(losses) / MAX_LOSSES))
        self._set(losses=tuple(losses[::-1][::every][::-1]))

    def _warn(self, text: str) -> None:
        kept = [warning for warning in self._now.warnings if warning != text]
        self._set(warnings=(*kept, text)[-MAX_WARNINGS:])

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)

    # What is looked at from time to time, in a thread of its own

    def _watch(self) -> None:
        meters, looked = Meters(), 0.0
        try:
            while not self._supervisor.ended.wait(METER_SECONDS):
                worker = self._supervisor.worker
                reading = meters.read(worker.pid if worker is not None and worker.running else None)
                self._set(**asdict(reading))
                if self._now.rank is None or time.monotonic() - looked > STANDING_SECONDS:
                    self._look_up_standing()
                    looked = time.monotonic()
            self._look_up_standing()
        finally:
            self._supervisor.wait()
            self._end()

    def _look_up_standing(self) -> None:
        """Ask the coordinator how much we have given in all; while it does not answer, what is known stays."""
        if not self._peer or self._now.url is None:
            return
        after = max(self._losses, default=0) if len(self._losses) > 1 else 0
        try:
            standing = fetch_standing(self._now.url, self._peer, after)
        except UserError:
            return
        self._add_losses(LossPoint(step, loss, 0) for step, loss in standing.losses)
        self._set(
            total_samples=standing.samples,
            share=standing.samples / standing.samples_total if standing.samples_total else None,
            rank=standing.rank or None,
            contributors=standing.contributors,
            peers=max(standing.volunteers, 1),
        )

    def _end(self) -> None:
        failure = self._supervisor.failure
        if failure:
            self._set(
                phase="failed",
                text="this machine cannot take part now",
                problem=failure,
                details=self._details(failure),
            )
        elif self._wish == "leave":
            self._set(phase="left", text="you have left; thank you")
        else:
            self._set(phase="finished", text="the run is over; thank you")
        given = {"next_session": next_session(self._folder)} if self._now.session_samples else {}
        self._set(**asdict(Reading()), samples_per_second=0.0, **given)
        self._stack.close()
        self.ended.set()

    def _details(self, why: str) -> str:
        """For whoever helps: what runs where, and the last lines of the log."""
        worker = self._supervisor.worker
        lines = [
            why,
            f"run: {self._now.run_id or self._where}",
            f"peer: {self._peer or 'not joined'}",
            f"device: {self._now.device or 'not known yet'}",
            f"dedloc_kit {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ]
        lines += [f"{name} {version(name)}" for name in ("torch", "hivemind", "transformers", "datasets")]
        if worker is not None:
            lines += [f"log: {worker.log}", *_last_lines(worker.log)]
        return "\n".join(lines)


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []
