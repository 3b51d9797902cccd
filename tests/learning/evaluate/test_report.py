"""One form for the results of all kinds of evaluations."""

import json
from typing import Any

import pytest

from dedloc_kit.learning.evaluate.report import Report, Row, Scores
from dedloc_kit.learning.evaluate.session import Session


def report(metric: str = "F1", **rows: Any) -> Report:
    settings = {"task": "ner"}
    return Report(checkpoint="ours", settings=settings, samples={"test": 4}, metric=metric, over="seeds", **rows)


def test_shares_are_in_percent_and_more_is_better() -> None:
    found = report(trained=Row.of([0.5, 0.75]), random=Row.of([0.25, 0.875]), against={"theirs": Row.of([0.75, 0.75])})
    assert found.heading == "F1 in %"
    assert found.table()[0] == {
        "F1 in %": "ours",
        "mean": "62.50",
        "spread": "17.68",
        "seed 1": "50.00",
        "seed 2": "75.00",
    }
    assert found.comparisons() == [
        "against random weights: +6.25 points, better (ahead in 1 of 2 seeds)",
        "against theirs: -12.50 points, no better (ahead in 0 of 2 seeds)",
    ]


def test_bits_are_as_they_are_and_less_is_better() -> None:
    found = report("bits per byte (pseudo)", trained=Row.of([1.5]), against={"theirs": Row.of([1.75])})
    assert found.table()[1] == {"bits per byte (pseudo)": "theirs", "mean": "1.7500", "spread": "-", "seed 1": "1.7500"}
    assert found.comparisons() == ["against theirs: -0.2500, better (ahead in 1 of 1 seeds)"]


def test_what_was_found_can_be_written_and_read_again() -> None:
    trained = Row.of([0.5, 0.75], knn=Scores.of([0.5]), per_word=7.0)
    found = report(trained=trained, against={"theirs": Row.of([0.5, 0.5])})
    values = json.loads(found.model_dump_json(by_alias=True, exclude_unset=True))
    assert values == {
        "checkpoint": "ours",
        "settings": {"task": "ner"},
        "samples": {"test": 4},
        "metric": "F1",
        "over": "seeds",
        "trained": {
            "scores": [0.5, 0.75],
            "mean": 0.625,
            "spread": pytest.approx(0.25 / 2**0.5),
            "perplexity per word": 7.0,
            "k-NN accuracy": {"scores": [0.5], "mean": 0.5, "spread": None},
        },
        "against": {"theirs": {"scores": [0.5, 0.5], "mean": 0.5, "spread": 0.0}},
        "margin": None,
    }
    assert Report.model_validate_json(found.model_dump_json(by_alias=True)) == found
    beside = report(trained=Row.of([0.5]), random=Row.of([0.25]))
    assert beside.margin == 0.25


def test_a_name_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Session("cpu", 1).finish(report(trained=Row.of([0.5]), against={"a[/b]": Row.of([0.5])}))
    assert capsys.readouterr().out.count("a[/b]") == 2


def test_as_json_it_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Session("cpu", 1, as_json=True).finish(report(trained=Row.of([0.5])))
    out, err = capsys.readouterr()
    assert json.loads(out)["trained"]["mean"] == 0.5
    assert "50.00" in err
