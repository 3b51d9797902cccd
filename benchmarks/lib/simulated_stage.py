"""A peer of a pipeline with a simulated device: what it sends, waits for and decides is real, what it computes is not.

Hidden states are of real size, and the device takes its time without the CPU. Two things are left out: a stage's
all-reduce, and a newcomer's download. A stage goes on to the next global step as soon as its peers have all of the
batch, as the benchmark sees on a board that all processes share.
"""

import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib.best_pipeline import LENGTH, ROWS, WIDTH
from benchmarks.lib.network import enter
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.events import AnyEvent, Joined
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.pipeline import member as members
from dedloc_kit.swarm.pipeline.computing import Computed, Given, StageComputer
from dedloc_kit.swarm.pipeline.protocol import Batch

FORWARD = 0.25
"""A forward pass's share of the time: the backward call computes it again, and then twice as much."""
LOOK_SECONDS, TURN_SECONDS = 0.02, 0.05
SLOTS = 128
_SAMPLES = 2**32


class Board:
    """What peers and the benchmark tell each other at any time; each number is written by one process."""

    STEP, GO, ADDED, WANTED, AGAIN, BUSY = range(6)
    """The benchmark says the first two: which step the peer holds, and whether it takes part. `BUSY` is in ms."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, SLOTS * 64)).cast("q")

    def get(self, slot: int, what: int) -> int:
        return self._cells[8 * slot + what]

    def put(self, slot: int, what: int, value: int) -> None:
        self._cells[8 * slot + what] = value

    def put_samples(self, slot: int, what: int, step: int, samples: int) -> None:
        """`ADDED` or `WANTED`, of this step."""
        self.put(slot, what, step * _SAMPLES + samples)

    def samples(self, slot: int, what: int, step: int) -> int:
        """0 if the peer has told it of another step."""
        of, samples = divmod(self.get(slot, what), _SAMPLES)
        return samples if of == step else 0


@dataclass(frozen=True)
class Place:
    """Of one peer.

    :ivar namespace: a file that stands for its host's network
    :ivar seconds: of its device for a microbatch
    :ivar organizer: the first peer's id; none if it is this one
    :ivar in_flight: microbatches at once; None for as many as the product takes, 0 for a peer that drives none
    """

    slot: int
    run: RunConfig
    stage: int
    seconds: float
    namespace: str
    host: str
    client_mode: bool
    addresses: tuple[str, ...]
    organizer: str | None
    in_flight: int | None


class SimulatedStage:
    """One parameter vector that is added to the hidden states."""

    width = WIDTH

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.takes = ("input_ids",) * (number == 0) + ("labels",) * (number == count - 1)

    def check(self, batch: Any) -> None:
        pass

    def forward(self, model: Any, hidden: Tensor | None, batch: Any) -> Tensor:
        if hidden is None:
            hidden = torch.zeros(ROWS, LENGTH, WIDTH)
        hidden = hidden + model.weight
        return hidden.square().mean() if self.number == self.count - 1 else hidden


NOBODY = "-"
"""In place of a driver."""


class _Model(nn.Module):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, generator=torch.Generator().manual_seed(stage)))


class _Gradients:
    """They are dropped: nothing is averaged, and no step changes the model."""

    closed = False
    sketch: tuple[float, ...] = ()  # nothing to compare

    def __init__(self, board: Board, slot: int, model: nn.Module) -> None:
        self._board, self._slot, self._model = board, slot, model
        self.taken = (0, 0)  # the step, and samples for the next one

    @property
    def step(self) -> int:
        return self._board.get(self._slot, Board.STEP)

    def accumulate(self, loss: float, samples: int) -> bool:
        for parameter in self._model.parameters():
            parameter.grad = None
        before, step = self.taken, self.step
        self.taken = step, samples + before[1] * (before[0] == step)
        return True

    def forget(self) -> bool:
        self.taken = self.step, 0
        return True


class SimulatedComputer(StageComputer):
    """Takes as long as the place says for each microbatch.

    :param added: told of each microbatch that is added: step, driver and number; NOBODY's: all that was is dropped
    """

    def __init__(self, place: Place, board: Board, added: Callable[[int, str, int], None]) -> None:
        assert place.run.pipeline is not None
        self._place, self._board, self._tell = place, board, added
        self._real = 0.0  # what little the last call computed takes off the next one's time
        model = _Model(place.stage)
        self.gradients = _Gradients(board, place.slot, model)
        stage = SimulatedStage(place.stage, place.run.pipeline.count)
        super().__init__(stage, model, self.gradients, most=MAX_BATCHES * place.run.global_batch)

    def begin_anew(self) -> None:
        super().begin_anew()
        self._tell(self.step, NOBODY, 0)

    def compute(self, given: Given) -> Computed:
        began, served, call = time.perf_counter(), self.served, given.call
        last = self.stage.number == self.stage.count - 1  # which gets no forward call
        share = FORWARD if call.what == "forward" else 1 - FORWARD * (not last)
        time.sleep(max(0.0, share * self._place.seconds - self._real))
        arithmetic = time.perf_counter()
        computed = super().compute(given)
        ended = time.perf_counter()
        self._real = ended - arithmetic
        if self.served > served:
            self._tell(call.step, given.driver, call.number)
        busy = self._board.get(self._place.slot, Board.BUSY) + round(1000 * (ended - began))
        self._board.put(self._place.slot, Board.BUSY, busy)
        return computed._replace(seconds=ended - began)


def play(place: Place, board: Board, folder: Path, emit: Callable[[AnyEvent], None]) -> None:
    """Live as this peer, in a process of its own that has no other thread which needs the network; never returns."""
    enter(place.namespace)
    torch.set_num_threads(1)
    run, slot = place.run, place.slot
    settings = PeerConfig(folder=folder / f"peer{slot}", name=f"peer{slot}", swarm_host=place.host)
    settings = settings.model_copy(update={"client_mode": place.client_mode})
    entry = Entry(run, settings, place.addresses, place.organizer)
    node = entry.start(entry.surroundings())
    profile = Profile(
        session=secrets.token_hex(8),
        name=settings.name,
        team="",
        device="simulated",
        follower=False,
        client_mode=place.client_mode,
        addresses=addresses_of(node),
        reached="",
        listed=False,
    )
    log = os.open(folder / "added", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def added(step: int, driver: str, number: int) -> None:
        os.write(log, f"{slot} {place.stage} {step} {driver} {number}\n".encode())

    held = SimulatedComputer(place, board, added)
    assert run.pipeline is not None
    stages = [SimulatedStage(number, run.pipeline.count) for number in range(run.pipeline.count)]
    if place.in_flight:
        members.BESIDE = place.in_flight - len(stages)
    member = members.PipelineMember(*(run, node, entry.signer, profile, place.addresses, stages, held), pinned=True)
    with member.serving():
        emit(
            Joined(
                run_id=run.run_id,
                peer=entry.signer.peer,
                session=profile.session,
                addresses=profile.addresses,
                step=held.step,
                device=profile.device,
                parameters=WIDTH,
            )
        )
        threading.Thread(target=_tell, args=(place, board, member, held), daemon=True).start()
        while not board.get(slot, Board.GO):
            time.sleep(LOOK_SECONDS)
        member.say("online")
        if place.in_flight == 0:
            _serve(member)
        with member.driving(_next_batch, folder):
            _serve(member)


def _serve(member: members.PipelineMember) -> None:
    while True:
        member.turns.take(TURN_SECONDS)


def _tell(place: Place, board: Board, member: members.PipelineMember, held: SimulatedComputer) -> None:
    """All the time, also while the device computes."""
    while True:
        step, wanted = held.step, member.wanted()
        if wanted < _SAMPLES and step == held.step:
            board.put_samples(place.slot, Board.WANTED, step, int(wanted))
        step, samples = held.gradients.taken
        board.put_samples(place.slot, Board.ADDED, step, max(0, samples - member.beside()))
        driver = member._driver
        board.put(place.slot, Board.AGAIN, 0 if driver is None else driver.again)
        time.sleep(LOOK_SECONDS)


def _next_batch() -> Batch:
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids}
