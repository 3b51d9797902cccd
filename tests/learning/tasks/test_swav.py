"""SwAV as a task: on pictures that the tests draw themselves."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.images import decode
from dedloc_kit.learning.data.sources.data_issues import Loss
from dedloc_kit.learning.models.resnet import SwavModel, calibrated
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.features.assignments import sinkhorn
from dedloc_kit.learning.tasks.features.neighbours import knn_accuracy, neighbour_samples
from dedloc_kit.learning.tasks.swav import Swav
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.records.evaluation import Neighbours
from tests.batches import batches_from
from tests.learning.tasks.swav_run import run_of
from tests.pictures import CLASSES, draw, encoded, striped, write_pictures

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("striped")
    striped(folder, 96)
    return striped(folder, 96, "test")


def swav(folder: Path, **options: Any) -> tuple[Swav, SwavModel]:
    task = create_task(run_of(folder, **options))
    assert isinstance(task, Swav)
    model = task.model()
    assert isinstance(model, SwavModel)
    return task, model


def batches(task: Swav, microbatch: int = 16, seed: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    return batches_from(task, microbatch, seed, print)


def test_peers_share_nothing_but_parameters(folder: Path) -> None:
    _, model = swav(folder)
    assert list(model.buffers()) == [], "statistics would be part of the state that newcomers download"


def test_a_batch_has_pictures_and_what_is_to_be_cut_from_them(folder: Path) -> None:
    task, _ = swav(folder)
    first, other = (next(batches(task, seed=seed)) for seed in (1, 2))
    assert first["pictures"].shape == (16, 3, 16, 16)
    assert (first["large"].shape, first["small"].shape) == ((16, 2, 10), (16, 2, 10))
    assert not torch.equal(first["large"], other["large"])


def test_a_broken_picture_is_a_bad_row_of_the_data_and_the_others_are_trained_on(tmp_path: Path) -> None:
    files = [encoded(draw(number)) for number in range(9)]
    write_pictures(tmp_path / "train.parquet", [*files[:6], files[6][:-100], *files[7:]], [0] * 9)
    striped(tmp_path, 8, "test")
    task, _ = swav(tmp_path)
    told: list[str] = []
    stream = batches_from(task, 8, 1, told.append)
    found = torch.cat([next(stream)["pictures"] for _ in range(8)])
    good = [torch.tensor(decode(data, 16)).permute(2, 0, 1) for data in (*files[:6], *files[7:])]
    assert all(any(torch.equal(picture, each) for each in good) for picture in found)
    assert all(any(torch.equal(picture, each) for picture in found) for each in good)
    (loss,) = told
    assert isinstance(loss, Loss), "so the volunteer tells it"
    assert (loss.losses.files, loss.losses.bad_rows) == (1, 1)


def test_training_learns_on_held_out_pictures_too(folder: Path) -> None:
    task, model = swav(folder)
    run = task.run
    optimizer = build_optimizer(run.optimizer, task.groups(model))
    before = task.evaluate(model)
    stream = batches(task, 32)
    for step in range(30):
        task.loss(model, task.prepare(next(stream)), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.evaluate(model)
    assert after.loss < before.loss - 0.05
    assert after == task.evaluate(model), "it sees the same crops every time"
    assert set(after.metrics) == {"k-NN accuracy"}


def test_prototypes_get_no_gradient_while_they_are_frozen(folder: Path) -> None:
    task, model = swav(folder, freeze_prototypes_steps=3)
    batch = next(batches(task))
    task.loss(model, task.prepare(batch), 2).mean.backward()
    assert model.prototypes.grad is None
    task.loss(model, task.prepare(batch), 3).mean.backward()
    assert model.prototypes.grad is not None
    assert float(model.prototypes.grad.norm()) > 0


def test_a_step_turns_prototypes_as_the_papers_step_and_normalisation_do(folder: Path) -> None:
    """To the first order in the rate; the paper's gradient is that of scores = embeddings @ prototypes."""
    _, model = swav(folder)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(20, 8, generator=generator))
    target = torch.rand(20, 12, generator=generator).softmax(1)
    unit = torch.nn.functional.normalize(model.prototypes.detach())

    def step(scores: torch.Tensor, weights: torch.Tensor, rate: float) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(-(target * (scores / 0.1).log_softmax(1)).sum(1).mean(), weights)
        return torch.nn.functional.normalize(weights.detach() - rate * gradient)

    papers = unit.clone().requires_grad_()
    errors = []
    for rate in (0.02, 0.01):
        expected = step(embeddings @ papers.T, papers, rate)
        found = step(model.scores(embeddings), model.prototypes, rate)
        errors.append(float((expected - found).norm() / (expected - unit).norm()))
    assert errors[0] < 0.02
    assert errors[1] < 0.6 * errors[0], "what is left falls with the rate"


def test_a_longer_prototype_does_not_score_higher(folder: Path) -> None:
    _, model = swav(folder)
    embeddings = torch.nn.functional.normalize(torch.randn(4, 8))
    before = model.scores(embeddings)
    with torch.no_grad():
        model.prototypes.mul_(7.0)
    torch.testing.assert_close(model.scores(embeddings), before)


def test_the_queue_is_local_and_used_from_its_step_on(folder: Path) -> None:
    (task, model), (late_task, _) = swav(folder), swav(folder, queue_start_step=6)
    stream = batches(task)
    several = [next(stream) for _ in range(3)]

    def losses(task: Swav, *steps: int) -> list[float]:
        return [
            task.loss(model, task.prepare(batch), step).mean.item() for batch, step in zip(several, steps, strict=False)
        ]

    always, late = losses(task, 5, 5, 5), losses(late_task, 5, 5, 5)
    assert always[:2] == late[:2], "until it has filled up it changes nothing"
    assert always[2] != late[2]
    assert losses(swav(folder, queue_start_step=6)[0], 5, 5, 6) == always
    assert losses(task, 40) == always[:1], "who has caught up begins with an empty one"


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_microbatch_that_is_not_finite_leaves_the_queue_as_it_is(folder: Path, bad: int) -> None:
    """Whether the queue is empty, filling up or full: 32 features are two microbatches."""
    (task, model), (spared, _) = swav(folder), swav(folder)
    stream = batches(task)
    several = [next(stream) for _ in range(4)]
    broken = copy.deepcopy(model)
    with torch.no_grad():
        next(broken.backbone.parameters()).fill_(math.nan)
    losses = []
    for number, batch in enumerate(several):
        if number == bad:
            assert task.loss(broken, task.prepare(batch), 5).mean.isnan()
        losses.append(task.loss(model, task.prepare(batch), 5).mean.item())
    assert losses == pytest.approx(
        [spared.loss(model, spared.prepare(batch), 5).mean.item() for batch in several], rel=1e-4
    )


def test_a_small_microbatch_with_a_queue_is_assigned_as_in_a_large_batch(folder: Path) -> None:
    task, model = swav(folder)
    embeddings = torch.nn.functional.normalize(torch.randn(36, 8, generator=torch.Generator().manual_seed(0)))
    earlier, own = embeddings[:32], embeddings[32:]
    (together,) = task._assignments(model, [embeddings], [])
    (with_queue,) = task._assignments(model, [own], [earlier])
    (alone,) = task._assignments(model, [own], [])
    torch.testing.assert_close(with_queue, together[32:])
    assert float((alone - together[32:]).abs().max()) > 0.1


@pytest.mark.parametrize("iterations", [1, 3])
def test_assignments_are_balanced_as_often_as_the_run_says(folder: Path, iterations: int) -> None:
    task, model = swav(folder, sinkhorn_iterations=iterations)
    embeddings = torch.nn.functional.normalize(torch.randn(32, 8, generator=torch.Generator().manual_seed(0)))
    (assigned,) = task._assignments(model, [embeddings], [])
    expected = {n: sinkhorn(model.scores(embeddings), task.options.epsilon, n) for n in (1, 3)}
    torch.testing.assert_close(assigned, expected.pop(iterations))
    (other,) = expected.values()
    assert float((assigned - other).abs().max()) > 1e-3


def test_features_of_a_calibrated_model_do_not_depend_on_the_neighbours(folder: Path) -> None:
    _, model = swav(folder)
    pictures = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    fixed = calibrated(model, pictures.split(16))
    assert list(model.buffers()) == []
    with torch.no_grad():
        torch.testing.assert_close(fixed.features(pictures[:4]), fixed.features(pictures)[:4])
        assert not torch.allclose(model.features(pictures[:4]), model.features(pictures)[:4])
        norm = fixed.backbone.embedder.embedder.normalization
        convolved = fixed.backbone.embedder.embedder.convolution(pictures)
    torch.testing.assert_close(norm.running_mean, convolved.mean((0, 2, 3)), atol=1e-5, rtol=1e-4)


def test_one_picture_at_a_time_trains_too(folder: Path) -> None:
    task, model = swav(folder)
    for batch in (next(batches(task, 1)), next(batches(task, 1, seed=2))):
        loss = task.loss(model, task.prepare(batch), 0).mean
        loss.backward()
        assert loss.isfinite()


def test_a_copy_of_the_task_for_another_peer_has_a_queue_of_its_own(folder: Path) -> None:
    task, model = swav(folder)
    other, _ = swav(folder)
    batch = next(batches(task, 32))
    for _ in range(2):
        task.loss(model, task.prepare(batch), 0)
    assert task._queue.before(0)
    assert not other._queue.before(0)


def test_neighbours_vote_by_closeness() -> None:
    angles = torch.tensor([0.0, 0.1, -0.12]).repeat(2) + math.pi * torch.tensor([0, 0, 0, 1, 1, 1])
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    apart, mixed = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 0])
    assert knn_accuracy(features, apart, 5) == 1.0, "two near ones outweigh three far ones"
    assert knn_accuracy(features, mixed, 1) == pytest.approx(5 / 6)
    assert knn_accuracy(features + 100.0, mixed, 1) == pytest.approx(5 / 6), "what all have in common says nothing"
    assert knn_accuracy(features, torch.tensor([0, 1, 2, 3, 4, 5]), 1) == 0.0, "nobody votes on itself"


def test_an_evaluation_shows_a_picture_of_each_class_with_those_nearest_to_it(folder: Path) -> None:
    task, model = swav(folder)
    evaluation = task.evaluate(model)
    held_out = task._evaluation_pictures()
    samples = [sample for sample in evaluation.samples if isinstance(sample, Neighbours)]
    assert sorted(sample.label for sample in samples) == ["0", "1", "2", "3"]
    shown = {picture.digest: picture for picture in evaluation.pictures}
    assert shown.keys() == {digest for sample in samples for digest in sample.pictures}
    pixels = {picture.permute(1, 2, 0).numpy().tobytes() for picture in held_out.pictures}
    assert {picture.pixels for picture in shown.values()} <= pixels, "as large as they are: they are small"
    for sample in samples:
        similar = [near.similarity for near in sample.nearest]
        assert len(similar) == 5
        assert similar == sorted(similar, reverse=True)
        assert sample.picture not in [near.picture for near in sample.nearest], "none is its own neighbour"


def test_large_pictures_are_shown_small_and_long_names_short() -> None:
    pictures = torch.zeros(3, 3, 100, 100, dtype=torch.uint8)
    pictures[1, 0] = 255
    features = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0]])
    samples, shown = neighbour_samples(features, pictures, ["x" * 99, "", "y"], torch.tensor([0]), 8)
    assert [near.label for near in samples[0].nearest] == ["", "y"]
    assert samples[0].label == "x" * 64
    assert {picture.side for picture in shown} == {48}
    assert next(each for each in shown if each.digest == samples[0].nearest[0].picture).pixels == b"\xff\0\0" * 48**2


def test_held_out_pictures_of_one_class_say_what_to_do(tmp_path: Path) -> None:
    files: list[bytes | None] = [encoded(draw(number)) for number in range(8)]
    write_pictures(tmp_path / "train.parquet", files, [3] * 8)
    write_pictures(tmp_path / "test.parquet", files, [3] * 8)
    task, model = swav(tmp_path)
    with pytest.raises(UserError, match=r"first 8 labelled pictures of .* are not of two classes or more; choose held"):
        task.evaluate(model)


def test_held_out_data_without_a_picture_says_what_to_do(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_pictures(tmp_path / f"{split}.parquet", [b"broken", None], [0, 1])
    task, model = swav(tmp_path)
    with pytest.raises(UserError, match="first 0 labelled pictures"):
        task.evaluate(model)
    with pytest.raises(UserError, match=r"not a single sample .*train.parquet holds no picture"):
        next(batches(task))


def test_fewer_pictures_than_the_batch_come_again_in_new_crops(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train.parquet", [encoded(draw(number)) for number in range(3)], [0, 1, 2])
    task, model = swav(tmp_path)
    batch = next(batches(task, 16))
    assert len(batch["pictures"]) == 16
    assert len({tuple(row.tolist()) for row in batch["large"][:, 0]}) == 16
    assert task.loss(model, task.prepare(batch), 0).mean.isfinite()


def test_classes_may_be_words(tmp_path: Path) -> None:
    files: list[bytes | None] = [encoded(draw(number)) for number in range(12)]
    write_pictures(tmp_path / "test.parquet", files, [f"class {number % CLASSES}" for number in range(12)])
    write_pictures(tmp_path / "train.parquet", files, [0] * 12)
    task, _ = swav(tmp_path)
    held_out = task._evaluation_pictures()
    assert sorted(held_out.labels.tolist()) == sorted([0, 1, 2, 3] * 3)
    assert held_out.classes == ["class 0", "class 1", "class 2", "class 3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue_lenght": 1}, "task.queue_lenght is not a known key; did you mean 'queue_length'"),
        ({"augmentation": {"hew": 0.1}}, "task.augmentation.hew is not a known key; did you mean 'hue'"),
        ({"global_crops": {"count": 1, "size": 16, "scale": [0.5, 1.0]}}, "task.global_crops.count must be at least 2"),
        (
            {"local_crops": {"count": 1, "size": 16, "scale": [0.9, 0.5]}},
            "task.global_crops.scale and local_crops.scale are two shares",
        ),
        ({"model": {"depths": [1]}}, "task.model.depths must have as many entries as task.model.hidden_sizes"),
        ({"temperature": 0}, "task.temperature: input should be greater than 0"),
    ],
)
def test_wrong_options_are_named(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        create_task(run_of(folder, **options))
    assert str(caught.value).startswith(message)
