"""How near do calls of experts come to what volunteers' lines carry?

Trainers and hosts are processes on hosts of the emulated network. What they send, wait for and decide is the package's;
neither computes for long: experts have next to no channels inside, and trainers send again what they have drawn once.
"""

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.lib.expert_calls import CHOSEN, asking, calls_run, drawn, hosting
from benchmarks.lib.forked import Swarm, snapshot
from benchmarks.lib.network import Line, Network, enter
from dedloc_kit.errors import UserError
from dedloc_kit.swarm.experts.asking import RemoteExperts

TRAINERS, HOSTS = 4, 4
WIDTH, HIDDEN, TOKENS = 512, 4, 1024
"""TOKENS are those of a microbatch."""
WARM_SECONDS, SECONDS, START_SECONDS = 10.0, 30.0, 240.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Carried:
    """What went over lines that are all alike.

    :ivar in_flight: microbatches that each trainer has on their way at once; volunteers have one for each device
    :ivar rate: tokens a second there and back, of all trainers together
    :ivar most: how many the busiest line allows: two values of 8 bits for each channel and expert, in each direction
    :ivar busiest: share of its rate that a line sent or received at most, with all that travels beside these
    :ivar failed: experts that did not answer
    :ivar cores: CPU seconds a second of all peers; near the machine's cores, the machine is what is measured
    :ivar load: of the machine, whoever caused it
    """

    in_flight: int
    rate: float
    most: float
    busiest: float
    failed: int
    cores: float
    load: float

    @property
    def share(self) -> float:
        """Of the tokens that the busiest line allows."""
        return self.rate / self.most


class _Board:
    """What processes tell each other at any time; each number is written by one of them."""

    def __init__(self) -> None:
        cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        count = TRAINERS + HOSTS
        self.go, self.ready, self.tokens, self.failed = (cells[at * count : (at + 1) * count] for at in range(4))


def carried(line: Line, in_flight: int) -> Carried:
    """Raises UserError if peers do not come."""
    board, count = _Board(), HOSTS + TRAINERS
    with _peers(line, in_flight, board) as (network, swarm):
        board.go[0] = 1
        time.sleep(WARM_SECONDS)
        before, sent, tokens = snapshot(swarm), network.traffic(), sum(board.tokens)
        time.sleep(SECONDS)
        after, now, went = snapshot(swarm), network.traffic(), sum(board.tokens) - tokens
        seconds = after.at - before.at
        each = line.up_mbit * 1e6 / 8
        passed = [
            max(a.sent - b.sent, a.received - b.received) / seconds / each for a, b in zip(now, sent, strict=True)
        ]
        cpu = sum(after.cpu[slot] - before.cpu[slot] for slot in range(count))
        return Carried(
            in_flight=in_flight,
            rate=went / seconds,
            most=min(TRAINERS, HOSTS) * each / (2 * CHOSEN * WIDTH),
            busiest=max(passed),
            failed=sum(board.failed),
            cores=cpu / seconds,
            load=os.getloadavg()[0],
        )


@contextmanager
def _peers(line: Line, in_flight: int, board: _Board) -> Iterator[tuple[Network, Swarm]]:
    with (
        tempfile.TemporaryDirectory(prefix="dedloc-experts-") as name,
        Network(HOSTS + TRAINERS, line.up_mbit, line.delay_ms) as network,
        Swarm(Path(name) / "peers") as swarm,
    ):
        for slot in range(HOSTS + TRAINERS):
            if slot == HOSTS:  # whose addresses trainers are to know
                _await(lambda: all(board.ready[:HOSTS]), swarm)
            play = partial(_host, slot) if slot < HOSTS else partial(_train, slot, in_flight)
            namespace, address = network.namespace(slot), network.address(slot)
            swarm.fork(slot, lambda *_: _live(namespace, partial(play, address, Path(name), board)))  # noqa: B023
        _await(lambda: all(board.ready), swarm)
        yield network, swarm


def _await(condition: Callable[[], bool], swarm: Swarm) -> None:
    until = time.monotonic() + START_SECONDS
    while not condition():
        troubles = swarm.troubles()
        if troubles or time.monotonic() > until:
            raise UserError(f"hosts and trainers do not find each other: {'; '.join(troubles) or 'nothing came'}")
        time.sleep(POLL_SECONDS)


def _live(namespace: str, play: Callable[[], None]) -> None:
    enter(namespace)
    play()


def _host(slot: int, address: str, folder: Path, board: _Board) -> None:
    with hosting(calls_run(WIDTH, HIDDEN), slot, HOSTS, "8bit", address) as reached:
        (folder / f"host{slot}").write_text(reached)
        board.ready[slot] = 1
        threading.Event().wait()


def _train(slot: int, in_flight: int, address: str, folder: Path, board: _Board) -> None:
    hosts = [(folder / f"host{at}").read_text() for at in range(HOSTS)]
    with asking(calls_run(WIDTH, HIDDEN), hosts, "8bit", address) as experts:
        board.ready[slot] = 1
        while not board.go[0]:
            time.sleep(POLL_SECONDS)
        lock = threading.Lock()
        threads = [
            threading.Thread(target=_send, args=(experts, slot, board, lock), daemon=True) for _ in range(in_flight)
        ]
        for thread in threads:
            thread.start()
        threading.Event().wait()


def _send(experts: RemoteExperts, slot: int, board: _Board, lock: threading.Lock) -> None:
    """Microbatches one after the other, for ever; their gradients count for no step."""
    inputs = drawn(TOKENS, WIDTH)
    while True:
        answers = experts.forward(0, inputs, keep=True)
        back = experts.backward(0, answers.ticket, {cell: inputs[cell] for cell in answers.outputs})
        with lock:
            board.tokens[slot] += TOKENS
            board.failed[slot] += len(inputs) - len(back)
        if not back:
            time.sleep(POLL_SECONDS)
