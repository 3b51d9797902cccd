import pytest

from dedloc_kit.machine.ports import advice


def announced(*hosts: str) -> list[str]:
    return [f"/ip4/{host}/tcp/31337/p2p/QmMe" for host in hosts]


@pytest.mark.parametrize("host", ["192.168.1.5", "10.0.0.2", "172.17.0.2", "100.64.3.1"])
def test_behind_an_address_translation_the_ports_to_forward_are_named(host: str) -> None:
    said = advice(announced("127.0.0.1", host), 8000)
    assert "forward TCP ports 31337 and 8000" in said
    assert "--swarm-port 31337 --announce-host" in said
    assert f"announced at {host};" in said


@pytest.mark.parametrize("host", ["8.8.8.8", "train.example.org"])
def test_with_a_public_address_the_ports_to_open_are_named(host: str) -> None:
    said = advice(announced(host, "10.0.0.2"), 8000)
    assert "31337 (the swarm) and 8000 (this page)" in said
    assert "forward" not in said


def test_on_loopback_nobody_is_asked_to_open_anything() -> None:
    assert advice(announced("127.0.0.1"), 8000) == "only this machine can join: the swarm is announced at 127.0.0.1"
