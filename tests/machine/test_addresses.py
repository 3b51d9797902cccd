"""Which addresses belong to the Internet."""

import pytest

from dedloc_kit.dashboard.http.fair_pool import household
from dedloc_kit.machine.addresses import is_address, is_loopback, is_public
from dedloc_kit.machine.ports import advice

CARRIED = {
    "mapped": "::ffff:{0}",
    "compatible": "::{0}",
    "translated": "::ffff:0:{0}",
    "NAT64": "64:ff9b::{0}",
    "6to4": "2002:{1}:{2}::1",
    "Teredo": "2001:0:808:808:0:63bf:{3}:{4}",
    "ISATAP": "2a00:1450::5efe:{0}",
}


def carried(form: str, address: str) -> str:
    """An IPv4 address as IPv6 carries it."""
    a, b, c, d = (int(part) for part in address.split("."))
    halves = a << 8 | b, c << 8 | d
    return CARRIED[form].format(address, *(f"{half:x}" for half in halves), *(f"{half ^ 0xFFFF:x}" for half in halves))


@pytest.mark.parametrize("form", CARRIED)
def test_an_address_that_ipv6_carries_counts_as_what_it_is(form: str) -> None:
    for private in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"):
        assert not is_public(private)
        assert not is_public(carried(form, private)), private
    assert is_public(carried(form, "8.8.8.8"))
    assert is_loopback(carried(form, "127.0.0.1")) == (form != "ISATAP")


@pytest.mark.parametrize(
    "address",
    [
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "64:ff9b:1::7f00:1",
        "100::1",
    ],
)
def test_what_nobody_on_the_internet_has_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_what_the_internet_has_is_public_and_names_are_no_addresses() -> None:
    assert is_public("8.8.8.8")
    assert is_public("2a00:1450:4001:830::200e")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("river.example")
    assert [is_address(host) for host in ("::1", "10.0.0.1", "localhost", "127.1", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_household_cannot_choose_to_be_many() -> None:
    assert household(carried("6to4", "192.0.2.7")) == household("2002:c000:207:9::1") == "192.0.2.7"
    assert household(carried("NAT64", "192.0.2.7")) == "192.0.2.7" != household(carried("NAT64", "192.0.2.8"))
    assert household(carried("ISATAP", "192.0.2.7")) == household(carried("ISATAP", "192.0.2.8"))


def test_an_organizer_is_not_told_that_the_world_gets_in_by_an_address_of_its_own_network() -> None:
    for host in ("::ffff:192.168.1.5", "64:ff9b::192.168.1.5", "fec0::5"):
        assert "only machines in this network" in advice([f"/ip6/{host}/tcp/31337/p2p/QmMe"], 8000)
