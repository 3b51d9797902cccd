"""A database of countries as an organizer gets one, but for a few addresses."""

from collections.abc import Mapping
from pathlib import Path

from mmdb_writer import MMDBWriter
from netaddr import IPSet

TITLE = "An Atlas of Addresses"


def write_countries(path: Path, countries: Mapping[str, str], kind: str = "Test-Country", title: str = TITLE) -> Path:
    """Write a database that knows these networks, such as `198.51.100.0/24`, and the country of each."""
    writer = MMDBWriter(
        ip_version=6, ipv4_compatible=True, database_type=kind, description={"en": title} if title else {}
    )
    for network, country in countries.items():
        writer.insert_network(IPSet([network]), {"country": {"iso_code": country}})
    writer.to_db_file(str(path))
    return path
