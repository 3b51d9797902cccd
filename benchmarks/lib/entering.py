"""How a peer of a benchmark comes into its swarm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.swarm.membership.joining import Entry


def way_in(run: RunConfig, job: Mapping[str, Any]) -> Entry:
    """Of a peer that joins through the first one, which it takes for the organizer."""
    addresses = job["addresses"]
    organizer = addresses[0].rpartition("/p2p/")[2] if addresses else None
    return Entry(run, PeerConfig(folder=Path(job["folder"]), swarm_host=job["host"]), addresses, organizer)
