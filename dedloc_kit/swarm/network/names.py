"""Every key and protocol name that a run has on the network.

Two runs never meet under one name, nor do two parts of a model that are averaged apart: a part has an id of its own
(`RunConfig.parts`). What all parts have in common (the gate, and what the organizer says of it) goes by the run's.
hivemind's own directory has no name of ours: it serves whoever passes the gate.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Those of a run, or of a part of it, by its id."""

    run_id: str

    def service(self, name: str) -> str:
        """Of a service that its peers offer each other."""
        return f"{self.run_id}::{name}"

    def records(self, kind: str, share: int | None = None) -> str:
        """The key in the directory of this kind of records; `share`: one of the keys for many peers."""
        return f"{self.run_id}_{kind}" + ("" if share is None else f".{share:x}")

    def door(self, process: str) -> str:
        """Where a process of a peer is shown the tokens of others."""
        return f"{self.run_id}::access::{process}"
