"""What was measured by `dedloc evaluate` stands in the model card."""

import json
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.export.scores import reports, table
from dedloc_kit.learning.evaluate.likelihood import evaluate
from dedloc_kit.learning.evaluate.report import Report, Row, SuitesReport
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from tests.export.test_model_card import card
from tests.learning.evaluate.conftest import threads  # noqa: F401
from tests.learning.evaluate.language import OTHERS, write_causal


def test_the_table_of_an_evaluation_in_the_run_s_folder_is_in_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = write_causal(tmp_path / "ours", OTHERS)
    theirs = write_causal(tmp_path / "<b>theirs", OTHERS, uniform=True)
    (tmp_path / "text.txt").write_text("walks near today\n\nsees with often\n", encoding="utf-8")
    settings = LikelihoodSettings(dataset=str(tmp_path / "text.txt"))
    folder = tmp_path / "run"
    folder.mkdir()
    report = evaluate(str(ours), settings, Session("cpu", 1, as_json=True), against=[str(theirs)])
    (folder / "evaluation-text.json").write_text(capsys.readouterr().out, encoding="utf-8")
    text = card(scores=reports(folder))
    assert "## What it has learned" in text
    assert f"<tr><td>this model</td><td>{report.trained.mean:.4f}</td>" in text
    assert f"<tr><td>&lt;b&gt;theirs</td><td>{report.against[str(theirs)].mean:.4f}</td>" in text
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


def test_what_features_know_is_in_the_card_too(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"trained": Row.of([0.5, 0.75]), "random": Row.of([0.25, 0.25])}
    found = Report(
        checkpoint="step-7",
        samples={"held-out": 48},
        metric="linear accuracy",
        against={"no model": Row.of([0.3])},
        **rows,
    )
    (tmp_path / "evaluation.json").write_text(found.model_dump_json(by_alias=True))
    (report,) = reports(tmp_path)
    assert "<th>linear accuracy in %</th>" in table(report)
    assert "<tr><td>this model</td><td>62.50</td><td>17.68</td></tr>" in table(report)
    assert "<tr><td>no model</td><td>30.00</td><td>-</td></tr>" in table(report)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"checkpoint": "a", "metric": "F1", "samples": {}, "trained": {"mean": NaN}}',
        '{"metric": "F1"}',
        '{"features": {}}',
    ],
)
def test_a_file_that_is_no_such_result_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    assert reports(tmp_path) == []
    assert "## What it has learned" not in card(scores=reports(tmp_path))


def test_each_suite_has_a_table_in_the_card(tmp_path: Path) -> None:
    suites = [
        Report(
            checkpoint="runs/ours",
            samples={"questions": 900},
            metric=f"accuracy of {name}",
            over="questions",
            trained=Row(mean=mean, spread=0.015),
            against={"them/other": Row(mean=0.25, spread=0.014)},
        )
        for name, mean in (("belebele_ukr_Cyrl", 0.3), ("multiblimp_ukr", 0.75))
    ]
    (tmp_path / "evaluation-suites.json").write_text(SuitesReport(suites=tuple(suites)).as_json())
    text = card(scores=reports(tmp_path))
    assert "<th>accuracy of belebele_ukr_Cyrl in %</th>" in text
    assert "<tr><td>this model</td><td>75.00</td><td>1.50</td></tr>" in text
    assert "ours, on 900 questions." in text
