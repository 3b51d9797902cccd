"""How long a run will take with a given mix of volunteers, before it begins: an estimate, and what it is made of."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.auxiliary_peers import AuxiliaryPeers
from dedloc_kit.errors import UserError
from dedloc_kit.events import Rehearsed
from dedloc_kit.machine.memory_model import gpu_memory_needed
from dedloc_kit.organizer.round_time import STAY, Line, round_time

DAY = 86_400.0
DEFAULT_LINE = 20e6 / 8
"""Bytes per second up and down; an estimate for a home line's slower direction."""
ROUND_SECONDS = 1.0
"""What a round takes beside its bytes, to find the group, begin and take the optimizer step: an estimate
(`benchmarks/prediction.py` tells how good it is)."""
MOST_FOR_NEWCOMERS = 0.5
"""Of the lines of those who average: rounds and newcomers share them alike."""
UPLOADS = 5.0
"""Averages that the coordinator sends to the run's bucket for each step: each of them, and a state whenever they weigh
a quarter of it (`coordinator/publishing/bucket_uploading.py`)."""
COLLABORATING = 0.9
"""Of what a peer computes alone, what is left beside the swarm's own work: an estimate."""

_UNITS = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_LINE = r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)"
_GROUP = re.compile(r"(?:(\d{1,6})\s*x\s*)?(?:(\d{1,2})\s*x\s*)?([a-z]\w*)(?:\s*@([^/]*))?(/open)?", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """A kind of GPU, or a laptop."""

    peak: float
    """Floating point operations per second as NVIDIA's data sheets say, in what the kit computes in there: half
    precision on tensor cores (float32 sums, no sparsity), float32 where there are none."""
    share: float
    """Of that, when a transformer is trained: an estimate."""
    memory: float
    """Bytes."""
    watts: float
    """As the data sheet says."""


LAPTOP = "laptop"
"""No GPU: four cores at 3 GHz with AVX2, of which training takes a third; an estimate."""
_HALF, _FLOAT32 = 0.2, 0.5
"""NVIDIA's own ELECTRA-base at 512 tokens (its DeepLearningExamples; 0.33 TFLOP a sequence by our count) makes 171
sequences a second on an A100, 84 on a V100, 24 there in float32: 18, 22 and 50 % of the peak. What holds for these is
taken for all."""
DEVICES = {
    "p100": Device(9.3e12, _FLOAT32, 16e9, 250),
    "gtx1080ti": Device(11.3e12, _FLOAT32, 11e9, 250),
    "t4": Device(65e12, _HALF, 16e9, 70),
    "v100": Device(125e12, _HALF, 16e9, 300),
    "rtx2080ti": Device(54e12, _HALF, 11e9, 250),
    "rtx3060": Device(25e12, _HALF, 12e9, 170),
    "rtx3090": Device(71e12, _HALF, 24e9, 350),
    "rtx4090": Device(165e12, _HALF, 24e9, 450),
    "l4": Device(121e12, _HALF, 24e9, 72),
    "a10g": Device(70e12, _HALF, 24e9, 150),
    "a100": Device(312e12, _HALF, 40e9, 400),
    "h100": Device(989e12, _HALF, 80e9, 700),
    LAPTOP: Device(384e9, 0.3, 16e9, 45),
}
MAX_AUXILIARY = 1000
HERE = "cpu"
"""Stands for a machine like the one that the rehearsal was on: what it does is measured."""


@dataclass(frozen=True)
class Volunteers:
    """Some of one kind, at work at the same time."""

    count: int
    device: str
    """A key of DEVICES, or HERE."""
    line: float = DEFAULT_LINE
    """Bytes per second in each direction."""
    devices: int = 1
    """In each of their machines."""
    reachable: bool = False
    """Others can connect to them: they add up a share for all. Colab, Kaggle and most homes cannot be reached."""


@dataclass(frozen=True)
class Prediction:
    """Of one global step, in seconds."""

    computing: float
    network: float
    """For the slowest line."""
    matchmaking: float
    """To find each other, open the streams and take the step."""
    vanishing: float
    """For those who vanish in the middle, on average."""
    step: float
    days: float
    """Until the last step, if so many are at work all the time."""
    newcomers: float = 0.0
    """Which part of the lines of those who average gives newcomers the state; none where a bucket does."""

    @property
    def limit(self) -> Literal["computing", "network", "matchmaking"]:
        """What would have to be faster for a shorter step."""
        round_ = self.network + self.matchmaking + self.vanishing
        if self.computing >= round_:
            return "computing"
        return "network" if self.network >= self.matchmaking else "matchmaking"


def read_volunteers(text: str) -> tuple[Volunteers, ...]:
    """Read `20x2xT4@50mbit,5xCPU`: how many, with how many of what (one if it is not said), on which line; `/open`
    behind it for those who can be reached.

    Raises UserError with what is known.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None or not int(match[1] or 1) or not int(match[2] or 1):
            raise UserError(
                f"'{part.strip()}' says no volunteers; write COUNTxDEVICE@LINE, such as 20xT4@50mbit,5xCPU, or "
                "COUNTxGPUSxDEVICE@LINE where each has several GPUs, such as 20x2xT4@50mbit"
            )
        device = match[3].lower()
        if device not in {*DEVICES, HERE}:
            known = ", ".join(["CPU", *map(str.upper, DEVICES)])
            raise UserError(f"nothing is known of the device {match[3]}; take the nearest of: {known}")
        line = read_line(match[4]) if match[4] else DEFAULT_LINE
        groups.append(Volunteers(int(match[1] or 1), device, line, int(match[2] or 1), bool(match[5])))
    return tuple(groups)


def read_auxiliary(text: str) -> tuple[AuxiliaryPeers, ...]:
    """Read `3@1gbit,1@100mbit`: how many, on which line. Raises UserError."""
    auxiliary = []
    for part in filter(None, text.split(",")):
        count, at, line = part.strip().partition("@")
        if not (at and count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_AUXILIARY):
            raise UserError(f"'{part.strip()}' says no auxiliary peers; write COUNT@LINE, such as 3@1gbit")
        auxiliary.append(AuxiliaryPeers(int(count), read_line(line)))
    return tuple(auxiliary)


def read_line(text: str) -> float:
    """Bytes per second of a line such as `50mbit`; raises UserError."""
    match = re.fullmatch(_LINE, text.strip().lower())
    if match is None or not float(match[1]):
        raise UserError(f"'{text}' is no line; write it as 50mbit, 500kbit or 1gbit")
    return float(match[1]) * _UNITS[match[2]]


def volunteers_rate(each: Volunteers, rehearsed: Rehearsed) -> float:
    """Samples a second of one such volunteer, when it is alone."""
    return each.devices * samples_per_second(each.device, rehearsed)


def samples_per_second(device: str, rehearsed: Rehearsed) -> float:
    """How fast one such device goes through the run's samples when it is alone; the rehearsal has a cost."""
    assert rehearsed.cost is not None
    if device == HERE:
        return rehearsed.cost.samples_per_second
    return DEVICES[device].peak * DEVICES[device].share / rehearsed.cost.flops


def fits(device: str, rehearsed: Rehearsed) -> int | None:
    """How many samples at once a GPU's memory holds, in float32; none for this machine, which has tried it."""
    assert rehearsed.cost is not None
    if device == HERE:
        return None
    room = DEVICES[device].memory - gpu_memory_needed(rehearsed.parameters)
    return max(0, int(room / max(1, rehearsed.cost.kept_bytes)))


def predict(
    run: RunConfig,
    rehearsed: Rehearsed,
    volunteers: Sequence[Volunteers],
    coordinator_line: float,
    auxiliary: Sequence[AuxiliaryPeers] = (),
) -> Prediction:
    """The time of a global step with these volunteers at work.

    Where averaging overlaps with computing the longer of the two decides, else they come one after the other (DeDLOC,
    section 3.2). Whoever vanishes is replaced, and who comes downloads the state: from those who average, or from the
    run's bucket, into which the coordinator then puts it.

    :param coordinator_line: bytes per second of the coordinator, which can be reached and computes no samples
    """
    rate = sum(each.count * volunteers_rate(each, rehearsed) for each in volunteers)
    computing = run.global_batch / (COLLABORATING * rate)
    uploads = 0.0 if run.averaging.state_bucket is None else UPLOADS
    members = 1 + sum(each.count for each in volunteers) + sum(each.count for each in auxiliary)
    lines = [Line(each.count, each.line, each.reachable) for each in volunteers]
    # As if it had so many members more.
    lines.append(Line(1, coordinator_line * members / (members + uploads), reachable=True, gives=False))
    lines += [Line(each.count, each.line, reachable=True, gives=False) for each in auxiliary]
    coming = 0.0 if uploads else sum(each.count for each in volunteers) / STAY
    giving = sum(line.count * line.rate for line in lines if line.reachable)
    newcomers = min(MOST_FOR_NEWCOMERS, coming * state_bytes(run, rehearsed.parameters) / giving)
    lines = [replace(line, rate=(1 - newcomers) * line.rate) if line.reachable else line for line in lines]
    averaging = round_time(lines, rehearsed.gradient_bytes, rehearsed.average_bytes)
    matchmaking = ROUND_SECONDS + averaging.streams
    whole = averaging.network + matchmaking + averaging.vanishing
    step = max(computing, whole) if run.averaging.overlap else computing + whole
    days = step * run.optimizer.total_steps / DAY
    return Prediction(computing, averaging.network, matchmaking, averaging.vanishing, step, days, newcomers)


def state_bytes(run: RunConfig, parameters: int) -> float:
    """Of what a newcomer downloads: the parameters, and what the optimizer of global steps remembers."""
    if run.averaging.mode == "local-steps" or run.optimizer.name == "lars":
        return 8.0 * parameters
    return (6.0 if run.optimizer.state_dtype == "8bit" else 12.0) * parameters
