"""What holds for every task, through the base class alone."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.task import Batch, Example, Feature, Task, create_task, prepared, rows
from dedloc_kit.learning.train.computing.microbatch import pieces
from tests.batches import batches_from
from tests.chat_runs import chat_run, write_conversations
from tests.learning.every_task import T5
from tests.learning.tasks import bytes_run, swav_run, text_to_image_run
from tests.pictures import striped
from tests.text_runs import MODEL, text_run, write_text

pytestmark = pytest.mark.usefixtures("one_thread")

ALBERT = {**MODEL, "embedding_size": 16, "max_position_embeddings": 64}
TASKS = ("albert", "bytes", "causal", "chat", "encoder", "span-corruption", "swav", "text-to-image")
MODULE = "tests.bytes_task"

Made = Callable[..., Task]


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A task of any name, on data of its own."""
    folder = tmp_path_factory.mktemp("data")
    texts = write_text(folder)
    write_conversations(folder)
    train_tokenizer(iter(texts), 320, folder / "t5", "bpe", CAUSAL)
    text_to_image_run.write_codes(folder)
    text_to_image_run.write_picture_model(folder)
    for name in ("bytes", "striped"):
        (folder / name).mkdir()
    striped(folder / "striped", 40)
    striped(folder / "striped", 40, "test")

    def run_of(name: str, options: dict[str, Any]) -> RunConfig:
        match name:
            case "bytes":
                return bytes_run.run_of(folder / "bytes", **options)
            case "swav":
                return swav_run.run_of(folder / "striped", **{"queue_length": 0, **options})
            case "text-to-image":
                return text_to_image_run.run_of(folder, **options)
            case "chat":
                return chat_run(folder, **options)
            case "albert":
                return text_run(folder, name, model=ALBERT, **options)
            case "span-corruption":
                run = text_run(folder, "causal")
                values = {"tokenizer": str(folder / "t5"), "sequence_length": 32, "evaluation_samples": 20, "model": T5}
                return run.model_copy(update={"task": TaskConfig.model_validate({"name": name, **values, **options})})
        return text_run(folder, name, **options)

    def made(name: str, held_out: bool = True, seed: int = 0, **options: Any) -> Task:
        run = run_of(name, options)
        data = run.data if held_out else run.data.model_copy(update={"evaluation": None})
        return create_task(run.model_copy(update={"data": data, "seed": seed}), MODULE)

    return made


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


@pytest.mark.parametrize("name", TASKS)
def test_all_peers_begin_with_the_same_weights_and_the_random_state_is_left_alone(name: str, made: Made) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = made(name).model()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    two, other = made(name).model(), made(name, seed=1).model()
    assert one.training
    assert same(dict(one.named_parameters()), dict(two.named_parameters()))
    assert not same(dict(one.named_parameters()), dict(other.named_parameters()))
    assert {each.dtype for each in one.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", TASKS)
def test_every_parameter_is_in_one_group_and_gets_a_gradient(name: str, made: Made) -> None:
    task = made(name)
    model, batch = task.model(), next(batches_from(task, 4, 0, fail))
    grouped = [id(each) for group in task.groups(model) for each in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    loss = task.loss(model, prepared(task, batch, torch.device("cpu")), 0).mean
    assert loss.shape == ()
    loss.backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("name", [name for name in TASKS if name != "swav"])
def test_the_sum_and_the_weight_of_a_batch_are_those_of_its_parts(name: str, made: Made) -> None:
    """But for SwAV, which assigns within a batch."""
    task = made(name)
    model, batch = task.model().eval(), next(batches_from(task, 6, 0, fail))

    def summed(parts: Iterable[Batch]) -> tuple[float, float, dict[str, torch.Tensor]]:
        model.zero_grad()
        totals, weights = zip(*(task.loss(model, task.prepare(part), 0) for part in parts), strict=True)
        total = torch.stack(totals).sum()
        total.backward()
        gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        return float(total), sum(weights), gradients

    whole, parted = summed([batch]), summed(pieces(batch, 1))
    assert parted[:2] == pytest.approx(whole[:2], rel=1e-5)
    largest = max(float(each.abs().max()) for each in whole[2].values())
    torch.testing.assert_close(parted[2], whole[2], rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_alone_decides_the_batches(name: str, made: Made) -> None:
    one, again, other = (list(islice(batches_from(made(name), 8, seed, fail), 3)) for seed in (5, 5, 6))
    assert all(same(a, b) for a, b in zip(one, again, strict=True))
    assert not any(same(a, b) for a, b in zip(one, other, strict=True))
    assert all({len(values) for values in batch.values()} == {8} for batch in one)


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_the_same_whatever_the_microbatch(name: str, made: Made) -> None:
    def samples(microbatch: int) -> Iterator[Batch]:
        task = made(name)
        (source,) = task.run.data.train
        found = task.batches_of(in_order(source, task.read, warn=fail), microbatch, 3)
        for each in (piece for batch in found for piece in pieces(batch, 1)):
            example: Example = {name: values[0].numpy() for name, values in each.items()}
            if name == "swav":
                example["pictures"] = example["pictures"].transpose(1, 2, 0)
            yield task.collate([example])  # without what only its companions need

    one, other = (list(islice(samples(microbatch), 30)) for microbatch in (1, 7))
    assert len(one) > 9
    assert all(same(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_an_evaluation_is_always_the_same_and_leaves_everything_as_it_was(name: str, made: Made) -> None:
    task = made(name)
    model, state = task.model(), torch.get_rng_state()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    evaluation = task.evaluate(model)
    assert evaluation == task.evaluate(model) == made(name).evaluate(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert same(before, model.state_dict())
    with pytest.raises(UserError, match=r"^the run has no held-out data to evaluate on; add \[data\.evaluation\]"):
        made(name, held_out=False).evaluate(model)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_does_not_support_says_why(name: str, made: Made, tmp_path: Path) -> None:
    task = made(name)
    assert task.unsupported("checks") == "", "of these settings"
    model = task.model()
    without: dict[Feature, Callable[[], Any]] = {
        "pipeline": lambda: task.stage(0),
        "distributed_eval": task.held_out_batches,
        "to_transformers": lambda: task.to_transformers(model, tmp_path),
        "probe": lambda: task.labelled(True),
    }
    for feature in get_args(Feature):
        why = task.unsupported(feature)
        if feature in without and why.startswith(f"the task {type(task).__name__} "):
            with pytest.raises(NotImplementedError, match=f"^{why}$"):
                without[feature]()
    if task.unsupported("init_from"):
        assert same(dict(task.first_model().named_parameters()), dict(model.named_parameters()))
    assert (task.vocabulary_transfer(), task.start_loss()) == (None, None)


@pytest.mark.parametrize("name", TASKS)
def test_an_unknown_option_is_named_with_the_nearest_one(name: str, made: Made) -> None:
    said = r"^task\.evaluation_sample is not a known key; did you mean 'evaluation_samples'"
    with pytest.raises(UserError, match=said):
        made(name, evaluation_sample=3)


def test_a_group_of_samples_is_taken_apart_by_rows() -> None:
    import numpy as np

    arrays = {"ids": np.arange(6).reshape(3, 2), "label": np.arange(3)}
    assert [{name: each.tolist() for name, each in row.items()} for row in rows(arrays)] == [
        {"ids": [0, 1], "label": 0},
        {"ids": [2, 3], "label": 1},
        {"ids": [4, 5], "label": 2},
    ]
