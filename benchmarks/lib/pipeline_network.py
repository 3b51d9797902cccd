"""Peers of pipelines on hosts of an emulated network, for as many global steps as are to be measured."""

import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Self

from benchmarks.lib.best_pipeline import LENGTH, StagePeer, shares
from benchmarks.lib.counted import Added, Counts, count
from benchmarks.lib.forked import Swarm, snapshot
from benchmarks.lib.network import Line, Network
from benchmarks.lib.simulated_stage import NOBODY, Board, Place, play
from benchmarks.lib.task import simulated_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError

START_SECONDS, STALL_SECONDS = 240.0, 240.0
"""By then a peer has joined, or a step is done, or they never will."""
DEATH_SECONDS, AWAY_SECONDS = 60.0, 20.0
"""Between two deaths, and from one until another peer comes."""
CLOSED_SECONDS = 10.0
"""After one stage of a fixed pipeline has taken a step the others have had what there is of it: its only driver may
have died in the middle, and its stage peers, which drive nothing, could not tell."""
POLL_SECONDS = 0.02
GPIPE_IN_FLIGHT = 8
"""Microbatches of a fixed pipeline on their way: more would only wait."""


@dataclass(frozen=True)
class Setting:
    """What is measured.

    :ivar fixed: whether each chain is a pipeline by itself, and a step ends for all at once
    :ivar steps: that are measured, after one that warms up
    :ivar dying: whether a peer dies every DEATH_SECONDS of the measured time
    """

    peers: tuple[StagePeer, ...]
    batch: int
    delay_ms: float
    steps: int
    fixed: bool = False
    dying: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """What it gave.

    :ivar whole: microbatches of all measured steps
    :ivar rates: microbatches a second in each measured step
    :ivar rate: over all measured steps
    :ivar again: calls that were made again for dead peers
    :ivar sent: bytes of each host's line, for each microbatch
    :ivar busy: share of the time in which devices computed, of those who lived
    :ivar cores: CPU seconds a second of all peers; near the machine's cores, the machine is what is measured
    :ivar load: of the machine, in the mean, whoever caused it
    """

    whole: int
    rates: list[float]
    rate: float
    counts: Counts
    again: int
    deaths: int
    sent: list[float]
    busy: float
    cores: float
    load: float
    troubles: dict[str, int] = field(default_factory=dict)


@dataclass
class _Living:
    """A peer's process."""

    slot: int
    host: int
    peer: StagePeer
    name: str = ""
    addresses: tuple[str, ...] = ()
    online: float = 0.0
    """From when on it takes part, if it does not yet."""


class Pipelines:
    """All peers of a setting; a context manager that leaves nothing behind."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting, self._board, self._folder = setting, Board(), folder
        self._chance = random.Random(setting.seed)
        self._stages = 1 + max(peer.stage for peer in setting.peers)
        self._runs = _runs(setting, self._stages)
        self._living: list[_Living] = []
        self._chains: list[int] = []  # by slot
        self._taken: dict[tuple[int, int, int], float] = {}  # chain, stage and step: when the step was taken
        self._died: dict[int, float] = {}
        self._first: dict[int, _Living] = {}  # of each chain

    def __enter__(self) -> Self:
        lines = {
            host: Line(peer.mbit, peer.mbit, self._setting.delay_ms) for host, peer in enumerate(self._setting.peers)
        }
        self._network = Network(len(lines), lines=lines)
        self._network.__enter__()
        try:
            self._swarm = Swarm(self._folder)
            for host in sorted(lines, key=lambda host: self._setting.peers[host].client_mode):
                self._start(host, 0)
            for each in self._living:
                self._joined(each)
                self._board.put(each.slot, Board.GO, 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._swarm.__exit__()
        finally:
            self._network.__exit__()

    def measure(self) -> Measured:
        """Raises UserError if a step takes for ever."""
        setting = self._setting
        ends, deaths, loads = [self._until(1)], 0, list[float]()
        before, sent, busy = snapshot(self._swarm), self._network.traffic(), self._busy()
        began = time.monotonic()
        while len(ends) <= setting.steps:
            due = began + (deaths + 1) * DEATH_SECONDS if setting.dying else float("inf")
            ended = self._until(1 + len(ends), due)
            if ended is not None:
                ends.append(ended)
            else:
                self._kill()
                deaths += 1
            loads.append(os.getloadavg()[0])
        after, seconds = snapshot(self._swarm), time.monotonic() - began
        whole = setting.steps * setting.batch
        traffic = [(now.sent - then.sent) / whole for now, then in zip(self._network.traffic(), sent, strict=True)]
        shared = [(self._busy()[slot] - busy[slot]) / seconds for slot in busy if slot not in self._died]
        cpu = [after.cpu[slot] - before.cpu.get(slot, 0.0) for slot in after.cpu if slot not in self._died]
        moments = [end for end in ends if end is not None]
        counts = count(self._counted(), self._stages, {each.name for each in self._living})
        return Measured(
            whole=whole,
            rates=[setting.batch / (end - begin) for begin, end in pairwise(moments)],
            rate=whole / (moments[-1] - moments[0]),
            counts=counts,
            again=sum(self._board.get(each.slot, Board.AGAIN) for each in self._living),
            deaths=deaths,
            sent=traffic,
            busy=statistics.fmean(shared),
            cores=sum(cpu) / seconds,
            load=statistics.fmean(loads),
            troubles=self._swarm.troubles(),
        )

    # Peers

    def _start(self, host: int, step: int) -> _Living:
        peer, slot = self._setting.peers[host], len(self._chains)
        self._chains.append(peer.chain)
        first = self._first.get(peer.chain)
        if first is not None and not first.name:
            self._joined(first)
        new = _Living(slot, host, peer)
        self._first.setdefault(peer.chain, new)
        known = [each for each in self._living if each.peer.chain == peer.chain and each.addresses]
        self._board.put(slot, Board.STEP, step)
        self._living.append(new)
        place = Place(
            slot=slot,
            run=self._runs[peer.chain],
            stage=peer.stage,
            seconds=peer.seconds,
            namespace=self._network.namespace(host),
            host=self._network.address(host),
            client_mode=peer.client_mode,
            addresses=tuple(address for each in known for address in each.addresses[:1]),
            organizer=first.name if first else None,
            in_flight=(0 if peer.stage else GPIPE_IN_FLIGHT) if self._setting.fixed else None,
        )
        board, folder = self._board, self._folder
        self._swarm.fork(slot, lambda emit, stop: play(place, board, folder, emit))
        return new

    def _joined(self, each: _Living) -> None:
        found = self._swarm.wait_for("joined", 1, time.monotonic() + START_SECONDS, each.slot)
        if not found or found[0]["event"] != "joined":
            raise UserError(f"a peer did not join; its log is {self._folder}/peer{each.slot}.log")
        each.name, each.addresses = found[0]["peer"], tuple(found[0]["addresses"])

    def _kill(self) -> None:
        """One peer dies, which no chance may make the only one of its stage; another one comes soon after."""
        there = Counter((each.peer.chain, each.peer.stage) for each in self._living if not each.online)
        least = 1 if self._setting.fixed else 2
        may = [e for e in self._living if not e.online and there[e.peer.chain, e.peer.stage] >= least]
        victim = self._chance.choice(sorted(may, key=lambda each: each.host))
        os.killpg(self._swarm.pids[victim.slot], 9)
        self._died[victim.slot] = time.monotonic()
        self._living.remove(victim)
        new = self._start(victim.host, self._step(victim.peer.chain, victim.peer.stage))
        new.online = self._died[victim.slot] + AWAY_SECONDS

    # Global steps

    def _until(self, step: int, due: float = float("inf")) -> float | None:
        """When all stages have taken this step; None if `due` comes before that."""
        patience = time.monotonic() + STALL_SECONDS + self._setting.batch
        while any(self._step(chain, stage) < step for chain in self._runs for stage in range(self._stages)):
            now = time.monotonic()
            if now >= due:
                return None
            if now > patience:
                raise UserError(f"step {step} does not end; the peers' logs are in {self._folder}")
            self._look(now)
            time.sleep(POLL_SECONDS)
        return max(self._taken[chain, stage, step] for chain in self._runs for stage in range(self._stages))

    def _look(self, now: float) -> None:
        for each in self._living:
            if each.online and now >= each.online:
                self._board.put(each.slot, Board.STEP, self._step(each.peer.chain, each.peer.stage))
                self._board.put(each.slot, Board.GO, 1)
                each.online = 0.0
        for stage in range(self._stages):
            if all(self._full(chain, stage) for chain in self._runs):
                for chain in self._runs:
                    self._take(chain, stage, now)

    def _full(self, chain: int, stage: int) -> bool:
        step, slots = self._step(chain, stage), self._of(chain, stage)
        wanted = max((self._board.samples(slot, Board.WANTED, step) for slot in slots), default=0)
        if self._setting.fixed and time.monotonic() > CLOSED_SECONDS + self._first_taken(chain, step + 1):
            return True
        return 0 < wanted <= sum(self._board.samples(slot, Board.ADDED, step) for slot in slots)

    def _first_taken(self, chain: int, step: int) -> float:
        return min((at for (c, _, taken), at in self._taken.items() if (c, taken) == (chain, step)), default=math.inf)

    def _take(self, chain: int, stage: int, now: float) -> None:
        step = self._step(chain, stage) + 1
        self._taken[chain, stage, step] = now
        for slot in self._of(chain, stage):
            self._board.put(slot, Board.STEP, step)

    def _of(self, chain: int, stage: int) -> list[int]:
        return [each.slot for each in self._living if (each.peer.chain, each.peer.stage) == (chain, stage)]

    def _step(self, chain: int, stage: int) -> int:
        return max((step for c, s, step in self._taken if (c, s) == (chain, stage)), default=0)

    def _busy(self) -> Mapping[int, float]:
        return {each.slot: self._board.get(each.slot, Board.BUSY) / 1000 for each in self._living}

    def _counted(self) -> Iterator[Added]:
        """What counts in steps that all stages have taken; of a dead peer only what its stage had taken before."""
        lines = [line.split() for line in (self._folder / "added").read_text().splitlines()]
        anew = {(slot, step): at for at, (slot, _, step, driver, _) in enumerate(lines) if driver == NOBODY}
        for at, (slot, stage, step, driver, number) in enumerate(lines):
            if at <= anew.get((slot, step), -1):
                continue
            chain, after = self._chains[int(slot)], int(step) + 1
            over = all((chain, each, after) in self._taken for each in range(self._stages))
            if over and self._taken[chain, int(stage), after] < self._died.get(int(slot), float("inf")):
                yield Added(int(step), int(stage), driver, int(number))


def _runs(setting: Setting, stages: int) -> dict[int, RunConfig]:
    """Of each chain; all are one without chains."""
    batches = shares(setting.peers, setting.batch) if setting.fixed else [setting.batch]
    pipeline = {"stages": stages, "microbatch_tokens": LENGTH}
    return {
        chain: simulated_run(f"pipeline-{chain}", 1, 0.0, batch, pipeline=pipeline, averaging={"overlap": False})
        for chain, batch in enumerate(batches)
    }


def run(setting: Setting, folder: Path) -> Measured:
    """Measure it; without chains all peers are in one. Raises UserError."""
    if not setting.fixed:
        setting = replace(setting, peers=tuple(replace(peer, chain=0) for peer in setting.peers))
    with Pipelines(setting, folder) as pipelines:
        return pipelines.measure()
