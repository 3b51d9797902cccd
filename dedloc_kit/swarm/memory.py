"""What a coordinator remembers of its swarm, so that after a restart it is where it was and finds the others."""

import json
import os
from pathlib import Path

from pydantic import Field

from dedloc_kit.records import Address, Record


class SwarmMemory(Record):
    """Kept in the run folder as `swarm.json`."""

    port: int = Field(default=0, ge=0, le=65535)
    """The port on which the coordinator listened; volunteers know it."""
    peers: tuple[Address, ...] = Field(default=(), max_length=64, strict=False)
    """Addresses of volunteers that others can reach."""


def recall(folder: Path) -> SwarmMemory:
    """The memory in this folder; an empty one if there is none, for a run can always start without."""
    try:
        return SwarmMemory.parse(json.loads((folder / "swarm.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return SwarmMemory()


def remember(folder: Path, memory: SwarmMemory) -> None:
    """Replace the memory in this folder at once, so that a killed process leaves the old one or the new one."""
    temporary = folder / ".swarm.json.tmp"
    temporary.write_text(memory.model_dump_json(), encoding="utf-8")
    os.replace(temporary, folder / "swarm.json")
