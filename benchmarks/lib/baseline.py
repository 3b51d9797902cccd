"""What ours is compared with, as processes that read a job and write events: see `benchmarks.lib.peers.Peer`.

`hivemind` is hivemind.Optimizer as hivemind's own ALBERT example sets it up (examples/albert of hivemind 1.1:
both delays, offloaded optimizer, float16 for gradients and state, its tracker and matchmaking times; what it leaves
to hivemind's defaults is left to them here). `welcome` is the DHT node that its peers join through. `alone` trains
without anyone: the same loop, and one optimizer step after each share of the global batch.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import Queue
from typing import IO, Any

import hivemind
import torch
from hivemind.compression import Float16Compression

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.schedule import learning_rate

_LEAVE_SECONDS = 10.0


class Role:
    """What the three have in common: a job, events, and an end when the job's owner says so or is gone."""

    def __init__(self) -> None:
        # As in dedloc_kit.worker: hivemind's forks must not share the streams that the owner listens to.
        self._events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        commands = os.fdopen(os.dup(0), "rb", buffering=0)
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        line = b"" if commands.isatty() else commands.readline()
        if not line:
            sys.exit("a benchmark starts this as a peer of its own; run the benchmark")
        self.job: dict[str, Any] = json.loads(line)
        self.stop = threading.Event()
        self.commands: Queue[dict[str, Any] | None] = Queue()
        """Further lines of the owner; None once it wants this process to leave."""
        threading.Thread(target=self._listen, args=(commands,), daemon=True).start()

    def tell(self, event: str, **values: Any) -> None:
        self._events.write(json.dumps({"event": event, **values}) + "\n")

    def _listen(self, commands: IO[bytes]) -> None:
        for line in commands:
            self.commands.put(json.loads(line))
        self.commands.put(None)
        self.stop.set()
        time.sleep(_LEAVE_SECONDS)
        os.killpg(0, signal.SIGKILL)


def welcome(role: Role) -> None:
    node = _node(role)
    role.tell("joined", addresses=[str(address) for address in node.get_visible_maddrs()])
    role.stop.wait()


def with_hivemind(role: Role) -> None:
    node = _node(role)
    run, task, model = _learner(role)
    microbatch = int(role.job["microbatch"])
    optimizer = hivemind.Optimizer(
        dht=node,
        run_id=run.run_id,
        target_batch_size=run.global_batch,
        batch_size_per_step=microbatch,
        params=task.groups(model),
        optimizer=partial(_lamb, run),
        client_mode=node.client_mode,
        offload_optimizer=True,
        delay_optimizer_step=True,
        delay_grad_averaging=True,
        matchmaking_time=5.0,
        averaging_timeout=60.0,
        grad_compression=Float16Compression(),
        state_averaging_compression=Float16Compression(),
        averager_opts={"bandwidth": 100.0, "target_group_size": 256},
        tracker_opts={"max_refresh_period": 30.0, "metadata_expiration": 120.0},
        verbose=True,
    )
    step = optimizer.local_epoch
    for batch in _batches(role, run, task, microbatch):
        task.loss(model, task.prepare(batch), 0).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.local_epoch != step:
            step = optimizer.local_epoch
            role.tell("step", step=step)


def alone(role: Role) -> None:
    run, task, model = _learner(role)
    microbatch, seconds = int(role.job["microbatch"]), float(role.job["step_seconds"])
    optimizer = _lamb(run, task.groups(model))
    step = microbatches = 0
    due = None
    for batch in _batches(role, run, task, microbatch):
        due = due or time.monotonic() + seconds
        task.loss(model, task.prepare(batch), 0).mean.backward()
        microbatches += 1
        if time.monotonic() >= due:
            torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], 1 / microbatches)
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.optimizer.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            step, microbatches, due = step + 1, 0, due + seconds
            role.tell("step", step=step)


def _node(role: Role) -> hivemind.DHT:
    return hivemind.DHT(
        initial_peers=role.job["peers"],
        host_maddrs=[f"/ip4/{role.job['host']}/tcp/0"],
        startup_timeout=60.0,
        start=True,
    )


def _learner(role: Role) -> tuple[RunConfig, Task, torch.nn.Module]:
    torch.set_num_threads(1)
    run = RunConfig.model_validate_json(json.dumps(role.job["run"]))
    task = create_task(run, "benchmarks.lib.task")
    return run, task, task.model()


def _batches(role: Role, run: RunConfig, task: Task, microbatch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches until the role is to leave; tells that the peer is ready before the first."""
    role.tell("joined", addresses=[])
    seed = seed_of(run.run_id, os.getpid())
    with Prefetch(batches_of(run, task, microbatch, seed, print), size=4) as batches:
        while not role.stop.is_set():
            yield next(batches)


def _lamb(run: RunConfig, parameters: Any) -> Lamb:
    settings = run.optimizer
    return Lamb(
        parameters,
        lr=learning_rate(settings, 1),
        betas=settings.betas,
        eps=settings.epsilon,
        max_weight_norm=settings.max_weight_norm,
    )


def play(parts: Mapping[str, Callable[[Role], None]]) -> None:
    """Be what the job says, and end with every process that hivemind has started meanwhile."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    role = Role()
    try:
        parts[role.job["role"]](role)
    except Exception as error:
        traceback.print_exc()
        role.tell("failed", text=f"{type(error).__name__}: {error}"[:500])
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    play({"welcome": welcome, "hivemind": with_hivemind, "alone": alone})
