import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.activations import NewGELUActivation

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.task import create_task, parse_options
from dedloc_kit.learning.tasks.albert import Albert
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.records.evaluation import FillMask
from tests.batches import batches_from

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]
MODEL = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(0)
    texts = [". ".join(" ".join(generator.choice(WORDS, size=6)) for _ in range(10)) + "." for _ in range(120)]
    for split, part in (("train", texts[:100]), ("test", texts[100:])):
        (folder / "corpus").mkdir(exist_ok=True)
        parquet.write_table(pyarrow.table({"text": part}), folder / f"corpus/{split}-00000-of-00001.parquet")
    train_tokenizer(iter(texts), 100, folder / "tokenizer")
    return folder


def configure(folder: Path, model: dict[str, Any] | None = None, evaluation: bool = True, **task: Any) -> RunConfig:
    source = {"dataset": str(folder / "corpus")}
    data: dict[str, Any] = {"train": [source]}
    if evaluation:
        data["evaluation"] = {**source, "split": "test"}
    options = {"tokenizer": str(folder / "tokenizer"), "sequence_length": 32, "evaluation_samples": 40, **task}
    return parse_run(
        {
            "name": "tiny",
            "global_batch": 16,
            "task": {"name": "albert", "model": {**MODEL, **(model or {})}, **options},
            "data": data,
            "optimizer": {"warmup_steps": 1, "total_steps": 10},
        }
    )


def test_every_parameter_is_in_one_group_and_only_matrices_decay(folder: Path) -> None:
    task = create_task(configure(folder))
    model = task.model()
    decayed, exempt = task.groups(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert sorted(id(parameter) for group in (decayed, exempt) for parameter in group["params"]) == sorted(names)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.01, 0.0)
    assert all(
        "bias" in names[id(p)] or "LayerNorm" in names[id(p)] or "layer_norm" in names[id(p)] for p in exempt["params"]
    )
    assert not any("bias" in names[id(p)] or "ayer_norm" in names[id(p)] for p in decayed["params"])


def loss_by_hand(task: Albert, model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, int]:
    """The sum over all labels, with the order of each sample as much as those that a full sample has; and how many."""
    output = model(**batch)
    of_labels = functional.cross_entropy(
        output.prediction_logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"
    )
    of_order = functional.cross_entropy(output.sop_logits, batch["sentence_order_label"], reduction="sum")
    factor = task.options.mlm_probability * task.options.sequence_length
    return (of_labels + factor * of_order).item(), int((batch["labels"] != -100).sum())


def test_the_loss_has_a_sum_over_labels_and_one_over_samples(folder: Path) -> None:
    task = create_task(configure(folder))
    model = task.model().eval()
    batch = next(batches_from(task, 8, seed=0, warn=fail))
    assert all(len(values) == 8 for values in batch.values())
    assert isinstance(task, Albert)
    loss = task.loss(model, task.prepare(batch), 0)
    total, labels = loss_by_hand(task, model, batch)
    assert (loss.total.item(), loss.weight) == pytest.approx((total, labels), rel=1e-6)
    tokens = len(load_tokenizer(str(folder / "tokenizer")))
    assert abs(loss.mean.item() - math.log(tokens) - math.log(2)) < 0.5
    loss.mean.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_activation_is_that_of_albert_in_a_faster_form(folder: Path) -> None:
    task = create_task(configure(folder))
    model: Any = task.model().eval()
    batch = next(batches_from(task, 4, seed=0, warn=fail))
    model.config.hidden_act = "gelu_new"
    original = type(model)(model.config).eval()
    original.load_state_dict(model.state_dict())
    assert type(original.albert.encoder.albert_layer_groups[0].albert_layers[0].activation) is NewGELUActivation
    torch.testing.assert_close(
        task.loss(model, task.prepare(batch), 0).mean, task.loss(original, task.prepare(batch), 0).mean
    )


def test_what_is_evaluated_is_held_out_data_and_not_that_which_it_trains_on(folder: Path) -> None:
    task = create_task(configure(folder))
    assert isinstance(task, Albert)
    evaluated = {tuple(row) for batch in task._evaluation_batches() for row in batch["input_ids"].tolist()}
    path = folder / "corpus" / "train-00000-of-00001.parquet"
    before = path.read_bytes()
    try:
        parquet.write_table(pyarrow.table({"text": ["rain. rain. rain. rain."] * 100}), path)
        other = create_task(configure(folder))
        assert isinstance(other, Albert)
        again = {tuple(row) for batch in other._evaluation_batches() for row in batch["input_ids"].tolist()}
    finally:
        path.write_bytes(before)
    assert again == evaluated


def test_what_is_evaluated_is_the_loss_and_how_often_the_model_is_right(folder: Path) -> None:
    task = create_task(configure(folder, evaluation_samples=40))
    model = task.model()
    evaluation = task.evaluate(model)
    assert isinstance(task, Albert)
    model.eval()
    losses, words, orders = list[tuple[float, int]](), [], []
    for batch in task._evaluation:
        with torch.no_grad():
            output = model(**batch)
            losses.append(loss_by_hand(task, model, batch))
        masked = batch["labels"] != -100
        words += (output.prediction_logits.argmax(-1) == batch["labels"])[masked].tolist()
        orders += (output.sop_logits.argmax(-1) == batch["sentence_order_label"]).tolist()
    totals, labels = zip(*losses, strict=True)
    assert evaluation.loss == pytest.approx(sum(totals) / sum(labels), abs=1e-5)
    assert evaluation.metrics == {
        "masked accuracy": pytest.approx(np.mean(words)),
        "sentence order accuracy": pytest.approx(np.mean(orders)),
    }
    assert all(isinstance(sample, FillMask) and sample.truth.strip() for sample in evaluation.samples)


def test_a_few_steps_lower_the_training_and_the_held_out_loss(folder: Path) -> None:
    task = create_task(configure(folder))
    model = task.model()
    optimizer = Lamb(task.groups(model), lr=0.05)
    before = task.evaluate(model).loss
    losses = []
    with Prefetch(batches_from(task, 16, seed=0, warn=fail), size=4) as batches:
        for _ in range(12):
            loss = task.loss(model, task.prepare(next(batches)), 0).mean
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert sum(losses[-3:]) / 3 < losses[0] - 0.3
    assert task.evaluate(model).loss < before - 0.3


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        ({"hiden_size": 8}, {}, "task.model.hiden_size is not a known key; did you mean 'hidden_size'"),
        ({"hidden_size": 33}, {}, "task.model.hidden_size must be a multiple of task.model.num_attention_heads"),
        ({"hidden_size": "big"}, {}, "task.model.hidden_size: input should be a valid integer"),
        ({}, {"sequence_lenght": 8}, "task.sequence_lenght is not a known key; did you mean 'sequence_length'"),
        ({}, {"sequence_length": 128}, "task.sequence_length must be at most task.model.max_position_embeddings"),
        ({}, {"tokenizer": "/nowhere"}, "the tokenizer /nowhere does not exist; make one with: dedloc prepare"),
    ],
)
def test_a_wrong_option_names_the_key_and_the_fix(
    folder: Path, model: dict[str, Any], task: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        create_task(configure(folder, model, **task))


@pytest.mark.parametrize(("name", "hint"), [("albrt", "did you mean 'albert'"), ("poetry", "choose one of: albert")])
def test_an_unknown_task_names_those_there_are(folder: Path, name: str, hint: str) -> None:
    run = configure(folder)
    with pytest.raises(UserError, match=hint):
        create_task(run.model_copy(update={"task": run.task.model_copy(update={"name": name})}))


def test_the_recipe_of_the_demo_is_valid() -> None:
    from dedloc_kit.config.loading import load_run
    from dedloc_kit.learning.tasks.albert import AlbertOptions
    from dedloc_kit.resources import recipe

    options = parse_options(load_run(recipe("albert-demo") / "run.toml"), AlbertOptions)
    assert options.model.num_hidden_layers == 2


def test_an_export_is_what_transformers_loads_and_its_code_works_as_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = create_task(configure(folder))
    model: Any = task.model().eval()
    usage = task.export(model, tmp_path, str(tmp_path))
    assert usage is not None
    assert (usage.library, usage.pipeline) == ("transformers", "fill-mask")
    assert not [path for path in tmp_path.iterdir() if path.suffix in {".bin", ".pt", ".pkl", ".py"}]

    tokens = AutoTokenizer.from_pretrained(tmp_path)("river bank", return_tensors="pt")
    with torch.inference_mode():
        expected = model(**tokens)
        hidden = AutoModel.from_pretrained(tmp_path)(**tokens)
        scores = AutoModelForMaskedLM.from_pretrained(tmp_path)(**tokens)
        assert torch.equal(hidden.pooler_output, model.albert(**tokens).pooler_output)
    assert torch.equal(scores.logits, expected.prediction_logits)

    exec(usage.code, {})
    assert "token_str" in capsys.readouterr().out
