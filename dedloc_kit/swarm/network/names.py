"""Every key and protocol name that a run has on the network.

Two runs never meet under one name, nor do two parts of a model that are averaged apart: what belongs to a part carries
its name too. What all parts have in common (the gate, and what the organizer says of it) carries the run alone.
hivemind's own directory has no name of ours: it serves whoever passes the gate.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Those of a run.

    :ivar part: what is averaged; empty for the whole model, which is all there is today
    """

    run_id: str
    part: str = ""

    @property
    def averaging(self) -> str:
        """Before all names of what averages this part."""
        return f"{self.run_id}.{self.part}" if self.part else self.run_id

    def service(self, name: str) -> str:
        """Of a service that peers of this part offer each other."""
        return f"{self.averaging}::{name}"

    def records(self, kind: str, share: int | None = None) -> str:
        """The key in the directory of this kind of the part's records; `share`: one of the keys for many peers."""
        return f"{self.averaging}_{kind}" + ("" if share is None else f".{share:x}")

    def cell(self, kind: str, cell: int) -> str:
        """The key of one cell of peers that are divided into rows."""
        return f"{self.averaging}_{kind}.cell.{cell:x}"

    def copy(self, kind: str, copy: int) -> str:
        """The key of one copy of what all peers ask for where they are divided into rows."""
        return f"{self.averaging}_{kind}.copy.{copy:x}"

    def organizers(self, kind: str) -> str:
        """The key of a record that only the organizer has."""
        return f"{self.run_id}_{kind}"

    def door(self, process: str) -> str:
        """Where a process of a peer is shown the tokens of others."""
        return f"{self.run_id}::access::{process}"
