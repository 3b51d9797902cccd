"""How long does it take to send tokens through experts on other machines, and their gradients back?

    python -m benchmarks.lib.expert_calls [--tokens 512] [--no-hivemind]

Two processes on loopback host 16 experts, a third one is the trainer: with ours, where all tokens of a call for a host
travel in one request, and with hivemind's `RemoteMixtureOfExperts`, which makes one for each token and expert (the
tokens in some parts, one after the other).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import hivemind
import torch
from hivemind.moe import RemoteMixtureOfExperts, Server, get_experts
from hivemind.p2p import P2P
from torch import Tensor

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import Cell, Microbatch, counting
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.computing import Computing
from dedloc_kit.swarm.experts.hosts import Hosts
from dedloc_kit.swarm.experts.offer import layers_of
from dedloc_kit.swarm.experts.service import ExpertService, Limits
from dedloc_kit.swarm.network.gate import Gate, GatedP2P
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.remote.turns import Turns

WIDTH, GRID, CHOSEN, TOKENS = 64, (4, 4), 2, 512
HOSTS = 2
TIMES = 20
AT_A_TIME = 128
"""Tokens of one of hivemind's calls: the scores of more do not always fit into the pipe to its DHT, whose process dies
then (`EAGAIN`), and the caller waits for ever."""
SECONDS = 60.0
_NAMES = [f"ffn.{row}.{column}" for row in range(GRID[0]) for column in range(GRID[1])]
"""Of hivemind's experts."""
_LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


@dataclass(frozen=True)
class Timing:
    """Seconds of a forward and of the backward call, medians."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


def ours(tokens: int = TOKENS) -> Timing:
    """With a bank in each of two processes, in float32."""
    run = calls_run(WIDTH, 4 * WIDTH)
    with ExitStack() as stack:
        hosts = [stack.enter_context(_process("ours", str(at))) for at in range(HOSTS)]
        experts = stack.enter_context(asking(run, hosts, "float32"))
        inputs = drawn(tokens, WIDTH)
        timings = [_timed(experts, inputs) for _ in range(TIMES)]
    return _median(timings[2:])


def with_hivemind(tokens: int = TOKENS) -> Timing:
    """With two of its servers."""
    with ExitStack() as stack:
        first = stack.enter_context(_process("hivemind", "0"))
        stack.enter_context(_process("hivemind", "1", first))
        dht = hivemind.DHT(initial_peers=[first], client_mode=True, start=True, startup_timeout=SECONDS)
        stack.callback(dht.shutdown)
        until = time.monotonic() + SECONDS
        while None in get_experts(dht, _NAMES):
            if time.monotonic() > until:
                raise TimeoutError("hivemind's servers are not there")
            time.sleep(0.5)
        mixture = RemoteMixtureOfExperts(
            in_features=WIDTH, grid_size=GRID, dht=dht, k_best=CHOSEN, uid_prefix="ffn.", forward_timeout=SECONDS
        )
        forward = backward = 0.0
        for part in torch.randn(tokens, WIDTH).split(AT_A_TIME):
            inputs = part.requires_grad_()
            began = time.perf_counter()
            made = mixture(inputs)
            between = time.perf_counter()
            made.sum().backward()
            forward, backward = forward + between - began, backward + time.perf_counter() - between
    return Timing(forward, backward)


def _timed(experts: RemoteExperts, inputs: dict[Cell, Tensor]) -> Timing:
    began = time.perf_counter()
    with counting(Microbatch(1, 1)):
        answers = experts.forward(0, inputs, keep=True)
    between = time.perf_counter()
    found = experts.backward(0, answers.ticket, inputs)
    if not found.keys() == answers.outputs.keys() == inputs.keys():
        raise RuntimeError("not all experts have answered")
    return Timing(between - began, time.perf_counter() - between)


def _median(timings: Sequence[Timing]) -> Timing:
    return Timing(statistics.median(t.forward for t in timings), statistics.median(t.backward for t in timings))


def drawn(tokens: int, width: int) -> dict[Cell, Tensor]:
    """Each token goes to some of the experts."""
    torch.manual_seed(0)
    given = torch.randn(tokens, width)
    chosen = torch.rand(tokens, GRID[0] * GRID[1]).topk(CHOSEN).indices
    return {Cell(*divmod(cell, GRID[1])): given[(chosen == cell).any(1)] for cell in chosen.unique().tolist()}


def calls_run(width: int, hidden: int) -> RunConfig:
    """With one layer of experts."""
    return parse_run(
        {
            "name": "calls",
            "global_batch": 64,
            "task": {"name": "causal"},
            "data": {"train": [{"dataset": "nowhere"}]},
            "experts": {"layers": [0], "grid": list(GRID), "top_k": CHOSEN, "width": width, "hidden": hidden},
            "averaging": {"overlap": False},
        }
    )


@contextmanager
def asking(run: RunConfig, hosts: Sequence[str], form: Form, address: str = "127.0.0.1") -> Iterator[RemoteExperts]:
    """A trainer's experts, once all answer.

    :param hosts: an address of each, in the order of what they hold
    :param address: this machine's
    """
    assert run.experts is not None
    with _endpoint(run, hosts, address) as (loop, _, endpoint):
        offers = {host.rpartition("/")[2]: _offer(run, at, len(hosts)) for at, host in enumerate(hosts)}
        known = Hosts(endpoint, run.experts, lambda: offers, lambda *_: None)
        following = loop.start(known.follow())
        try:
            experts = RemoteExperts(loop, known, GRID[1], form)
            until = time.monotonic() + SECONDS
            while not experts.alive(0).all():
                if time.monotonic() > until:
                    raise UserError("the hosts are not there")
                time.sleep(0.01)
            yield experts
        finally:
            following.cancel()


@contextmanager
def hosting(run: RunConfig, at: int, hosts: int, form: Form, address: str = "127.0.0.1") -> Iterator[str]:
    """Answer for every so manyth expert; an address of this host."""
    assert run.experts is not None
    bank, turns = Bank(run), Turns()
    bank.hold(names_of(run.experts)[at::hosts])
    with _endpoint(run, (), address) as (loop, p2p, endpoint):
        loop.run(endpoint.add(ExpertService(run, bank, turns, form, Limits())))
        computing = Computing(turns)
        computing.start()
        computing.ready.wait()
        try:
            yield str(loop.run(p2p.get_visible_maddrs())[0])
        finally:
            computing.stop()


def _offer(run: RunConfig, at: int, hosts: int) -> HostOffer:
    assert run.experts is not None
    return HostOffer(
        run_id=run.run_id,
        state="online",
        layers=layers_of(names_of(run.experts)[at::hosts], GRID),
        client_mode=False,
        addresses=(),
        device="cpu",
        name="host",
        time=1.0,
    )


@contextmanager
def _endpoint(run: RunConfig, known: Sequence[str], address: str) -> Iterator[tuple[Loop, P2P, Endpoint]]:
    with tempfile.TemporaryDirectory() as folder, Loop() as loop:
        identity = Identity(Path(folder) / IDENTITY_FILE)
        signer = Signer(identity)
        gated = GatedP2P.behind(Gate(run.run_id, signer.peer, signer, restricted=False), "experts")
        p2p = loop.run(
            gated.create(
                initial_peers=known,
                identity_path=str(identity.path),
                host_maddrs=[f"/ip4/{address}/tcp/0"],
                startup_timeout=SECONDS,
                use_relay=False,
                check_if_identity_free=False,
            )
        )
        try:
            yield loop, p2p, Endpoint(p2p, run.run_id)
        finally:
            loop.run(p2p.shutdown())


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    """A host; what it says when it is ready."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else "benchmarks.lib.expert_calls", "--host", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(SECONDS)


def _host(kind: str, at: int, known: Sequence[str]) -> None:
    """Until standard input ends."""
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    hosting: Callable[[int, Sequence[str], IO[str]], None] = _host_ours if kind == "ours" else _host_hivemind
    hosting(at, known, said)


def _host_ours(at: int, known: Sequence[str], said: IO[str]) -> None:
    with hosting(calls_run(WIDTH, 4 * WIDTH), at, HOSTS, "float32") as address:
        print(address, file=said)
        sys.stdin.read()


def _host_hivemind(at: int, known: Sequence[str], said: IO[str]) -> None:
    server = Server.create(
        expert_uids=_NAMES[at::HOSTS],
        expert_cls="ffn",
        hidden_dim=WIDTH,
        optim_cls=None,
        num_handlers=2,
        max_batch_size=4096,
        device="cpu",
        initial_peers=known,
        start=True,
        startup_timeout=SECONDS,
        host_maddrs=_LOOPBACK,
    )
    print(server.dht.get_visible_maddrs()[0], file=said)
    sys.stdin.read()
    server.shutdown()
    server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--no-hivemind", action="store_true", help="measure ours alone")
    parser.add_argument("--host", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        kind, at, *known = arguments.host
        _host(kind, int(at), known)
        return
    found: dict[str, Any] = {"ours": asdict(mine := ours(arguments.tokens))}
    if not arguments.no_hivemind:
        theirs = with_hivemind(arguments.tokens)
        found |= {"hivemind": asdict(theirs), "speedup_over_hivemind": theirs.both / mine.both}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
