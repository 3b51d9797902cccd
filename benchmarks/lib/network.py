"""Networks for the benchmarks: hosts behind home lines, or hosts that only the machine's own speed limits.

    with open_network(parse_line("100mbit/60ms"), hosts=4) as network:
        subprocess.Popen([*network.run_in(0), "python", "peer.py", network.address(0)])

The emulator (emulator.c) makes each host a network namespace of its own, which takes root. Namespaces and devices
belong to its process: when that ends, also because this one was killed, nothing of the network is left.
"""

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dedloc_kit.errors import UserError

_SOURCE = Path(__file__).with_name("emulator.c")
_LINE = re.compile(r"(\d+(?:\.\d+)?)mbit/(\d+(?:\.\d+)?)ms")
_NETWORK = 0x40000000  # CLONE_NEWNET
QUEUE_MS = 100.0
"""How long a packet may wait at a line before it is dropped, as in a home router without bufferbloat."""


@dataclass(frozen=True)
class Line:
    """A host's access line. A rate of 0 is unlimited."""

    up_mbit: float
    down_mbit: float
    delay_ms: float
    """One way between two hosts with such lines: half of their round trip."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of a host since its network began, headers included."""

    sent: int
    received: int
    lost: int
    """Dropped at this host's line."""


class Network:
    """Hosts in namespaces, joined by the emulator.

    :param lines: lines of single hosts that differ from the others'
    """

    def __init__(
        self, hosts: int, mbit: float = 100.0, delay_ms: float = 30.0, lines: Mapping[int, Line] | None = None
    ) -> None:
        common = Line(mbit, mbit, delay_ms)
        self.lines = [(lines or {}).get(host, common) for host in range(hosts)]
        self._namespaces: list[str] = []

    def __enter__(self) -> Self:
        _check_machine()
        self._folder = tempfile.TemporaryDirectory(prefix="dedloc-network-")
        try:
            program = _build(Path(self._folder.name))
            numbers = [n for line in self.lines for n in (line.up_mbit, line.down_mbit, line.delay_ms)]
            self._process = subprocess.Popen(
                [str(program), str(QUEUE_MS), *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # an interrupt from the keyboard must not end it before its users
            )
            self._namespaces = self._read().split()
            if len(self._namespaces) != len(self.lines):
                _, error = self._process.communicate()
                raise UserError(f"the network emulator did not start ({error.strip()}); use --network loopback")
        finally:
            self._folder.cleanup()  # the running program needs its file no more
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run_in(self, host: int) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["nsenter", f"--net={self.namespace(host)}", "--"]

    def namespace(self, host: int) -> str:
        """The file that stands for the host's network, as setns(2) takes it."""
        return f"/proc/{self._process.pid}/fd/{self._namespaces[host]}"

    def address(self, host: int) -> str:
        """The host's IPv4 address, which only the other hosts reach."""
        return f"10.77.0.{host + 1}"

    def traffic(self) -> list[Traffic]:
        """What has passed each host's line so far."""
        numbers = list(map(int, self._ask("bytes").split()))
        return [Traffic(*numbers[i : i + 3]) for i in range(0, len(numbers), 3)]

    def bytes_sent(self, host: int) -> int | None:
        """Bytes that this host has sent so far."""
        return self.traffic()[host].sent

    def cut(self, host: int) -> None:
        """From now on nothing passes the host's line, in either direction, as if it were unplugged."""
        self._ask(f"cut {host}")

    def restore(self, host: int) -> None:
        """Plug a host's line in again."""
        self._ask(f"restore {host}")

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer.endswith("\n") or answer.startswith("unknown"):
            raise ValueError(
                f"the network emulator did not take '{command}'; there are {len(self.lines)} hosts, from 0"
            )
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Loopback:
    """All hosts are this machine: needs no root, but cannot say what each host has sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run_in(self, host: int) -> list[str]:
        return []

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def bytes_sent(self, host: int) -> int | None:
        return None


def read_network(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Turn `options.network` into a line, and keep its text as `options.network_text`; a wrong one ends the program."""
    options.network_text = options.network
    try:
        options.network = parse_line(options.network)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))


def parse_line(text: str) -> Line | None:
    """The value of a `--network` option: a rate and a round trip such as `100mbit/60ms`, or `loopback` (None)."""
    if text == "loopback":
        return None
    found = _LINE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate and a round trip, such as 100mbit/60ms, or loopback")
    return Line(float(found[1]), float(found[1]), float(found[2]) / 2)


def open_network(line: Line | None, hosts: int, others: Mapping[int, Line] | None = None) -> Network | Loopback:
    """A network whose hosts have this line; none is the loopback.

    On loopback the hosts are the emulator's too, with unlimited lines, so that their bytes can be told apart; where
    the emulator cannot run they are plain processes.

    :param others: lines of single hosts that have another one
    """
    if line is not None:
        return Network(hosts, line.up_mbit, line.delay_ms, others)
    try:
        _check_machine()
    except UserError:
        return Loopback()
    return Network(hosts, 0.0, 0.0)


def enter(namespace: str) -> None:
    """This thread, and what it starts, is in this network from now on."""
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise UserError("the emulated network needs root (for network namespaces); use --network loopback")
    for command, package in (("gcc", "gcc"), ("nsenter", "util-linux")):
        if shutil.which(command) is None:
            raise UserError(f"the emulated network needs {command}; install {package} or use --network loopback")
    if not os.path.exists("/dev/net/tun"):
        raise UserError("the emulated network needs TUN devices (/dev/net/tun); use --network loopback")


def _build(folder: Path) -> Path:
    program = folder / "emulator"
    built = subprocess.run(
        ["gcc", "-O2", "-Wall", "-o", str(program), str(_SOURCE)], capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise UserError(f"gcc cannot build {_SOURCE.name}: {built.stderr.strip().splitlines()[-1]}")
    return program
