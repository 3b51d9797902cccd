"""Does a swarm train a model of which no process may hold more than a quarter?

A coordinator, hosts and a trainer, real processes on loopback. A swarm of the same kind with next to no parameters
comes first: what each of its processes takes is that of the interpreter, torch and hivemind. With the large model each
may take a quarter of the whole state more: `RLIMIT_DATA` ends whatever asks for more (private memory, written to or
not). The whole state is counted as of one machine that would train alone: weights, gradients and two moments, 16 bytes
for each parameter. Hosts offer half of what their limit leaves free, which is room for a twentieth of the experts: they
keep that, and the coordinator the rest, and copies, on its disk.
"""

import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.mixed_task import mixed_run
from benchmarks.lib.peers import Event, Peer, start_coordinator, start_volunteer
from benchmarks.lib.pipeline_memory import Watch
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.experts.bank import names_of
from dedloc_kit.records.invitation import Invitation

STATE_BYTES, PARTS = 16, 4
"""Of a parameter, where one machine holds all; into how many parts no process may hold more than one of."""
EACH, HELD = 6, 20
"""Experts for each host, and into how many parts a host has room for one of: 40 bytes for each parameter in half of
what it may take."""
HIDDEN = 2
"""Channels inside an expert, over its width."""
MICROBATCH, BATCH_MICROBATCHES = 4, 8
SMALL_SECONDS, SECONDS = 1.0, 10.0
"""Of a microbatch beside its calls. Hosts train as well, and what the experts compute for one takes half a second of a
core: those that do not rest leave two cores no time to answer."""
RATE = 0.02
SMALL_STEPS = 2
START_SECONDS, STEP_SECONDS, LEAVE_SECONDS = 600.0, 300.0, 120.0
_POLL_SECONDS = 0.5
_LINES = 30
"""Of the log of a peer that has ended badly, which goes with the folder."""
_TRAINER, _COORDINATOR, _AGAIN, _HOST = "trainer", "coordinator", "coordinator, again", "host 0"


@dataclass(frozen=True)
class Memory:
    """What a peer took at most in one of its processes, in bytes.

    :ivar limit: RLIMIT_DATA of each; none if there was none
    :ivar beyond: of its own (no pages of files), beyond one with next to no parameters
    :ivar own: the same in all
    :ivar high: VmHWM, with the pages of files, which the machine takes back when it needs room
    :ivar data: VmData, to which the limit applies
    """

    peer: str
    limit: int | None
    beyond: int
    own: int
    high: int
    data: int


@dataclass(frozen=True)
class Divided:
    """:ivar state: bytes of the whole state
    :ivar share: that a process may take, beyond one with next to no parameters
    :ivar held_out: loss by global step
    """

    parameters: int
    state: int
    share: int
    peers: list[Memory]
    held_out: dict[int, float]

    @property
    def most(self) -> Memory:
        """Who took most."""
        return max(self.peers, key=lambda each: each.beyond)


def divided(hosts: int, width: int, steps: int) -> Divided:
    """Raises UserError."""
    run = _run(hosts, width, HIDDEN * width, SECONDS)
    assert run.experts is not None
    parameters = 3 * run.experts.width * run.experts.hidden * len(names_of(run.experts))
    state = STATE_BYTES * parameters
    share = state // PARTS
    with tempfile.TemporaryDirectory(prefix="dedloc-experts-") as name:
        small = _Swarm(_run(hosts, 8, 8, SMALL_SECONDS), SMALL_STEPS, Path(name) / "small", {})
        with small:
            small.start(1, EACH * hosts)
            small.train()
        limits = {kind: max(small.watch.data[kind].values()) + share for kind in (_COORDINATOR, _TRAINER, _HOST)}
        large = _Swarm(run, steps, Path(name) / "large", limits)
        with large:
            large.start(hosts, EACH * hosts - hosts * (EACH * hosts // HELD))
            large.train()
            large.resume()
        watch = large.watch
        rows = [
            Memory(
                peer=peer,
                limit=large.limit(peer),
                beyond=max(own.values()) - max(small.watch.own[_kind(peer)].values()),
                own=max(own.values()),
                high=max(watch.high[peer].values()),
                data=max(watch.data[peer].values()),
            )
            for peer, own in watch.own.items()
        ]
        return Divided(parameters, state, share, rows, large.held_out)


def _run(hosts: int, width: int, hidden: int, seconds: float) -> RunConfig:
    return mixed_run(
        *(seconds, BATCH_MICROBATCHES * MICROBATCH, (EACH, hosts), width, hidden),
        optimizer={"learning_rate": RATE, "warmup_steps": 0, "total_steps": 1000},
    )


def _kind(peer: str) -> str:
    return {_AGAIN: _COORDINATOR}.get(peer, _HOST if peer.startswith("host") else peer)


class _Swarm(ExitStack):
    """:param steps: that it takes; the last one is measured, and there is a checkpoint of it
    :param limits: of each kind of peer, in bytes
    :ivar held_out: loss by global step, as the coordinator measures it
    """

    def __init__(self, run: RunConfig, steps: int, folder: Path, limits: Mapping[str, int]) -> None:
        super().__init__()
        self._run, self._steps, self._folder, self._limits = run, steps, folder, limits
        self._go = folder / "go"
        self._settings: dict[str, Any] = {"task_module": "benchmarks.lib.mixed_task"}
        self._volunteers: list[Peer] = []
        self._peers: list[Peer] = []
        self.watch = Watch()
        self.held_out: dict[int, float] = {}

    def __exit__(self, *error: Any) -> bool | None:
        for peer in self._peers:
            if not peer.running and (code := peer.wait()):
                lines = peer.log.read_text(errors="replace").splitlines()[-_LINES:]
                print(f"{peer.name} ended with {code}:", *lines, sep="\n", file=sys.stderr)
        return super().__exit__(*error)

    def limit(self, peer: str) -> int | None:
        return None if peer == _AGAIN else self._limits.get(_kind(peer))

    def start(self, hosts: int, left: int) -> None:
        """All of them; they have their experts then, and begin to train when they are told.

        :param left: experts that the coordinator keeps
        """
        assert self._run.experts is not None
        self._coordinator = self._coordinate(_COORDINATOR)
        self.watch.start()
        self.callback(self.watch.end)
        addresses = tuple(self._coordinator.wait_for("joined", deadline=START_SECONDS)["addresses"])
        invitation = Invitation.of(self._run, addresses)
        for name in [*(f"host {number}" for number in range(hosts)), _TRAINER]:
            peer = start_volunteer(
                *(invitation, self._folder, name),
                prefix=self._within(name),
                environment={"BENCH_START": str(self._go)},
                microbatch=MICROBATCH,
                host_experts=name != _TRAINER,
                **self._settings,
            )
            self._volunteers.append(self.enter_context(peer))
            self._peers.append(peer)
            self.watch.add(peer)
        for peer in self._volunteers:
            peer.wait_for("joined", deadline=START_SECONDS)

        def given(event: Event) -> bool:
            return bool(event["kept"] <= left and not event["copies"])

        self._coordinator.wait_for("hosted", given, START_SECONDS)

    def train(self) -> None:
        """Until all is done; then they leave."""
        self._go.touch()
        self._coordinator.wait_for_step(self._steps, self._steps * STEP_SECONDS)
        self._hear(self._coordinator)
        checkpoint = self._folder / _COORDINATOR / "checkpoints" / f"step-{self._steps:08d}.safetensors"
        until = time.monotonic() + STEP_SECONDS
        while not checkpoint.exists():
            if time.monotonic() > until:
                raise UserError(f"there is no {checkpoint.name}; the log is {self._coordinator.log}")
            time.sleep(_POLL_SECONDS)
        for peer in [*self._volunteers, self._coordinator]:
            peer.leave()
        for peer in [*self._volunteers, self._coordinator]:
            if peer.wait(LEAVE_SECONDS):
                raise UserError(f"{peer.name} did not end well; its log is {peer.log}")

    def resume(self) -> None:
        """A coordinator alone goes on from the checkpoint, and measures it: raises UserError if that is another."""
        again = self._coordinate(_AGAIN)
        before, after = self.held_out[self._steps], self._hear(again)
        if not math.isclose(before, after, rel_tol=1e-5):
            raise UserError(f"the held-out loss was {before}, and after a new start {after}")
        again.leave()
        again.wait(LEAVE_SECONDS)

    def _coordinate(self, name: str) -> Peer:
        # Volunteers go on when it has taken its last step, so hosts do not leave.
        often: dict[str, Any] = {"checkpoint_every": 1000, "evaluate_every": 1000, "until_step": self._steps}
        peer = start_coordinator(self._run, self._folder, prefix=self._within(name), **self._settings, **often)
        peer.name = name
        self.watch.add(self.enter_context(peer))
        self._peers.append(peer)
        return peer

    def _hear(self, coordinator: Peer) -> float:
        """The held-out loss of the last step."""
        last = coordinator.wait_for("evaluated", lambda event: event["step"] == self._steps, STEP_SECONDS)
        told = [event for event in coordinator.events if event["event"] == "evaluated"]
        self.held_out |= {event["step"]: event["loss"] for event in told}
        return float(last["loss"])

    def _within(self, name: str) -> Sequence[str]:
        if (limit := self.limit(name)) is None:
            return ()
        return ("sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limit // 1024))
