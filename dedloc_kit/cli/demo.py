"""`dedloc demo`: a coordinator and volunteers, each its own process, train a small model on this machine."""

import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dedloc_kit.cli.interrupts import TEMPORARY
from dedloc_kit.config.machine import CoordinatorConfig, JoinOptions
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.console import Console
from dedloc_kit.display.terminal import RunDisplay
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, State, StepDone
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import home, remember_copies
from dedloc_kit.organizer.launch import Coordinator, write_invitation
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.records.evaluation import Continuation
from dedloc_kit.worker import Worker, volunteer_job

_TALKING = {"causal", "chat"}
"""Tasks whose models `dedloc chat` takes."""


def demo(
    *,
    recipe_name: str,
    volunteers: int,
    steps: int,
    report: Path | None,
    browser: bool,
    keep: Path | None = None,
    start: str | None = None,
) -> None:
    """Run the collaboration for some global steps and write what happened to `report`.

    In a terminal the page then stays open until Ctrl-C.

    :param browser: open the page, and keep it open
    :param keep: a new folder for the run, which is thrown away without one
    :param start: what the recipe goes on from, as `going_on.model_folder` takes it

    Raises UserError if something cannot start or a volunteer is lost; the logs are then kept and named.
    """
    if report is not None and not report.resolve().parent.is_dir():
        raise UserError(f"the folder of {report} does not exist; choose another file for --report")
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UserError(f"{keep} exists already; remove it, or choose another folder for --keep")
    run = with_steps(prepare_demo(recipe_name, home() / "demo" / recipe_name, start), steps)
    console = Console(highlight=False, markup=False, soft_wrap=True)

    def ended(result: dict[str, Any], page: str) -> None:
        if report is not None:
            report.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        for line in what_next(run.task.name, recipe_name, keep):
            console.print(line)
        if browser and sys.stdin.isatty():
            console.print(f"the live page stays open: {page} (Ctrl-C ends)", style="bold")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()

    with _scratch_folder() if keep is None else nullcontext(keep.resolve()) as where:
        _collaborate(run, where, volunteers, steps, browser, ended)


def with_steps(run: RunConfig, steps: int) -> RunConfig:
    """The run, long enough for so many global steps; a longer one keeps its schedule."""
    longer = {"total_steps": max(steps, run.optimizer.total_steps)}
    return run.model_copy(update={"optimizer": run.optimizer.model_copy(update=longer)})


def what_next(task: str, recipe: str, kept: Path | None) -> list[str]:
    """What a person may do after a demo, a command in each line.

    :param kept: the folder of the demo, if it is kept
    """
    folder = "FOLDER" if kept is None else shlex.quote(str(kept))
    commands = [] if kept is not None else [(f"dedloc demo --recipe {recipe} --keep {folder}", "keep what is trained")]
    commands.append((f"dedloc export {folder} MODEL", "write the model for transformers"))
    if task in _TALKING:
        commands.append((f"dedloc chat {folder}", "talk with it"))
    commands.append(("dedloc init NAME", "begin a run of your own, with volunteers elsewhere"))
    width = max(len(command) for command, _ in commands)
    return ["what to do next:", *(f"  {command:<{width}}  {what}" for command, what in commands)]


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dedloc-demo-"))
    TEMPORARY.add(folder)
    try:
        yield folder
    except UserError as error:
        TEMPORARY.discard(folder)
        raise UserError(f"{error} (logs are in {folder})") from None
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _collaborate(
    run: RunConfig,
    folder: Path,
    volunteers: int,
    steps: int,
    browser: bool,
    ended: Callable[[dict[str, Any], str], None],
) -> None:
    """:param ended: called with what happened and the page's address, while the page is still up"""
    began = time.monotonic()
    stages = 1 if run.pipeline is None else run.pipeline.count
    volunteers = volunteers if stages == 1 else max(volunteers, 2 * stages)
    threads = max(1, (os.cpu_count() or 1) // (volunteers + 1))
    first_step, killed = threading.Event(), threading.Event()
    first_step_seconds: list[float] = []

    def settings(name: str) -> dict[str, Any]:
        return {
            "folder": folder / name,
            "name": name,
            "swarm_host": "127.0.0.1",
            "devices": "cpu",  # several processes would not fit on one GPU
            "threads": threads,
            "until_step": steps,
            "export": folder / f"{name}.safetensors",
        }

    workers, display = list[Worker](), RunDisplay(run.global_batch)

    def on_coordinator(event: AnyEvent) -> None:
        if isinstance(event, StepDone) and not first_step.is_set():
            first_step_seconds.append(time.monotonic() - began)
            first_step.set()
        display.show(event)
        if stages > 1 and isinstance(event, StepDone) and event.step.step >= steps // 2 and not killed.is_set():
            killed.set()
            display.line(f"volunteer-{volunteers} is killed now, on purpose: others do again what it had", "bold")
            workers[-1].kill()

    organizers = CoordinatorConfig(**settings("coordinator"), evaluate_every=5)
    with Coordinator(run, organizers, host="127.0.0.1", port=0, on_event=on_coordinator) as coordinator:
        coordinator.dashboard.count_to(steps)
        with display:
            display.line(f"live page: {coordinator.dashboard.url}", "bold")
            if browser and _has_a_screen():
                webbrowser.open(coordinator.dashboard.url)
            invitation = coordinator.invitation()
            write_invitation(invitation, organizers.folder)
            copies = local_copies(run)
            remember_copies(run.run_id, invitation.organizer, copies)
            names = [f"volunteer-{number}" for number in range(1, volunteers + 1)]
            for number, name in enumerate(names):
                stage = None if stages == 1 else number % stages
                workers.append(
                    Worker(
                        "volunteer",
                        volunteer_job(invitation, JoinOptions(**settings(name), stage=stage, data=copies)),
                        folder=folder / name,
                        on_event=lambda event, name=name: _show_volunteer(display, event, name),  # type: ignore[misc]
                    )
                )
            try:
                _wait_for(workers, coordinator, killed)
            except KeyboardInterrupt:
                display.line("stopping; Ctrl-C again ends at once")
                raise
            finally:
                for worker in workers:
                    worker.leave()
                for worker in workers:
                    worker.stop()
            if coordinator.stop() != 0:
                raise UserError("the coordinator did not end cleanly")
        ledger = Ledger(folder / "coordinator" / "ledger.sqlite", read_only=True)
        try:
            _show_writing(ledger)
            result = {
                "run_id": run.run_id,
                "seconds_to_first_step": round(first_step_seconds[0], 2),
                "wall_seconds": round(time.monotonic() - began, 2),
                "max_parameter_difference": _largest_difference(folder, names, stages),
                **_summary(run, ledger),
            }
        finally:
            ledger.close()
        ended(result, coordinator.dashboard.url)


def _largest_difference(folder: Path, names: list[str], stages: int) -> float:
    """Of any parameter, between those who hold the same ones."""
    files = [folder / f"{name}.safetensors" for name in names]
    if stages == 1:
        return max(_difference(folder / "coordinator.safetensors", file) for file in files)
    # Those who held the same stage; the last volunteer was killed.
    return max(_difference(*pair) for pair in zip(files[:-1], files[stages:-1], strict=False))


def _has_a_screen() -> bool:
    """Without one, `webbrowser` would start a text browser in the middle of the demo's own output."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _show_volunteer(display: RunDisplay, event: AnyEvent, name: str) -> None:
    """Volunteers' steps are shown once, by the coordinator."""
    if not isinstance(event, StepDone | State):
        display.show(event, name)


def _show_writing(ledger: Ledger) -> None:
    """How a model that writes has gone on with the same text in the beginning, on the way, and in the end."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for step, samples in ledger.samples_on_the_way(3):
        for sample in [each for each in samples if isinstance(each, Continuation)][:1]:
            before, written = (" ".join(text.split()) for text in (sample.before, sample.written))
            console.print(f"after step {step} it writes: {before} | {written}")


def _wait_for(workers: list[Worker], coordinator: Coordinator, killed: threading.Event) -> None:
    """Until every volunteer has left; UserError as soon as one of them, or the coordinator, fails.

    :param killed: set when the last one is killed on purpose
    """
    waiting = list(workers)
    while waiting:
        waiting = [worker for worker in waiting if worker.running]
        failed = next((each.failure for each in (workers[:-1] if killed.is_set() else workers) if each.failure), None)
        if failed:
            raise UserError(failed)
        if coordinator.ended.wait(0.2):
            raise UserError("the coordinator ended before the volunteers")


def _summary(run: RunConfig, ledger: Ledger) -> dict[str, Any]:
    steps, evaluations = ledger.steps(), ledger.evaluations()
    return {
        "global_steps": len(steps),
        "global_batch": run.global_batch,
        "samples_total": sum(step.samples for step in steps),
        "samples_per_step": [step.samples for step in steps],
        "loss_first": steps[0].loss,
        "loss_last": steps[-1].loss,
        "eval_loss_first": evaluations[0].loss if evaluations else None,
        "eval_loss_last": evaluations[-1].loss if evaluations else None,
        "contributions": {contributor.peer: contributor.samples for contributor in ledger.contributors()},
    }


def _difference(one: Path, other: Path) -> float:
    """The largest absolute difference of any parameter."""
    mine, theirs = load_file(one), load_file(other)
    return max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine)
