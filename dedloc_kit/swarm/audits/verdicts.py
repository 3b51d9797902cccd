"""What an audit leads to: who is found to cheat, why, and what shows it."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from dedloc_kit.records.record import Record
from dedloc_kit.steering.evidence import new_file

MAX_EVIDENCE_BYTES = 64 * 1024
MAX_FILES = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Who is to be sent away."""

    peer: str
    why: str
    """In words, for everyone: what it did and in which global step."""
    records: tuple[Record, ...] = ()
    """What was signed, asked and answered."""
    last_passed: int = 0
    """The global step of its newest contribution that was found to be right; 0 if none was."""


def keep_evidence(folder: Path, verdict: Verdict) -> None:
    """Write down what shows it, one record a line; a full folder or disk costs the evidence and not the verdict."""
    whole = b""
    for values in ({"why": verdict.why}, *({type(each).__name__: each.model_dump()} for each in verdict.records)):
        line = json.dumps(values, default=bytes.hex).encode() + b"\n"
        if len(whole) + len(line) <= MAX_EVIDENCE_BYTES:
            whole += line
    try:
        folder.mkdir(exist_ok=True)
        if sum(1 for _ in folder.iterdir()) < MAX_FILES:
            (folder / new_file(verdict.peer)).write_bytes(whole)
    except OSError as error:
        _log.warning("the evidence against %s cannot be kept (%s)", verdict.peer, error.strerror)
