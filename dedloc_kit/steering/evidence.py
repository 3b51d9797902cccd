"""Where what shows that somebody cheated lies in a run's folder: a file for each verdict."""

import time
from pathlib import Path

EVIDENCE_FOLDER = "evidence"


def new_file(peer: str) -> str:
    """The name of the next file about a peer."""
    return f"{time.time_ns()}-{peer}.jsonl"


def newest_files(folder: Path) -> dict[str, str]:
    """The newest file about each peer, as it is found in a run's folder."""
    files = sorted((folder / EVIDENCE_FOLDER).glob("*-*.jsonl"))
    return {path.stem.partition("-")[2]: f"{EVIDENCE_FOLDER}/{path.name}" for path in files}
