"""A line that is down for a minute and a machine that sleeps for one: the volunteers go on afterwards."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.lib.network import Network
from dedloc_kit.errors import UserError
from tests.hang import HANG
from tests.swarm.harness import wait_until

CHECKOUT = str(Path(__file__).parents[1])
OUTAGE_SECONDS = 60.0


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(4, mbit=100.0, delay_ms=10.0) as network:
            yield network
    except UserError as error:
        pytest.skip(str(error))


class Command:
    """A `dedloc` command on one host of the network, and what it has printed so far."""

    def __init__(self, network: Network, host: int, folder: Path, arguments: Sequence[str]) -> None:
        folder.mkdir()
        self._output = folder / "output.txt"
        environment = {**os.environ, "PYTHONPATH": CHECKOUT, "TINY_PAUSE": "0.05", "DEDLOC_HOME": str(folder / "home")}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*network.run_in(host), sys.executable, "-m", "dedloc_kit.cli", *arguments, "--folder", str(folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str, after: int = 0) -> None:
        """Until this pattern is in what was printed after so many characters."""
        try:
            wait_until(lambda: re.search(pattern, self.output[after:]) is not None, "", HANG)
        except AssertionError:
            raise AssertionError(f"no {pattern!r} in:\n{self.output[after:][-3000:]}") from None

    def took(self) -> int:
        """The newest global step that has samples of this volunteer in it."""
        found = re.findall(r"Your machine computed .* samples of step ([\d,]+)", self.output)
        return max((int(step.replace(",", "")) for step in found), default=0)

    def takes_a_step_after(self, step: int) -> None:
        try:
            wait_until(lambda: self.took() > step, "", HANG)
        except AssertionError:
            raise AssertionError(f"no step after {step} with samples of its own in:\n{self.output[-3000:]}") from None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG)


@contextmanager
def command(network: Network, host: int, folder: Path, *arguments: str) -> Iterator[Command]:
    running = Command(network, host, folder, arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_line_that_is_down_and_a_machine_that_sleeps_for_a_minute_are_back_at_work_afterwards(
    network: Network, tmp_path: Path
) -> None:
    here = ("--task-module", "tests.tiny", "--devices", "cpu", "--threads", "1")
    with ExitStack() as stack:
        (tmp_path / "run.toml").write_text(TOML)
        host = network.address(0)
        launch = ("launch", str(tmp_path / "run.toml"), "--swarm-host", host, "--port", "8100", "--host", host)
        coordinator = stack.enter_context(command(network, 0, tmp_path / "coordinator", *launch, *here))
        coordinator.wait_for("to join:")

        def volunteer(number: int, name: str) -> Command:
            join = (
                "join",
                f"http://{host}:8100",
                "--name",
                name,
                "--microbatch",
                "8",
                "--swarm-host",
                network.address(number),
            )
            return stack.enter_context(command(network, number, tmp_path / name, *join, *here))

        cut, asleep, steady = (volunteer(number, name) for number, name in enumerate(("cut", "asleep", "steady"), 1))
        for peer in (cut, asleep, steady):
            peer.wait_for("Your machine computed")
        sleeping = family(asleep.process.pid)
        stack.callback(wake, sleeping)  # whatever happens: who is stopped for ever cannot even be orphaned
        network.cut(1)
        for pid in sleeping:
            os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + OUTAGE_SECONDS
        cut.wait_for("Waiting for the other volunteers|the other volunteers do not come")  # by how much it computes
        before = len(steady.output)
        steady.wait_for("Your machine computed", after=before)  # the others are not held up
        time.sleep(max(0.0, end - time.monotonic()))  # the outage itself
        gone_on = steady.took()
        network.restore(1)
        wake(sleeping)
        for peer in (cut, asleep):
            peer.takes_a_step_after(gone_on)
            assert "Traceback" not in peer.output
        for peer in (cut, asleep, steady, coordinator):
            assert peer.stop() == 0


def wake(processes: Sequence[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGCONT)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


TOML = """
name = "tiny"
global_batch = 256
[task]
name = "tiny"
[[data.train]]
dataset = "none/none"
[optimizer]
learning_rate = 0.01
warmup_steps = 0
total_steps = 10000
"""
