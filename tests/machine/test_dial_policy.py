"""What strangers can make this machine dial, and how often; tests/swarm/hostile/test_strangers.py has real ones."""

import pytest

from dedloc_kit.machine.dial_policy import FORGOTTEN_SECONDS, IN_ALL, MAX_FAILURES, PERIOD, PORTS_OF_A_HOST, Dials


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def at(host: str, port: int, peer: str = "QmA") -> str:
    return f"/ip4/{host}/tcp/{port}/p2p/{peer}"


def dialled(dials: Dials, peer: str, *places: tuple[str, int]) -> int:
    return len(dials.due(peer, [at(*place, peer) for place in places]))


def test_a_port_is_dialled_once_a_minute_whoever_names_it(clock: Clock) -> None:
    dials = Dials((), (), clock)
    for _ in range(3):
        assert sum(dialled(dials, f"Qm{number}", ("8.8.8.8", 53)) for number in range(10)) == 1
        assert dialled(dials, "QmOther", ("8.8.4.4", 53), ("8.8.4.4", 53)) == 1
        clock.now += PERIOD - 1
        assert dialled(dials, "QmA", ("8.8.8.8", 53)) == 0
        clock.now += 1


def test_a_host_has_so_many_of_its_ports_dialled_and_all_together_so_many(clock: Clock) -> None:
    dials = Dials((), (), clock)
    assert dialled(dials, "QmA", *(("8.8.8.8", port) for port in range(1, 2000))) == PORTS_OF_A_HOST
    others = [dialled(dials, "QmA", (f"8.8.{host // 250}.{host % 250}", 1)) for host in range(2 * IN_ALL)]
    assert sum(others) == IN_ALL - PORTS_OF_A_HOST


def test_who_is_not_reached_three_times_is_forgotten_for_an_hour_and_no_other_peer_there_is(clock: Clock) -> None:
    dials, place = Dials((), (), clock), ("8.8.8.8", 53)
    for reached in (False, True, *[False] * MAX_FAILURES):
        assert dialled(dials, "QmA", place) == 1
        dials.over("QmA", [at(*place)], reached=reached)
        clock.now += PERIOD
    assert dialled(dials, "QmA", place) == 0
    assert dialled(dials, "QmB", place) == 1
    clock.now += FORGOTTEN_SECONDS
    assert dialled(dials, "QmA", place) == 1


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "localhost",
        "127.1",
        "2130706433",
        "::1",
    ],
)
def test_nobody_makes_a_machine_look_around_in_its_own_network(host: str, clock: Clock) -> None:
    assert dialled(Dials((), ("8.8.8.8",), clock), "QmA", (host, 80)) == 0


def test_in_a_run_on_a_private_network_its_hosts_are_dialled_and_those_of_others_are_not(clock: Clock) -> None:
    dials = Dials((), ("192.168.1.5", "no such name"), clock)
    assert dialled(dials, "QmA", ("192.168.1.6", 80), ("8.8.8.8", 80)) == 2
    assert dialled(dials, "QmA", ("10.0.0.1", 80), ("127.0.0.1", 80)) == 0


def test_what_the_user_has_chosen_is_always_dialled_but_under_no_other_name(clock: Clock) -> None:
    chosen = "/dns4/example.org/tcp/31337/p2p/QmCoordinator"
    dials = Dials((chosen,), (), clock)
    for _ in range(5):
        assert dials.due("QmCoordinator", [chosen]) == [chosen]
        dials.over("QmCoordinator", [chosen], reached=False)
    assert not dials.due("QmA", [chosen, "/dns4/example.org/tcp/31337/p2p/QmA"])
    assert not dials.due("QmA", [at("8.8.8.8", 53, "QmB")]), "an address that names somebody else"
    assert not dials.due("QmA", [at("8.8.8.8", 0), at("8.8.8.8", 70_000)])
