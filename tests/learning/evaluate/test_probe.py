"""`dedloc evaluate` of a run on pictures: what features know of classes that nobody taught the model."""

import json
from pathlib import Path

import pytest
import torch

from dedloc_kit.cli.main import main
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.probe import evaluate, linear_accuracy, random_makers
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import ProbeSettings
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.records.state import StateInfo
from tests.learning.tasks.swav_run import run_of
from tests.pictures import CLASSES, draw, encoded, striped, write_pictures

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ProbeSettings(seeds=2, epochs=5, batch=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("striped")
    striped(folder, 48)
    return striped(folder, 48, "test")


def checkpoint(run: RunConfig, path: Path) -> Path:
    """As the coordinator leaves one; of weights that `model` does not make."""
    model = create_task(run).model()
    weights = {f"model.{name}": parameter.detach() + 0.01 for name, parameter in model.named_parameters()}
    save(path, weights, StateInfo(run_id=run.run_id, step=7, rounds=()))
    return path


def blobs(seed: int, samples: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes far apart, in four dimensions of which the last is the same for all."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    features = torch.randn(samples, 4, generator=generator) + 5 * torch.nn.functional.one_hot(labels, 4)
    features[:, 3] = 2.0
    return features, labels


def test_a_linear_classifier_tells_what_can_be_told_at_any_scale() -> None:
    (train, labels), (test, truth) = blobs(1), blobs(2)
    assert linear_accuracy(train, labels, test, truth, QUICK, seed=1) > 0.97
    scaled = linear_accuracy(1000 * train + 7, labels, 1000 * test + 7, truth, QUICK, seed=1)
    assert scaled == linear_accuracy(train, labels, test, truth, QUICK, seed=1)
    mixed = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))]
    assert linear_accuracy(train, mixed, test, truth, QUICK, seed=1) < 0.6, "nothing was there to learn"


def test_a_class_that_is_only_held_out_counts_as_wrong() -> None:
    (train, labels), (test, truth) = blobs(1), blobs(2)
    known = labels < 2
    assert linear_accuracy(train[known], labels[known], test, truth, QUICK, seed=1) == pytest.approx(2 / 3, abs=0.03)


def test_a_run_is_scored_by_neighbours_and_linear_classifiers_beside_random_weights_and_pixels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(folder)
    path = checkpoint(run, tmp_path / "step-7.safetensors")
    found = evaluate(str(path), QUICK, Session("cpu", 1, as_json=True), run, create_task(run), baseline=True)
    assert [(name, len(row.knn.scores), len(row.scores)) for name, row in found.rows if row.knn is not None] == [
        (str(path), 1, 2),
        ("random weights", 2, 2),
        ("no model", 1, 2),
    ]
    out, said = capsys.readouterr()
    result = json.loads(out)
    assert result["samples"] == {"train": 48, "held-out": 48}
    assert result["metric"] == "linear accuracy"
    trained = found.trained
    assert tuple(result["trained"]["scores"]) == trained.scores
    assert trained.knn is not None
    assert result["trained"]["k-NN accuracy"] == {
        "scores": list(trained.knn.scores),
        "mean": trained.knn.mean,
        "spread": None,
    }
    assert result["margin"] == trained.mean - result["random"]["mean"]
    assert list(result["against"]) == ["no model"]
    for words in ("48 training and 48 held-out samples, 4 classes", "seed 2 of 2: linear", "random weights"):
        assert words in said
    again = evaluate(str(path), QUICK, Session("cpu", 1), run, create_task(run))
    assert again.trained == trained, "the same settings give the same scores"


def test_random_weights_are_others_for_each_seed_and_the_same_for_the_same_seed(folder: Path) -> None:
    run = run_of(folder)
    task = create_task(run)
    pictures, _ = next(task.labelled(held_out=True))
    # Their features, not their accuracies: on few pictures two networks may well have the same one.
    first, second = (maker(pictures) for maker in random_makers(run, 2, torch.device("cpu")))
    (again,) = (maker(pictures) for maker in random_makers(run, 1, torch.device("cpu")))
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_the_accuracy_among_neighbours_is_the_one_that_the_page_shows(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder)
    task = create_task(run)
    report = evaluate(str(checkpoint(run, tmp_path / "s.safetensors")), QUICK, Session("cpu", 1), run, task)
    model = task.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    assert report.trained.knn is not None
    assert report.trained.knn.scores == (task.evaluate(model).metrics["k-NN accuracy"],)


def test_training_pictures_of_one_class_say_what_to_do(tmp_path: Path) -> None:
    striped(tmp_path, 24, "test")
    write_pictures(tmp_path / "train.parquet", [encoded(draw(CLASSES * number)) for number in range(8)], [0] * 8)
    run = run_of(tmp_path)
    with pytest.raises(UserError, match=r"the 8 training samples have one class or none; .* in a mixed order"):
        evaluate(str(checkpoint(run, tmp_path / "s.safetensors")), QUICK, Session("cpu", 1), run, create_task(run))


def test_options_for_language_models_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        f"""name = "swav"
global_batch = 32
task = {{ name = "swav" }}
data = {{ train = [{{ dataset = "{folder}", column = "image" }}] }}
optimizer = {{ name = "lars", learning_rate = 1.0, warmup_steps = 1, total_steps = 2 }}
"""
    )
    assert main(["evaluate", "x.safetensors", "--run", str(run), "--max-length", "64"]) == 2
    assert "--max-length is for language models; leave it out" in capsys.readouterr().err
