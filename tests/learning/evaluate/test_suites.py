"""Standard suites: the harness's own figures, on tasks that lie here and on those of the Hub."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.learning.evaluate.suite_languages import harness
from tests.learning.evaluate.language import KINDS, OTHERS, PEOPLE, PLACES, write_causal, write_masked
from tests.loopback_hub import LoopbackHub, loopback_hub

WORDS = [*PEOPLE, *PLACES, *KINDS, *OTHERS, "A", "B", "C", "D", "P", "Q", "Answer", ":"]
TASK = """\
task: near
dataset_path: json
dataset_kwargs: {data_files: {test: near.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{person}} walks near"
doc_to_choice: "{{places}}"
doc_to_target: right
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
QUESTIONS = [
    {"person": person, "places": PLACES, "right": (number + turn) % len(PLACES)}
    for turn in range(4)
    for number, person in enumerate(PEOPLE)
]
BELEBELE = "datasets/facebook/belebele"


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal(tmp_path_factory.mktemp("models") / "causal", WORDS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which one is, with a task and its data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cached"))
    (tmp_path / "near.yaml").write_text(TASK, encoding="utf-8")
    (tmp_path / "near.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS), encoding="utf-8")
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "hub") as hub:
        configs = "".join(
            f"- config_name: {language}\n  data_files: [{{split: test, path: data/{language}.jsonl}}]\n"
            for language in ("ukr_Cyrl", "swh_Latn")
        )
        rows = "".join(
            json.dumps(
                {
                    "flores_passage": f"{person} walks near {PLACES[number]} .",
                    "question": f"{person} near ",
                    **{f"mc_answer{n}": word for n, word in enumerate((*PLACES, "today"), 1)},
                    "correct_answer_num": f"{1 + number}",
                }
            )
            + "\n"
            for _ in range(4)
            for number, person in enumerate(PEOPLE)
        ).encode()
        files = {f"data/{language}.jsonl": rows for language in ("ukr_Cyrl", "swh_Latn")}
        hub.commits[BELEBELE] = [{"README.md": f"---\nconfigs:\n{configs}---\n".encode(), **files}]
        yield hub


def evaluate(*words: str | Path) -> int:
    return main(["evaluate", *map(str, words), "--device", "cpu", "--threads", "1"])


def of_the_harness(folder: Path, task: str) -> dict[str, Any]:
    """What `lm_eval` itself finds."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False, include_path=harness() / "belebele")
    result = simple_evaluate("hf", {"pretrained": str(folder)}, [task], 0, 8, device="cpu", task_manager=manager)
    (name,) = result["results"]
    found: dict[str, Any] = result["results"][name]
    return found


@pytest.mark.child
def test_figures_of_a_task_on_disk_are_those_of_lm_eval(
    causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = of_the_harness(causal, "near.yaml")
    assert evaluate(causal, "--suite", "near.yaml", "--json") == 0
    printed = capsys.readouterr()
    (report,) = json.loads(printed.out)["suites"]
    assert report["trained"]["mean"] == own["acc,none"]
    assert report["trained"]["spread"] == own["acc_stderr,none"]
    assert report["samples"] == {"questions": len(QUESTIONS)}
    assert report["settings"]["task"] == "near"
    assert "accuracy of near in %" in (said := printed.err)
    assert f"{100 * own['acc,none']:.2f} ± {100 * own['acc_stderr,none']:.2f}" in said


@pytest.mark.child
def test_a_suite_of_the_hub_is_asked_in_the_language_beside_a_model_of_the_hub(
    causal: Path, here: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_causal(here / "other", WORDS, uniform=True)
    hub.commits["them/other"] = [{path.name: path.read_bytes() for path in other.iterdir()}]
    words: list[str | Path] = [
        causal,
        "--suite",
        "belebele",
        "--suite",
        "multiblimp",
        "--language",
        "sw",
        "--against",
        "them/other",
    ]
    assert evaluate(*words, "--json") == 0
    printed = capsys.readouterr()
    (report,) = json.loads(printed.out)["suites"]
    for row, folder in ((report["trained"], causal), (report["against"]["them/other"], other)):
        own = of_the_harness(folder, "belebele_swh_Latn")
        assert (row["mean"], row["spread"]) == (own["acc,none"], own["acc_stderr,none"])
    said = " ".join(printed.err.split())
    assert "multiblimp has no questions in the language 'sw'; it is left out" in said
    assert "against them/other: " in said
    assert "accuracy of belebele_swh_Latn" in said


def test_so_many_questions_are_asked_and_a_published_model_of_the_language_is_named(
    causal: Path, here: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = hub.commits[BELEBELE][0]
    files["README.md"] = files["README.md"].replace(b"config_name: ukr_Cyrl", b"config_name: ell_Grek")
    assert evaluate(causal, "--suite", "belebele", "--language", "el", "--samples", "5") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "5 questions in " in said
    assert "--against HPLT/hplt2c_ell_checkpoints" in said


def test_a_group_is_scored_as_a_whole_with_tasks_in_files_beside_it(
    causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "far.yaml").write_text(TASK.replace("task: near", "task: far").replace("walks near", "sees"))
    group = "group: places\ntask: [near, far]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    (here / "places.yaml").write_text(group)
    scores, said = [], ""
    for suite in ("places.yaml", "near.yaml", "far.yaml"):
        assert evaluate(causal, "--suite", suite, "--json") == 0
        printed = capsys.readouterr()
        said += printed.err
        (report,) = json.loads(printed.out)["suites"]
        scores.append(report["trained"]["mean"])
    assert scores[0] == pytest.approx((scores[1] + scores[2]) / 2)
    assert "24 questions" in said


def test_what_is_no_share_is_shown_as_it_is(causal: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TASK.replace("multiple_choice", "loglikelihood_rolling").partition("doc_to_choice")[0]
    (here / "text.yaml").write_text(
        f'{text}doc_to_target: "{{{{person}}}} walks near"\nmetric_list: [{{metric: bits_per_byte}}]\n'
    )
    assert evaluate(causal, "--suite", "text.yaml") == 0
    assert "bits per byte of near" in " ".join(capsys.readouterr().out.split())


def test_that_a_model_takes_less_than_a_question_is_told(
    causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "near.yaml").write_text(TASK.replace("{{person}} walks near", "{{person}} " + 80 * "walks near "))
    assert evaluate(causal, "--suite", "near.yaml") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{causal} takes 64 tokens at once: longer questions of near lost their beginning" in said


def test_functions_of_a_task_on_disk_run_and_that_is_told(
    causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "half.py").write_text("def half(rows):\n    return rows.select(range(6))\n")
    (here / "near.yaml").write_text(f"{TASK}process_docs: !function half.half\n")
    assert evaluate(causal, "--suite", "near.yaml") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "near.yaml names functions in files beside it; they run as your own code" in said
    assert "6 questions" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--suite", "beleble", "--language", "uk"], "there is no suite 'beleble'; did you mean belebele?"),
        (["--suite", "beleble"], "did you mean belebele?"),
        (["--suite", "belebele"], "name one: --language uk"),
        (["--suite", "multiblimp", "--language", "mi"], "multiblimp has no questions in the language 'mi'; choose"),
        (["--suite", "belebele", "--language", "Kiswahili"], "is no code of ISO 639"),
        (["--suite", "gone.yaml"], "gone.yaml does not exist"),
        (["--suite", "~nobody-of-that-name/gone.yaml"], "gone.yaml does not exist"),
        (["--suite", "x" * 300 + ".yaml"], "does not exist"),
        (["--suite", "near.yaml", "--epochs", "3"], "--epochs is not for --suite; leave it out"),
        (["--suite", "near.yaml", "--baseline"], "--baseline is not for --suite; leave it out"),
        (["--language", "uk"], "--language is for --suite"),
        (["--suite", "near.yaml", "--against", "{model}"], "a model is named twice"),
        (["--suite", "near.yaml", "--against", "nowhere/at/all"], "nowhere/at/all does not exist"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], told: str, causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(causal, *(word.format(model=causal) for word in words)) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("task: near", "task: [near", "near.yaml cannot be used (ParserError: "),
        ("task: near\n", "", "it has neither a task nor a group"),
        ("near.jsonl", "gone.jsonl", "data that it names is looked for in the folder in which you are"),
        ("{{places}}", "{{place}}", "near.yaml cannot be used"),
        (
            "{metric: acc}",
            "{metric: them/evil}",
            "the metric 'them/evil' is none of the harness, and no code of the Hub",
        ),
        ("{metric: acc}", "{metric: acc, hf_evaluate: true}", "no code of the Hub is run"),
        ("[{metric: acc}, {metric: acc_norm}]", "[{metric: brier_score}]", "near is scored by brier_score"),
        ("doc_to_target: right", "doc_to_target: !function gone.gone", "near.yaml cannot be used (ImportError: "),
    ],
)
def test_a_task_that_cannot_be_used_is_told_in_one_line(
    old: str, new: str, told: str, causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in TASK
    (here / "near.yaml").write_text(TASK.replace(old, new))
    assert evaluate(causal, "--suite", "near.yaml") == 2
    said = capsys.readouterr().err
    assert told in " ".join(said.split())
    assert "Traceback" not in said


def test_a_suite_needs_the_hub(causal: Path, here: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    del hub.commits[BELEBELE]
    assert evaluate(causal, "--suite", "belebele", "--language", "uk") == 2
    assert "belebele_ukr_Cyrl cannot be read from the Hub (" in " ".join(capsys.readouterr().err.split())


def test_models_that_the_suites_cannot_ask_are_refused(
    causal: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = write_masked(here / "masked", WORDS)
    assert evaluate(masked, "--suite", "near.yaml") == 2
    assert "is no causal language model" in capsys.readouterr().err
    own = shutil.copytree(causal, here / "own")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}))
    (own / "evil.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    evaluate(own, "--suite", "near.yaml")
    assert not (here / "ran").exists(), "code of a model was run"


def test_without_the_harness_the_package_is_named(
    causal: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert evaluate(causal, "--suite", "near.yaml") == 2
    assert "pip install 'dedloc_kit[suites]'" in capsys.readouterr().err
