"""From which countries volunteers take part: by a database of the organizer's, and by what the coordinator sees."""

import shutil
from pathlib import Path

import pytest
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo
from hivemind.utils.multiaddr import Multiaddr

from dedloc_kit import regions
from dedloc_kit.cli.main import main
from dedloc_kit.errors import UserError
from dedloc_kit.regions import Countries, Regions
from dedloc_kit.resources import recipe
from dedloc_kit.swarm.network.reach import seen_host
from tests.commands import coordinator_file
from tests.geoip import write_countries

NETWORKS = {"198.51.100.0/24": "BD", "203.0.113.0/24": "IN", "192.0.2.0/24": "nonsense"}
PEER = PeerID.from_base58("QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_countries(tmp_path / "countries.mmdb", NETWORKS)


def connection(address: str) -> PeerInfo:
    return PeerInfo(PEER, [Multiaddr(address)])


def test_an_address_has_a_country_unless_it_is_private_unknown_or_the_database_talks_nonsense(path: Path) -> None:
    countries = Countries(path)
    assert [countries.of(host) for host in ("198.51.100.7", "203.0.113.200")] == ["BD", "IN"]
    for host in ("127.0.0.1", "10.1.2.3", "8.8.8.8", "192.0.2.1", "no address"):
        assert countries.of(host) is None


def test_a_database_has_the_title_that_its_makers_gave_it_or_the_name_of_its_kind(tmp_path: Path, path: Path) -> None:
    assert Countries(path).title == "An Atlas of Addresses"
    assert Countries(write_countries(tmp_path / "long.mmdb", NETWORKS, title="a\n b " * 99)).title == ("a b " * 25)
    assert Countries(write_countries(tmp_path / "none.mmdb", NETWORKS, title="")).title == "Test-Country"


def test_what_is_seen_is_the_address_of_a_direct_connection() -> None:
    assert seen_host(connection("/ip4/198.51.100.7/tcp/4001")) == "198.51.100.7"
    assert seen_host(connection(f"/ip4/198.51.100.7/tcp/4001/p2p/{PEER}/p2p-circuit")) is None
    assert seen_host(connection("/ip6/::1/tcp/4001")) is None


def test_peers_are_counted_while_they_are_there_and_looked_for_no_more_than_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    hosts = {"a": "198.51.100.1", "b": "198.51.100.2", "at home": "127.0.0.1", "stranger": "203.0.113.1"}

    def look() -> dict[str, str]:
        nonlocal looks
        looks += 1
        return hosts

    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    counted = Regions(Countries(path), look)
    assert counted.count(set()) == {}
    assert looks == 0, "nobody is there"
    assert counted.count({"a", "b"}) == counted.count({"a", "b"}) == {"BD": 2}, "the stranger does not train"
    assert looks == 1, "they are known now"
    now += regions.LOOK_SECONDS
    assert counted.count({"a", "b", "at home"}) == {"BD": 2}
    assert counted.count({"a", "b", "at home", "relayed"}) == {"BD": 2}
    assert looks == 2, "who cannot be found is not looked for all the time"
    hosts["a"] = "203.0.113.9"
    now += regions.LOOK_SECONDS
    assert counted.count({"b"}) == {"BD": 1}
    assert counted.count({"a", "b"}) == {"BD": 1, "IN": 1}, "who left is forgotten, and may come back from elsewhere"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"cannot be read \(No such file"),
        (b"", "is no database of addresses"),
        (b"PK\x03\x04 something that was not unpacked", "is no database of addresses"),
        ("part", "is no database of addresses"),
        ("ASN", r"is a database of another kind \(Test-ASN\)"),
    ],
)
def test_a_file_that_is_no_database_of_countries_is_refused_with_the_fix(
    tmp_path: Path, path: Path, content: bytes | str | None, reason: str
) -> None:
    given = tmp_path / "given.mmdb"
    match content:
        case "part":  # as after a download that broke off
            given.write_bytes(path.read_bytes()[:-40])
        case "ASN":
            write_countries(given, NETWORKS, kind="Test-ASN")
        case bytes():
            given.write_bytes(content)
    with pytest.raises(UserError, match=rf"given\.mmdb {reason}.*regions .* must be a country database"):
        Countries(given)


def test_a_damaged_database_that_opens_ends_nothing(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        try:
            countries = Countries(path)
        except UserError:
            continue
        assert countries.of("198.51.100.7") in (None, "BD", "IN")


def test_a_launch_with_a_wrong_file_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(recipe("albert-demo") / "run.toml", tmp_path)
    coordinator_file(tmp_path, regions="none.mmdb")
    assert main(["launch", str(tmp_path / "run.toml"), "--folder", str(tmp_path / "run")]) == 2
    assert "regions in coordinator.toml must be a country database" in capsys.readouterr().err
    assert not (tmp_path / "run" / "logs").exists(), "no worker was started"
