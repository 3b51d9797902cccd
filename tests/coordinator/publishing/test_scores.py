"""What was measured by `dedloc evaluate` stands in the model card."""

import json
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.coordinator.publishing.scores import reports, table
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from dedloc_kit.learning.evaluate.side_by_side import side_by_side
from tests.coordinator.publishing.test_model_card import card
from tests.learning.evaluate.conftest import threads  # noqa: F401
from tests.learning.evaluate.language import OTHERS, write_causal


def test_the_table_of_an_evaluation_in_the_run_s_folder_is_in_the_card(tmp_path: Path) -> None:
    ours = write_causal(tmp_path / "ours", OTHERS)
    theirs = write_causal(tmp_path / "<b>theirs", OTHERS, uniform=True)
    (tmp_path / "text.txt").write_text("walks near today\n\nsees with often\n", encoding="utf-8")
    settings = LikelihoodSettings(dataset=str(tmp_path / "text.txt"))
    folder = tmp_path / "run"
    folder.mkdir()
    rows = side_by_side(
        str(ours), settings, against=[str(theirs)], device="cpu", threads=1, report=folder / "evaluation-text.json"
    )
    text = card(scores=reports(folder))
    assert "## What it has learned" in text
    assert f"<tr><td>this model</td><td>{rows[0].score.mean:.4f}</td>" in text
    assert f"<tr><td>&lt;b&gt;theirs</td><td>{rows[1].score.mean:.4f}</td>" in text
    assert str(tmp_path) not in text


def test_shares_are_shown_in_percent_and_random_weights_by_name(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "checkpoint": "/home/me/step-3",
        "metric": "F1",
        "samples": {"test": 1000},
        "trained": {"mean": 0.313, "spread": 0.0025},
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(values | {"random": {"mean": 0.3044, "spread": None}}))
    (report,) = reports(tmp_path)
    assert "<th>F1 in %</th>" in table(report)
    assert "<tr><td>this model</td><td>31.30</td><td>0.25</td></tr>" in table(report)
    assert "<tr><td>random weights</td><td>30.44</td><td>-</td></tr>" in table(report)
    assert "step-3, on 1,000 test." in table(report)
    assert "/home/me" not in table(report)


@pytest.mark.parametrize("content", ["", "[]", '{"metric": "F1"}', '{"features": {}}'])
def test_a_file_that_is_no_such_result_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    assert reports(tmp_path) == []
    assert "## What it has learned" not in card(scores=reports(tmp_path))
