"""Does a recipe, trained by several volunteers, learn what one plain loop learns from as many samples?

First a coordinator and volunteers, each a process on this machine, train for all of the run's steps. Then one process
without any code of the swarm takes as many steps with as many samples each, in turn from as many shuffles of the data,
from the same first weights and with the same optimizer and schedule. Both are measured on the same held-out samples,
with several seeds if asked. The folder keeps `swarm.safetensors` and `plain.safetensors` of each seed, which
`dedloc evaluate FILE --run RUN.toml` takes.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.lib.peers import end_on_signal, start_coordinator, start_volunteer, step_of
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.models.picture_model.files import completed
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.tasks.drawing.evaluation import ANOTHER, TRUE_CAPTION, WITHOUT
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.organizer.prepare import prepare_tokenizer
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.state import StateInfo

_ROW = "{:>6}{:>10}{:>10}{:>10}{:>9}"
_METRIC_ROW = "{:>6}{:>30}{:>10}{:>10}"
_SUMMARY_ROW = "{:>6}{:>30}{:>10}{:>10}{:>10}{:>12}"
_SHORT = {
    WITHOUT: "loss_without",
    ANOTHER: "loss_wrong",
    TRUE_CAPTION: "true_of_16",
}
"""Names in the JSON of what models that draw are measured by."""


@dataclass
class Curve:
    """What one of the two ways came to."""

    samples: list[int]
    """Of each global step."""
    held_out: dict[int, float]
    """Loss by global step."""
    metrics: dict[int, dict[str, float]]
    """What the task measures beside it, by global step."""
    seconds: float

    def told(self) -> dict[tuple[int, str], float]:
        """Everything that was measured, by global step and name."""
        losses = {(step, "held-out loss"): loss for step, loss in self.held_out.items()}
        return losses | {(step, name): value for step, of in self.metrics.items() for name, value in of.items()}


def main() -> int:
    options = _parse()
    end_on_signal()
    base = completed(load_run(options.run, options.overrides))
    options.microbatch = options.microbatch or base.microbatch or 4
    if "tokenizer" in base.task.options and not Path(str(base.task.options["tokenizer"])).exists():
        prepare_tokenizer(base)
    found = []
    for seed in options.seeds or [base.seed]:
        run, folder = base.model_copy(update={"seed": seed}), options.folder / f"seed-{seed}"
        folder.mkdir(parents=True)
        swarm = _swarm(run, folder, options)
        plain = _plain(run, swarm.samples, folder, options)
        found.append((swarm, plain))
        _show(run, swarm, plain, options.volunteers)
        if options.json:
            kept = [{"swarm": vars(swarm), "plain": vars(plain), **_end(swarm)} for swarm, plain in found]
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    if len(found) > 1:
        _summarize(found)
    return 0


def _end(curve: Curve) -> dict[str, float]:
    """The loss at the end, and of a model that draws what else is told of it."""
    last = max(curve.held_out)
    told = curve.metrics.get(last, {})
    return {"loss": curve.held_out[last]} | {short: told[name] for name, short in _SHORT.items() if name in told}


def _show(run: RunConfig, swarm: Curve, plain: Curve, volunteers: int) -> None:
    print(f"{run.run_id}, {volunteers} volunteers: {sum(swarm.samples)} samples, {len(swarm.samples)} steps")
    print(_ROW.format("step", "samples", "swarm", "plain", "ratio"))
    for step in sorted(swarm.held_out.keys() & plain.held_out.keys()):
        one, other = swarm.held_out[step], plain.held_out[step]
        print(_ROW.format(step, sum(swarm.samples[:step]), f"{one:.4f}", f"{other:.4f}", f"{one / other:.4f}"))
    print(_METRIC_ROW.format("step", "metric", "swarm", "plain"))
    for step in sorted(swarm.metrics.keys() & plain.metrics.keys()):
        told = plain.metrics[step]
        for name, value in swarm.metrics[step].items():
            if name in told:  # what is measured with something that is trained beside may come later
                print(_METRIC_ROW.format(step, name, f"{value:.4f}", f"{told[name]:.4f}"))
    print(f"swarm {swarm.seconds:.0f} s, plain loop {plain.seconds:.0f} s", flush=True)


def _summarize(found: list[tuple[Curve, Curve]]) -> None:
    """Means over the seeds, and how far apart they are in standard deviations of the plain loop."""
    print(f"{len(found)} seeds, means; the deviation is the plain loop's from seed to seed")
    print(_SUMMARY_ROW.format("step", "", "swarm", "plain", "deviation", "difference"))
    told = [(swarm.told(), plain.told()) for swarm, plain in found]
    for step, name in sorted(set.intersection(*(each.keys() & other.keys() for each, other in told))):
        swarms, plains = zip(*((each[step, name], other[step, name]) for each, other in told), strict=True)
        apart, deviation = mean(swarms) - mean(plains), stdev(plains)
        numbers = [f"{value:.4f}" for value in (mean(swarms), mean(plains), deviation)]
        print(_SUMMARY_ROW.format(step, name, *numbers, f"{apart / deviation:+.2f}" if deviation else "n/a"))


def _swarm(run: RunConfig, folder: Path, options: argparse.Namespace) -> Curve:
    last = run.optimizer.total_steps
    with start_coordinator(
        run, folder, evaluate_every=options.every, export=folder / "swarm.safetensors"
    ) as coordinator:
        addresses = tuple(coordinator.wait_for("joined")["addresses"])
        invitation = Invitation.of(run, addresses)
        began = time.monotonic()
        names = [f"volunteer-{number}" for number in range(options.volunteers)]
        own = {"microbatch": options.microbatch, "data": local_copies(run)}
        volunteers = [start_volunteer(invitation, folder, name, **own) for name in names]
        try:
            done = coordinator.wait_for_step(last, deadline=options.hours * 3600)
            seconds = done["at"] - began
            coordinator.wait_for("evaluated", lambda event: event["step"] >= last, deadline=options.hours * 3600)
        finally:
            for volunteer in volunteers:
                volunteer.leave()
            for volunteer in volunteers:
                volunteer.kill()
        coordinator.leave()
        coordinator.wait()
        samples = {step_of(event): int(event["step"]["samples"]) for event in coordinator.steps()}
        evaluated = [event for event in coordinator.events if event["event"] == "evaluated"]
        held_out = {int(event["step"]): float(event["loss"]) for event in evaluated}
        metrics = {int(event["step"]): dict(event["metrics"]) for event in evaluated}
    return Curve([samples[step] for step in range(1, last + 1)], held_out, metrics, seconds)


def _plain(run: RunConfig, samples: list[int], folder: Path, options: argparse.Namespace) -> Curve:
    task, settings = create_task(run), run.optimizer
    model = task.model()
    optimizer = build_optimizer(settings, task.groups(model))
    # Samples that follow each other are often of one document: from one place of the data alone they teach less.
    seeds = [seed_of(run.run_id, "plain", volunteer) for volunteer in range(options.volunteers)]
    batches = chain.from_iterable(
        zip(*(batches_of(run, task, options.microbatch, seed, print) for seed in seeds), strict=True)
    )
    found = {0: task.evaluate(model)}
    evaluating, began = 0.0, time.monotonic()
    for step, wanted in enumerate(samples):
        for _ in range(wanted // options.microbatch):
            (task.loss(model, task.prepare(next(batches)), step).mean * (options.microbatch / wanted)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % options.every == 0:
            paused = time.monotonic()
            found[step + 1] = task.evaluate(model)
            evaluating += time.monotonic() - paused
            print(f"plain loop: step {step + 1}, held-out loss {found[step + 1].loss:.4f}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began - evaluating
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save(folder / "plain.safetensors", named, StateInfo(run_id=run.run_id, step=len(samples), rounds=()))
    held_out = {step: each.loss for step, each in found.items()}
    return Curve(samples, held_out, {step: each.metrics for step, each in found.items()}, seconds)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN.toml")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml")
    parser.add_argument("--volunteers", type=int, default=3)
    parser.add_argument("--microbatch", type=int, help="samples that a peer takes at once; default: the run's, or 4")
    parser.add_argument("--seeds", type=int, nargs="+", help="train once with each; default: the run's seed")
    parser.add_argument("--every", type=int, default=40, help="global steps between two evaluations")
    parser.add_argument("--folder", type=Path, required=True, help="for logs and what was learned; must be new")
    parser.add_argument("--hours", type=float, default=1.0, help="give up after so long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
