"""`dedloc check`: whether a run can work, what it takes, and how long it will take with a mix of volunteers."""

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from dedloc_kit.bucket.trying import try_bucket
from dedloc_kit.config.loading import local
from dedloc_kit.config.machine import JoinOptions, parsed
from dedloc_kit.config.places import names_local_files
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import public_name
from dedloc_kit.config.task import Source
from dedloc_kit.display.auxiliary_peers import LITTLE, AuxiliaryPeers, gain
from dedloc_kit.display.console import Console
from dedloc_kit.display.human import count, duration, rate, size
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, GoingOn, Rehearsed, State, Warned
from dedloc_kit.machine.hardware import cores
from dedloc_kit.machine.memory_model import gpu_memory_needed, lender_memory_needed, memory_needed
from dedloc_kit.organizer.experts import Hosts, describe_experts, describe_hosts
from dedloc_kit.organizer.pipeline import describe_pipeline, describe_stages, predict_pipeline
from dedloc_kit.organizer.plan import describe_plan, halved, plan_of
from dedloc_kit.organizer.prediction import (
    DAY,
    HERE,
    Prediction,
    Volunteers,
    fits,
    predict,
    volunteers_rate,
)
from dedloc_kit.records.plan import Plan
from dedloc_kit.worker import Worker, coordinator_job

SHARE_TOLERANCE = 0.01
WEEKEND = 2 * DAY
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def check(
    run: RunConfig,
    volunteers: Sequence[Volunteers],
    *,
    coordinator_line: float,
    auxiliary: Sequence[AuxiliaryPeers] = (),
    hosts: Sequence[Hosts] = (),
    compare: Sequence[str] = (),
    offline: bool = False,
    state_bucket_folder: Path | None = None,
    console: Console | None = None,
    **settings: object,
) -> Plan | None:
    """Try the run's data and model on this machine and print what it takes.

    Returns the plan; none where no data could be read, or the run is cut into stages.

    :param coordinator_line: bytes per second in each direction
    :param auxiliary: who lend a line; not to a run in stages
    :param hosts: of a run with experts
    :param compare: tokenizers that the run's is set beside, see `load_tokenizer`
    :param state_bucket_folder: what is shown at `averaging.state_bucket`, if that is the address of a folder
    :param console: where it is printed; default: standard output
    :param settings: keys of PeerConfig for the process that tries it
    Raises UserError with the fix for a run that cannot work.
    """
    if hosts and run.experts is None:
        raise UserError("--hosts are of a run with [experts]; leave them out")
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    check_mixture(run.data.train)
    if run.data.cooldown:
        check_mixture(run.data.cooldown, "data.cooldown")
    load = os.getloadavg()[0]
    rehearsed = rehearse(run, console, offline=offline, **settings)
    console.print(f"\n{run.run_id}", style="bold")
    for line in describe(run, rehearsed):
        console.print(line)
    if run.experts is not None:
        for line in describe_hosts(run, hosts, volunteers, coordinator_line):
            console.print(line)
    if run.averaging.state_bucket is not None and not offline:
        console.print(f"downloads     {try_bucket(run.averaging.state_bucket, state_bucket_folder, run.run_id)}")
    if compare:
        console.print(compare_tokenizers(run, compare, console))
    if rehearsed.cost is None:
        console.print("no data could be read, so nothing can be said about its speed; leave --offline out")
        return None
    if load > cores():
        console.print(
            f"this machine is busy with other things (load {load:.0f}), so it is slower here than it could be"
        )
    if rehearsed.stages:
        for line in describe_pipeline(run, predict_pipeline(run, rehearsed, volunteers, coordinator_line)):
            console.print(line)
        return None
    console.print(_devices(rehearsed, volunteers))

    def predicted(auxiliary: Sequence[AuxiliaryPeers]) -> Prediction:
        return predict(run, rehearsed, volunteers, coordinator_line, auxiliary)

    for line in describe_prediction(run, predicted(auxiliary)):
        console.print(line)
    plan = plan_of(run, rehearsed, volunteers, sum(each.count for each in auxiliary), predicted(auxiliary))
    for line in describe_plan(run, rehearsed, plan, halved(run, rehearsed, volunteers, coordinator_line, auxiliary)):
        console.print(line)
    if told := gain(lambda more: predicted(more).step, auxiliary):
        console.print(f"auxiliary     {told}")
    return plan


def check_mixture(sources: Sequence[Source], key: str = "data.train") -> None:
    """Raise UserError if the weights are shares of a whole that do not make one.

    Weights are relative, so 77 and 23 are as good as 0.77 and 0.23. But as soon as one is below 1 they are read as
    shares, and a sum other than 1 means that a source or a digit is missing.
    """
    weights = [source.weight for source in sources]
    total = math.fsum(weights)
    if min(weights) < 1 and abs(total - 1) > SHARE_TOLERANCE:
        named = " + ".join(f"{weight:g}" for weight in weights)
        raise UserError(
            f"the weights of {key} do not sum to 1: {named} = {total:g} (a source without a weight has 1); "
            "correct them, or give whole numbers such as 77 and 23 if you mean proportions"
        )


def describe(run: RunConfig, rehearsed: Rehearsed) -> list[str]:
    """What the run takes, in lines."""
    parameters, state = rehearsed.parameters, run.optimizer.state_dtype
    model = f"model         {parameters / 1e6:,.1f} million parameters"
    if run.pipeline is not None:
        return [model, *(describe_stages(run, rehearsed) if rehearsed.stages else [])]
    lines = [
        model,
        f"a volunteer   {size(memory_needed(parameters, 1, state))} of memory at most, beside what the samples take; "
        f"with a GPU {size(memory_needed(parameters, 0, state))}, and {size(gpu_memory_needed(parameters))} of the "
        "GPU's",
        f"auxiliary     {size(lender_memory_needed(parameters))} of memory at most, and no GPU "
        "(dedloc join --auxiliary)",
    ]
    if run.experts is not None:
        lines += describe_experts(run, parameters)
    cost = rehearsed.cost
    if cost is not None:
        lines += [
            f"one sample    {rate(cost.flops / 1e9)} GFLOP, {size(cost.kept_bytes)} kept in between",
            f"microbatch    {count(cost.microbatch, 'sample')} here: {size(cost.microbatch * cost.kept_bytes)}; "
            f"{rate(cost.samples_per_second)} samples/s ({rehearsed.device})",
        ]
    lines.append(
        f"global step   {count(run.global_batch, 'sample')}; each volunteer sends {size(rehearsed.gradient_bytes)} and "
        f"gets {size(rehearsed.average_bytes)} ({run.averaging.compression})"
    )
    if rehearsed.going_on is not None:
        lines += _describe_start(rehearsed.going_on)
    if names_local_files(run):
        what = "images RUN.toml --shards" if "pictures" in run.task.options else "tokens RUN.toml"
        how = "" if run.task.name == "chat" else f" (dedloc prepare {what} --push OWNER/NAME)"  # it is read as it is
        lines.append(
            "note          the data or the tokenizer is in a folder of this machine: volunteers elsewhere cannot read "
            f"it; put it on the Hub{how}"
        )
    return lines


def _describe_start(start: GoingOn) -> list[str]:
    """How much of the old model is in the new vocabulary, and what both make of the held-out data."""
    lines = []
    if start.held_out_before is not None or start.averaged or start.drawn:
        lines.append(
            f"vocabulary    {start.copied + start.averaged + start.drawn:,} tokens: {start.copied:,} copied from the "
            f"start's, {start.averaged:,} the mean of those that spell them, {start.drawn:,} drawn at random"
        )
    if start.held_out is not None:
        before = start.held_out_before or {}
        told = [
            f"{name} {value:.4g}" + (f" (with the start's own vocabulary {before[name]:.4g})" if name in before else "")
            for name, value in start.held_out.items()
        ]
        lines.append(f"first step    held-out {', '.join(told)}")
    return lines


def describe_prediction(run: RunConfig, predicted: Prediction) -> list[str]:
    """The prediction in lines; the last one is what an organizer asked for."""
    steps = f"{run.optimizer.total_steps:,} global steps"
    if run.optimizer.schedule == "warmup-stable-decay":
        steps += " at most, or sooner by 'dedloc run cooldown' (without it the rate never falls)"
    newcomers = (
        f"newcomers     their states take {predicted.newcomers:.0%} of the lines of those who average; a bucket would "
        "serve them instead (averaging.state_bucket)"
    )
    weekend = f"a weekend     {count(int(WEEKEND / predicted.step), 'global step')} in 48 hours"
    return [
        f"computing     {predicted.computing:,.1f} s of a global step",
        f"network       {predicted.network:,.1f} s on the slowest line, {predicted.matchmaking:,.1f} s to find "
        f"each other and begin, {predicted.vanishing:,.1f} s for those who vanish in the middle"
        f"{', meanwhile' if run.averaging.overlap else ''}",
        *([newcomers] if predicted.newcomers >= LITTLE else []),
        f"global step   {predicted.step:,.1f} s, limited by {predicted.limit}",
        *([weekend] if predicted.days * DAY > WEEKEND else []),
        f"to finish     {duration(predicted.days * 86_400)} for {steps}, if so many are at work all the time",
    ]


def compare_tokenizers(run: RunConfig, others: Sequence[str], console: Console) -> Table:
    """What the run's vocabulary makes of its held-out text beside what others make of it.

    Raises UserError if a tokenizer or the text cannot be read.
    """
    from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
    from dedloc_kit.organizer.fertility import fertility, held_out_texts

    source, own = run.data.evaluation, run.task.options.get("tokenizer", run.task.options.get("init_from"))
    if source is None or not isinstance(own, str):
        raise UserError("--compare needs held-out text ([data.evaluation]) and a tokenizer (task.tokenizer)")
    texts = held_out_texts(source, lambda line: console.print(line, style="yellow"))
    table = Table("tokenizer", "tokens", "tokens/word", "bytes/token", box=None, padding=(0, 2, 0, 0))
    for name in (own, *others):
        tokenizer = load_tokenizer(local(name, Path()))
        found = fertility(tokenizer, texts)
        shown = f"{found.tokens_per_word:.2f}", f"{found.bytes_per_token:.2f}"
        table.add_row(f"{public_name(name)}{' (this run)' * (name == own)}", f"{len(tokenizer):,}", *shown)
    return table


def _devices(rehearsed: Rehearsed, volunteers: Sequence[Volunteers]) -> Table:
    table = Table("volunteers", "samples/s each", "line", "samples in memory", box=None, padding=(0, 2, 0, 0))
    for each in volunteers:
        room, here = fits(each.device, rehearsed), each.device == HERE
        table.add_row(
            f"{each.count} x {'' if each.devices == 1 else f'{each.devices} x '}"
            f"{'this machine' if here else each.device.upper()}",
            f"{rate(volunteers_rate(each, rehearsed))} ({'measured' if here else 'estimated'})",
            f"{each.line * 8 / 1e6:g} Mbit/s{', reachable' if each.reachable else ''}",
            "as tried" if room is None else "too small for one" if room == 0 else f"{room:,}",
        )
    return table


def rehearse(run: RunConfig, console: Console, *, offline: bool = False, **settings: object) -> Rehearsed:
    """What the run takes on this machine, tried in a process of its own; what is going on goes to the console."""
    found: list[Rehearsed] = []

    def heard(event: AnyEvent) -> None:
        match event:
            case State(text=text):
                console.print(text, style="dim")
            case Warned(text=text):
                console.print(text, style="yellow")
            case Rehearsed():
                found.append(event)

    folder = Path(tempfile.mkdtemp(prefix="dedloc-check-"))
    job = coordinator_job(run, parsed(JoinOptions, {"folder": folder, **settings}))
    environment = _OFFLINE if offline else {}
    worker = Worker("rehearsal", job, folder=folder, on_event=heard, environment=environment)
    try:
        code = worker.wait()
    finally:
        worker.stop()
    if code in (0, 2):  # else the log tells more
        shutil.rmtree(folder, ignore_errors=True)
    if not found:
        raise UserError(worker.failure or "the rehearsal ended without a result")
    return found[0]
