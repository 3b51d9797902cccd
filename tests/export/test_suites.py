"""The suites ask a run's folder, and a checkpoint in it, as they ask an exported model."""

import json
from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from tests.export.runs import LedRun
from tests.learning.evaluate.conftest import threads  # noqa: F401
from tests.learning.evaluate.test_suites import here  # noqa: F401
from tests.text_runs import text_run, write_text


@pytest.mark.usefixtures("here")
def test_a_run_s_folder_scores_as_its_export_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path)
    led = LedRun(tmp_path / "run", text_run(tmp_path, "causal"))
    led.step(2.0)
    led.step(3.0)
    assert main(["export", str(led.folder), str(tmp_path / "exported")]) == 0
    found = {}
    for model in (led.folder, tmp_path / "exported", led.folder / "checkpoints" / "step-00000001.safetensors"):
        capsys.readouterr()
        assert main(["evaluate", str(model), "--suite", "near.yaml", "--json", "--device", "cpu"]) == 0
        (report,) = json.loads(capsys.readouterr().out)["suites"]
        found[model] = report["trained"]["mean"], report["trained"]["spread"]
    best, exported, first = found.values()
    assert best == exported == first
    led.ledger.close()
