"""What the experts of a run take of those who host them, and of all lines: an estimate."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.human import count, rate, size
from dedloc_kit.errors import UserError
from dedloc_kit.machine.memory_model import FIXED_BYTES, HOST_BYTES_PER_PARAMETER
from dedloc_kit.organizer.pipeline import VALUE_BYTES
from dedloc_kit.organizer.prediction import Volunteers, read_line
from dedloc_kit.organizer.round_time import SHARE_OF_LINE

ORGANIZER_BYTES = 28
"""On the disk, for each of an expert's parameters, beside checkpoints. Of one that is held: itself, two moments, a
gradient, and the copy that becomes a checkpoint; of others' the newest copy, and the file for a later process."""
COPIES = 2
"""Of each expert, on different machines: its keeper's and its stand-in's."""
_GROUP = re.compile(r"(?:(\d{1,6})x)?(\d+(?:\.\d+)?)gb@(\w+(?:\.\w+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Hosts:
    """Some of one kind.

    :ivar memory: bytes of each that it gives
    :ivar line: bytes a second in each direction
    """

    number: int
    memory: float
    line: float


@dataclass(frozen=True)
class ExpertCosts:
    """:ivar cells: of all layers, an expert in each
    :ivar parameters: of an expert
    :ivar token_bytes: that a token costs, in each direction, on the line of who trains and on those of hosts together
    """

    cells: int
    parameters: int
    token_bytes: float

    @classmethod
    def of(cls, run: RunConfig) -> "ExpertCosts":
        """Inputs and gradients of outputs go to hosts, outputs and gradients of inputs come back."""
        settings, (rows, columns) = _settings(run), _settings(run).grid
        value = VALUE_BYTES.get(run.averaging.compression, VALUE_BYTES["8bit"])
        token = 2 * len(settings.layers) * settings.top_k * settings.width * value
        return cls(len(settings.layers) * rows * columns, 3 * settings.width * settings.hidden, token)

    def held_by(self, hosts: Hosts) -> int:
        """Experts that each of these has the memory for."""
        return max(0, int((hosts.memory - FIXED_BYTES) / (HOST_BYTES_PER_PARAMETER * self.parameters)))

    def copies(self, hosts: Sequence[Hosts]) -> int:
        """How many cells have so many copies, one on a machine: 0 if not even one of each has a place."""
        most = [(each.number, self.held_by(each)) for each in hosts]
        # A machine holds a cell once, so for n copies of all it counts for `cells` places at most.
        places = sum(number * min(held, self.cells) for number, held in most)
        return min(COPIES, places // self.cells, sum(number for number, held in most if held))


def read_hosts(text: str) -> tuple[Hosts, ...]:
    """Read `10x8GB@50mbit,2x24GB@1gbit`: how many, with how much memory to give, on which line. Raises UserError."""
    hosts = []
    for part in filter(None, text.split(",")):
        match = _GROUP.fullmatch(part.strip())
        if match is None or not int(match[1] or 1):
            raise UserError(f"'{part.strip()}' says no hosts; write COUNTxMEMORY@LINE, such as 10x8GB@50mbit")
        hosts.append(Hosts(int(match[1] or 1), float(match[2]) * 1e9, read_line(match[3])))
    return tuple(hosts)


def describe_experts(run: RunConfig, trunk: int) -> list[str]:
    """What they take, in lines.

    :param trunk: parameters of the rest of the model
    """
    costs = ExpertCosts.of(run)
    experts = costs.cells * costs.parameters
    return [
        f"experts       {count(costs.cells, 'network')} of {experts / 1e6:,.1f} million parameters in all beside the "
        f"model, {(experts + trunk) / 1e6:,.1f} million with it; a token uses "
        f"{(trunk + len(_settings(run).layers) * _settings(run).top_k * costs.parameters) / 1e6:,.1f} million",
        f"an expert     {size(HOST_BYTES_PER_PARAMETER * costs.parameters)} of a host's memory, on {COPIES} hosts; the "
        f"organizer's machine holds what they do not: up to {size(ORGANIZER_BYTES * experts)} on its disk",
        f"a token       {size(costs.token_bytes)} up and as much down on the line of who trains, and on those of hosts",
    ]


def describe_hosts(
    run: RunConfig, hosts: Sequence[Hosts], volunteers: Sequence[Volunteers], coordinator_line: float
) -> list[str]:
    """Whether these hosts hold all experts twice, and how many tokens all lines carry, in lines.

    :param hosts: if there are none the coordinator answers for all experts
    :param coordinator_line: bytes a second of the coordinator
    """
    costs = ExpertCosts.of(run)
    trainers = sum(each.count * each.line for each in volunteers)
    answering = sum(each.number * each.line for each in hosts) if hosts else coordinator_line
    of_trainers, of_hosts = (SHARE_OF_LINE * line / costs.token_bytes for line in (trainers, answering))
    slowest = "hosts" if of_hosts < of_trainers else "those who train"
    lines = [
        f"lines         of those who train carry {rate(of_trainers)} tokens/s to experts and back, of "
        f"{'hosts' if hosts else 'the organizer, who answers for all,'} {rate(of_hosts)}: "
        f"{rate(min(of_trainers, of_hosts))} at most" + (f", limited by {slowest}" if hosts else "")
    ]
    if isinstance(length := run.task.options.get("sequence_length"), int):
        seconds = run.global_batch * length / min(of_trainers, of_hosts)
        lines.append(
            f"              so a global step of {run.global_batch * length:,} tokens takes {seconds:,.0f} s or more"
        )
    return [_places(costs, hosts), *lines] if hosts else lines


def _places(costs: ExpertCosts, hosts: Sequence[Hosts]) -> str:
    places = sum(each.number * costs.held_by(each) for each in hosts)
    machines = count(sum(each.number for each in hosts), "machine")
    told = f"hosts         {machines} with room for {count(places, 'expert')}: "
    match costs.copies(hosts):
        case 0:
            return told + f"too few for {costs.cells:,} cells; more hosts are needed, or more memory of each"
        case 1:
            return (
                told + f"each of {costs.cells:,} cells has a host, but not all have the second that takes over for it"
            )
    return told + f"each of {costs.cells:,} cells has two, on different machines"


def _settings(run: RunConfig) -> ExpertsConfig:
    assert run.experts is not None
    return run.experts
