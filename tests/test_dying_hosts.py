"""Hosts of experts die in mid-training: nothing is lost with one, and with all who have an expert little."""

import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from dedloc_kit.events import Hosted, Joined, LocalProgress, StepDone, Warned
from tests.swarm.harness import Peer, Swarm, ledger_of, processes_of, wait_until
from tests.tiny_mixed import mixed_run

EXPERTS = 6
HOSTS = ("one", "two", "three", "four")
MICROBATCH, PAUSE, BATCH = 4, "0.3", 96
"""A global step takes some seconds."""
DEADLINE = 240.0


class Microbatch(NamedTuple):
    """What a trainer had of its experts.

    :ivar seconds: that it waited for them
    """

    step: int
    forward: int
    backward: int
    seconds: float


class Dying:
    """A trainer and hosts, who train as well."""

    def __init__(self, swarm: Swarm, folder: Path) -> None:
        self.folder = folder
        self.coordinator = swarm.coordinator(task_module="tests.dying_mixed")
        self.hosts = {name: self._host(swarm, name) for name in HOSTS}
        for host in self.hosts.values():
            host.wait_for(Joined, deadline=DEADLINE)
        self.settle()
        self.trainer = swarm.volunteer(
            "trainer",
            {"TRAINER_CALLS": str(folder / "calls"), "MIXED_PAUSE": PAUSE},
            microbatch=MICROBATCH,
            task_module="tests.dying_mixed",
        )
        self.trainer.wait_for_step(2)

    def _host(self, swarm: Swarm, name: str) -> Peer:
        environment = {
            "MIXED_PAUSE": PAUSE,
            "HOST_FAULT": str(self.folder / f"{name}.signal"),
            "HOST_BITS": str(self.folder / f"{name}.bits"),
        }
        return swarm.volunteer(
            name, environment, microbatch=MICROBATCH, task_module="tests.dying_mixed", host_experts=True
        )

    def held(self, peer: Peer) -> Hosted:
        none = Hosted(kept=0, copies=0)
        return next((each for each in reversed(peer.events) if isinstance(each, Hosted)), none)

    def settle(self) -> None:
        """Until each expert is kept by a host and followed by another one."""

        def settled() -> bool:
            held = [self.held(host) for host in self.hosts.values()]
            return sum(each.kept for each in held) == sum(each.copies for each in held) == EXPERTS

        wait_until(settled, "not every expert has a keeper and a stand-in", DEADLINE)

    def await_keepers(self, *besides: str) -> None:
        """Until others keep all experts."""
        here = [host for name, host in self.hosts.items() if name not in besides]
        wait_until(lambda: sum(self.held(host).kept for host in here) == EXPERTS, "nobody takes over", DEADLINE)

    def microbatches(self) -> list[Microbatch]:
        lines = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return [
            Microbatch(there["step"], there["answered"], back["answered"], there["seconds"] + back["seconds"])
            for there, back in zip(lines[::2], lines[1::2], strict=False)
        ]

    def hit(self, call: str, what: signal.Signals) -> tuple[str, int]:
        """One who keeps experts, in the middle of such a call; returns the last global step that was finished.

        :param call: `forward` or `backward`
        """
        name = max(self.hosts, key=lambda name: self.held(self.hosts[name]).kept)
        waiting = self.folder / f"{name}.waiting"
        waiting.write_text(f"{call} {int(what)}")
        waiting.rename(self.folder / f"{name}.signal")
        wait_until(lambda: (self.folder / f"{name}.done").exists(), f"{name} is asked nothing", DEADLINE)
        return name, self.microbatches()[-1].step - 1

    def bits(self, name: str) -> dict[tuple[str, int], str]:
        """Of each expert that this host had, after each step."""
        found: dict[tuple[str, int], str] = {}
        for line in (self.folder / f"{name}.bits").read_text().splitlines():
            expert, step, digest = line.split()
            found[expert, int(step)] = digest
        return found

    def all_answer(self, step: int) -> None:
        """Within two global steps after the one under way, which is the next one after this."""
        self.trainer.wait_for(StepDone, lambda event: event.step.step >= step + 3, DEADLINE)
        answered = [(each.forward, each.backward) for each in self.microbatches() if step < each.step <= step + 3]
        assert (EXPERTS, EXPERTS) in answered, answered

    def assert_bits_live_on(self, dead: str) -> None:
        """What it had after the last step that it took is what others had."""
        mine = self.bits(dead)
        last = max(step for _, step in mine)
        others = [self.bits(name) for name in HOSTS if name != dead]
        for (expert, step), digest in mine.items():
            if step == last:
                assert digest in [each.get((expert, step)) for each in others], (dead, expert, step)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_hosts_die_and_stall_and_no_expert_loses_a_step_until_all_who_have_it_are_gone(tmp_path: Path) -> None:
    with Swarm(mixed_run(global_batch=BATCH), tmp_path) as swarm:
        dying = Dying(swarm, tmp_path)
        for call in ("forward", "backward"):
            name, step = dying.hit(call, signal.SIGKILL)
            dead = dying.hosts.pop(name)
            dying.all_answer(step)
            wait_until(lambda dead=dead: not processes_of(dead.worker.pid), f"a process of {dead.name} is left")  # type: ignore[misc]
            dying.settle()
            dying.assert_bits_live_on(name)

        # A line that is cut looks the same to the others.
        name, step = dying.hit("forward", signal.SIGSTOP)
        dying.all_answer(step)
        dying.await_keepers(name)
        os.killpg(dying.hosts[name].worker.pid, signal.SIGCONT)
        dying.settle()

        for host in dying.hosts.values():
            os.killpg(host.worker.pid, signal.SIGKILL)
        dying.hosts.clear()
        dying.coordinator.wait_for(Warned, lambda event: "all hosts of these experts are gone" in event.text, DEADLINE)
        all_there = (EXPERTS, EXPERTS)
        wait_until(lambda: dying.microbatches()[-1][1:3] == all_there, "not all experts are back", DEADLINE)
        assert "goes back by" in dying.coordinator.worker.log.read_text()

        ledger = ledger_of(dying.coordinator)
        assert ledger.troubles("failed")[0] == 0
        ledger.close()
        losses = [event.loss for event in dying.trainer.events if isinstance(event, LocalProgress)]
        assert losses
        assert None not in losses
