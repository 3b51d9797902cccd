"""Does collaborating cost the volunteers' devices time, and what does it send?

The same work in three systems, one after the other: ours (a coordinator that follows, and the volunteers), hivemind's
own optimizer as its ALBERT example sets it up, and each peer alone. First with a simulated device, which takes a
fixed time for a microbatch while the CPU idles, and which hands over gradients of real size; then with a real ALBERT
on one core for each peer. Efficiency is samples per second over those of the same peers alone.
"""

import argparse
import json
import math
import pydoc_data.topics
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lib.measure import SAMPLES_PER_MICROBATCH, SYSTEMS, WARM_UP_STEPS, Measured, Setting, measure
from benchmarks.lib.network import read_network
from benchmarks.lib.peers import end_on_signal
from benchmarks.lib.task import simulated_run
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError

_ROW = "{:10}{:>11}{:>15}{:>10}{:>10}{:>11}{:>9}{:>9}{:>8}{:>9}{:>13}"
REAL_MICROBATCH = 4
REAL_MODEL = {
    "embedding_size": 128,
    "hidden_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 128,
    "classifier_dropout_prob": 0.0,
}
"""8 million parameters; two passes through its one layer keep a microbatch below a second on one core."""


def main() -> int:
    options = _parse()
    end_on_signal()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-collaboration-"))
    try:
        results: dict[str, Any] = {}
        if options.helpers is not None:
            results["rows"] = with_helpers(options, folder)
        elif options.peers:
            setting = _simulated(options)
            print(f"\nSimulated device: {options.peers} volunteers, {options.parameters:.0f} parameters,", end=" ")
            print(f"{options.network_text}, {options.step_seconds:g} s of work in a global step")
            results = compare(options.systems, setting, folder / "simulated")
        if options.real_peers:
            setting = _real(options, folder)
            print(f"\nReal ALBERT: {options.real_peers} volunteers on a core each, loopback,", end=" ")
            print(f"{options.real_step_seconds:g} s of work in a global step")
            results["real"] = compare(options.systems, setting, folder / "real", real=True)
        if options.json:
            options.json.write_text(json.dumps({"settings": _settings(options), **results}, indent=2) + "\n")
    except UserError as error:
        print(error, file=sys.stderr)
        if not any(folder.iterdir()):  # no peer has left a log to read
            folder.rmdir()
        return 2
    rows = results.get("rows", [])
    systems = [result for key, result in results.items() if key != "rows"]
    if any("failed" in result for result in [*systems, *results.get("real", {}).values(), *rows]):
        return 1  # the folder stays, for its logs
    shutil.rmtree(folder)
    return 0


def with_helpers(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Ours with so many helpers after so many, over what the same volunteers compute alone."""
    setting = replace(_simulated(options), reachable=options.reachable)
    print(f"\n{options.clients} clients and {options.reachable} volunteers who can be reached,", end=" ")
    print(f"{options.network_text}, {options.step_seconds:g} s of work in a global step")
    rate = measure("alone", replace(setting, warm_up=1), folder / "alone").samples_per_second
    rows: list[dict[str, Any]] = []
    for helpers in options.helpers:
        try:
            found = measure("ours", replace(setting, helpers=helpers), folder / f"helpers{helpers}")
        except UserError as error:
            print(f"{helpers} helpers: did not finish: {error}", flush=True)
            rows.append({"helpers": helpers, "failed": str(error)})
            continue
        # What is computed beyond the batch while a round holds everybody up is of no use.
        useful = found.samples_per_second * (1.0 if found.counted is None else min(1.0, found.counted))
        busiest = found.busiest_line_bytes
        rows.append({"helpers": helpers, "efficiency": useful / rate, **asdict(found)})
        told = "n/a" if busiest is None else f"{busiest / 1e6:.1f} MB"
        print(f"{helpers} helpers: efficiency {useful / rate:.3f}, busiest line {told} a step", flush=True)
    return rows


def compare(systems: list[str], setting: Setting, folder: Path, real: bool = False) -> dict[str, Any]:
    """Measure the systems and print a line for each as it is done; the peers alone come first.

    A line has: the efficiency, in all and in the steps with least and most of it; for each volunteer and global step
    the seconds that its device waits, and the longest single wait; the bytes that it sends; its CPU time; how long
    the step takes; how many samples are computed in it over the global batch, and (where the system tells) which share
    of them counted, and what a step held over the global batch: the median, and the most in nine steps of ten.

    :param real: the peers compute: the global batch is what they compute alone in `step_seconds`; and as a machine is
        faster in one minute than in the next, they compute alone, half as long, before and after each system, whose
        efficiency is over the mean of both; their own is over the time before
    """
    print(
        _ROW.format(
            "", "efficiency", "(per step)", "waits", "longest", "sent", "CPU", "step", "batch", "counted", "held"
        )
    )
    by_itself = replace(setting, warm_up=1, steps=max(1, setting.steps // 2))
    alone = measure("alone", by_itself, folder / "alone")
    rate = alone.samples_per_second
    results = {"alone": _report("alone", alone, rate)}
    if real:
        share = setting.microbatch * len(setting.slowness)
        batch = share * max(1, round(rate * setting.step_seconds / share))
        setting = replace(setting, run=setting.run.model_copy(update={"global_batch": batch}))
    for system in systems:
        try:
            measured = measure(system, setting, folder / system)
        except UserError as error:  # the others are worth knowing all the same
            print(f"{system:10} did not finish: {error}", flush=True)
            results[system] = {"failed": str(error)}
            continue
        before = rate
        if real:
            alone = measure("alone", by_itself, folder / f"alone-after-{system}")
            rate = alone.samples_per_second
        results[system] = _report(system, measured, (before + rate) / 2)
        if real:
            results[f"alone after {system}"] = _report("alone", alone, before)
    return results


def _report(name: str, measured: Measured, samples_per_second: float) -> dict[str, Any]:
    """Print the line of one system; efficiency is over so many samples per second."""
    efficiency = measured.samples_per_second / samples_per_second
    each = [rate / samples_per_second for rate in measured.step_samples_per_second]
    row = _ROW.format(
        name,
        f"{efficiency:.3f}",
        f"{min(each):.3f}..{max(each):.3f}",
        f"{measured.device_wait_per_step:.2f} s",
        f"{measured.longest_wait:.2f} s",
        "n/a" if measured.bytes_per_step is None else f"{measured.bytes_per_step / 1e6:.1f} MB",
        f"{measured.cpu_seconds_per_step:.1f} s",
        f"{measured.step_seconds:.1f} s",
        "" if name == "alone" else f"{measured.batches_per_step:.2f}",
        "" if measured.counted is None else f"{measured.counted:.2f}",
        _held(measured.overfull),
    )
    print(row, flush=True)
    if measured.machine_stalls > 0.01 * measured.step_seconds * len(each):
        print(f"{'':10} (this machine stood still for {measured.machine_stalls:.1f} s; repeat when it is less busy)")
    return {"efficiency": efficiency, "efficiency_per_step": each, **asdict(measured)}


def _held(overfull: Sequence[float]) -> str:
    if not overfull:
        return ""
    most = sorted(overfull)[math.ceil(0.9 * len(overfull)) - 1]
    return f"{median(overfull):.2f}..{most:.2f}"


def _simulated(options: argparse.Namespace) -> Setting:
    slowness = [1.0 + 0.5 * k if options.uneven else 1.0 for k in range(options.peers)]
    rate = sum(SAMPLES_PER_MICROBATCH / options.microbatch_seconds / slow for slow in slowness)
    batch = max(1, round(rate * options.step_seconds))
    averaging = tomllib.loads(f"averaging = {{ {options.averaging} }}")
    return Setting(
        run=simulated_run("simulated", int(options.parameters), options.microbatch_seconds, batch, **averaging),
        microbatch=SAMPLES_PER_MICROBATCH,
        step_seconds=options.step_seconds,
        steps=options.steps,
        warm_up=WARM_UP_STEPS,
        slowness=slowness,
        line=options.network,
    )


def _real(options: argparse.Namespace, folder: Path) -> Setting:
    return Setting(
        run=_albert_run(folder / "data"),
        microbatch=REAL_MICROBATCH,
        step_seconds=options.real_step_seconds,
        steps=options.real_steps,
        warm_up=WARM_UP_STEPS,
        slowness=[1.0] * options.real_peers,
        line=None,
        cores=options.cores,
    )


def _albert_run(folder: Path) -> RunConfig:
    """A run of the real task over the English texts that every Python brings along: its help topics."""
    from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer

    texts = list(pydoc_data.topics.topics.values())
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    train_tokenizer(iter(texts), 4096, folder / "tokenizer")
    return parse_run(
        {
            "name": "real",
            "global_batch": 1,
            "task": {
                "name": "watched-albert",
                "tokenizer": str(folder / "tokenizer"),
                "sequence_length": 128,
                "model": REAL_MODEL,
            },
            "data": {"train": [{"dataset": str(folder / "train.jsonl")}]},
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0, "total_steps": 100_000},
        }
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        key: value if isinstance(value, int | float | str | list) else str(value)
        for key, value in vars(options).items()
        if key not in ("json", "network")
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, default=4, help="volunteers with a simulated device; 0 leaves the first table out")
    add("--parameters", type=float, default=18e6, help="of the simulated model")
    add("--network", default="loopback", help="100mbit/60ms (rate and round trip; needs root) or loopback")
    add("--step-seconds", type=float, default=15.0, help="work in a global step, if no device waits")
    add("--microbatch-seconds", type=float, default=1.0, help="of the simulated device")
    add("--steps", type=int, default=3, help="global steps to measure, after two to warm up")
    add("--averaging", default="", help="of the simulated run: 'mode = \"local-steps\", overlap = false', say")
    add("--uneven", action="store_true", help="the peers' simulated devices take 1, 1.5, 2 ... times as long")
    add("--real-peers", type=int, default=2, help="volunteers of the second table; 0 leaves it out")
    add("--real-step-seconds", type=float, default=20.0, help="work in a global step of the second table")
    add("--real-steps", type=int, default=2, help="global steps to measure for the second table")
    add("--cores", type=int, default=2, help="cores to pin the volunteers of the second table to, one each")
    add("--clients", type=int, default=0, help="with --helpers: volunteers whom nobody reaches, in place of --peers")
    add("--reachable", type=int, default=0, help="with --helpers: volunteers whom others reach, besides")
    add("--helpers", type=int, nargs="+", help="ours alone, with so many who lend a line (dedloc join --auxiliary)")
    add("--systems", nargs="+", choices=SYSTEMS[1:], default=list(SYSTEMS[1:]), help="what to compare with alone")
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    read_network(parser, options)
    if options.helpers is not None:
        options.peers, options.real_peers = options.clients + options.reachable, 0
        if options.peers < 1:
            parser.error("--helpers needs --clients or --reachable")
    if min(options.steps, options.real_steps) < 1:
        parser.error("--steps and --real-steps must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
