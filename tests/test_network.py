"""The emulated network of the benchmarks, with real sockets between its hosts."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lib.network import Line, Network, open_network, parse_line
from dedloc_kit.errors import UserError

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    received = 0
    while data := connection.recv(1 << 16):
        received += len(data)
        if data.endswith(b"?"):
            connection.sendall(b"!")
    print(received, flush=True)
"""
CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(int(sys.argv[3])))
if len(sys.argv) > 4:
    print("sent", flush=True)
    sys.stdin.readline()
began = time.monotonic()
connection.sendall(b"?")
assert connection.recv(1) == b"!"
print(time.monotonic() - began, flush=True)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """Host 2 has a slow line."""
    network = Network(3, mbit=1000.0, delay_ms=20.0, lines={2: Line(8.0, 8.0, 20.0)})
    try:
        with network:
            yield network
    except UserError as error:
        pytest.skip(str(error))


class Server:
    """Counts what it receives and answers a question, on host 0."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.process = subprocess.Popen(
            [*network.run_in(0), sys.executable, "-c", SERVER, network.address(0)], stdout=subprocess.PIPE, text=True
        )
        self.port = self.read()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def client(self, host: int, size: int, *options: str) -> "subprocess.Popen[str]":
        """Sends `size` bytes from a host, then a question; prints the seconds to its answer."""
        address = self.network.address(0)
        return subprocess.Popen(
            [*self.network.run_in(host), sys.executable, "-c", CLIENT, address, self.port, str(size), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.mark.soak
def test_a_round_trip_takes_at_least_twice_the_delay(network: Network) -> None:
    with Server(network) as server:
        answer, _ = server.client(1, 0).communicate(timeout=60)
    assert float(answer) >= 0.040


@pytest.mark.soak
def test_nothing_passes_a_line_faster_than_its_rate_and_every_byte_is_counted(network: Network) -> None:
    with Server(network) as server:
        began = time.monotonic()
        server.client(2, 1_000_000).communicate(timeout=60)
        seconds = time.monotonic() - began
        assert server.read() == "1000001"
    assert seconds >= 1.0  # 8 megabit at 8 megabit a second
    deadline = time.monotonic() + 60
    while (traffic := network.traffic())[2].sent != traffic[0].received:  # the last packets may be under way
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert 1_000_000 < traffic[2].sent < 2_000_000
    assert traffic[1].sent == traffic[1].received == 0
    sent = network.bytes_sent(2)
    assert sent is not None
    assert traffic[2].sent <= sent <= network.traffic()[2].sent


@pytest.mark.soak
def test_a_host_that_was_cut_off_goes_on_with_the_same_connection_once_it_is_restored(network: Network) -> None:
    with Server(network) as server:
        client = server.client(1, 1000, "wait for a line")
        assert client.stdout is not None
        assert client.stdout.readline() == "sent\n"
        network.cut(1)
        received = network.traffic()[1].received
        assert client.stdin is not None
        client.stdin.write("go on\n")
        client.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(1.0)
        assert network.traffic()[1].received == received
        network.restore(1)
        answer, _ = client.communicate(timeout=60)
    assert float(answer) > 1.0


@pytest.mark.soak
def test_two_networks_at_once_have_nothing_in_common(network: Network) -> None:
    with Network(2, mbit=0.0, delay_ms=0.0) as other, Server(other) as server:
        server.client(1, 1000).communicate(timeout=60)
        assert other.traffic()[1].sent > 1000
    assert network.traffic()[1].sent == 0


@pytest.mark.soak
def test_a_killed_benchmark_leaves_no_emulator_behind(network: Network) -> None:
    code = """
from benchmarks.lib.network import Network
with Network(1) as network:
    print(*network.run_in(0), flush=True)
    input()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert owner.stdout is not None
    emulator = Path(owner.stdout.readline().split("=")[1].split("/fd/")[0])
    assert emulator.exists()
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 30.0
    while emulator.exists() and "Z" not in (emulator / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.soak
def test_an_impossible_host_is_named(network: Network) -> None:
    with pytest.raises(ValueError, match="cut 7"):
        network.cut(7)


def test_a_network_is_given_as_a_rate_and_a_round_trip() -> None:
    assert parse_line("100mbit/60ms") == Line(100.0, 100.0, 30.0)
    assert parse_line("loopback") is None
    with pytest.raises(Exception, match="100mbit/60ms"):
        parse_line("fast")


@pytest.mark.soak
def test_the_loopback_works_for_everyone() -> None:
    with open_network(None, hosts=2) as network:
        done = subprocess.run([*network.run_in(1), sys.executable, "-c", "print(1)"], capture_output=True, check=True)
        assert done.stdout == b"1\n"
        assert network.bytes_sent(1) in (0, None)
