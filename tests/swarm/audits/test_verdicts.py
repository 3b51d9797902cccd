"""What shows a verdict is kept, within bounds."""

import json
import os
from pathlib import Path

from dedloc_kit.steering.evidence import newest_files
from dedloc_kit.swarm.audits.questions import Recompute
from dedloc_kit.swarm.audits.verdicts import MAX_EVIDENCE_BYTES, MAX_FILES, Verdict, keep_evidence
from tests.swarm.audits.audited import pledged

QUESTION = Recompute(author="Q", session="ab", work=os.urandom(1024), begin=0, end=1, seed=os.urandom(32))


def test_evidence_is_lines_of_json_and_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    keep_evidence(folder, Verdict("QmMallory", 'it "lied"', (pledged("mallory", 3), *[QUESTION] * 1000)))
    (path,) = folder.iterdir()
    assert MAX_EVIDENCE_BYTES - 4096 < path.stat().st_size <= MAX_EVIDENCE_BYTES
    assert newest_files(tmp_path) == {"QmMallory": f"evidence/{path.name}"}
    first, second, third, *_ = map(json.loads, path.read_text().splitlines())
    assert first == {"why": 'it "lied"'}
    assert second["Pledged"]["name"] == "mallory"
    assert bytes.fromhex(third["Recompute"]["work"]) == QUESTION.work
    for _ in range(MAX_FILES + 5):
        keep_evidence(folder, Verdict("QmMallory", "why"))
    assert len(list(folder.iterdir())) == MAX_FILES


def test_a_folder_that_cannot_be_written_costs_the_evidence_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_evidence(tmp_path / "file" / "evidence", Verdict("Qm", "why"))
