import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertForPreTraining

from dedloc_kit.cli import main as cli
from dedloc_kit.config.loading import load_run
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate import finetune
from dedloc_kit.learning.evaluate.dataset import load_dataset
from dedloc_kit.learning.evaluate.finetune import evaluate
from dedloc_kit.learning.evaluate.pretrained import Pretrained, as_folder
from dedloc_kit.learning.evaluate.problems import Ner
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import Settings
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.records.state import StateInfo
from tests.learning.evaluate.language import write_news

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK: dict[str, Any] = {"learning_rate": 0.01, "batch": 8, "epochs": 3, "seeds": 2}

RUN = """
name = "tiny"
global_batch = 8
[task]
name = "albert"
tokenizer = "./tokenizer"
sequence_length = 32
[task.model]
embedding_size = 16
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32
[[data.train]]
dataset = "./corpus"
"""


def test_a_language_whose_tags_follow_from_the_words_is_learned(
    model: Path, entities: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(model), "--dataset", str(entities), "--baseline", "--json"]
    for name, value in QUICK.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    assert cli.main([*arguments, "--device", "cpu", "--threads", "1"]) == 0
    out, said = capsys.readouterr()
    result = json.loads(out)
    for weights in ("trained", "random"):
        row = result[weights]
        assert len(row["scores"]) == 2
        assert row["mean"] == pytest.approx(sum(row["scores"]) / 2)
        assert row["spread"] == pytest.approx(abs(row["scores"][0] - row["scores"][1]) / 2**0.5)
        assert min(row["scores"]) > 0.9, said
        shown = str(model) if weights == "trained" else "random weights"
        assert f"{shown}, seed 2 of 2: F1 {100 * row['scores'][1]:.2f} %" in said
    assert result["margin"] == pytest.approx(result["trained"]["mean"] - result["random"]["mean"])
    assert result["samples"] == {"train": 96, "validation": 16, "test": 32}
    better = "better" if result["margin"] > 0 else "no better"
    assert f"against random weights: {100 * result['margin']:+.2f} points, {better} (ahead in " in said


def test_texts_are_classified(model: Path, tmp_path: Path) -> None:
    news = write_news(tmp_path / "news", {"train": 64, "test": 32})
    settings = Settings(task="classification", dataset=str(news), **QUICK)
    result = evaluate(str(model), settings, Session("cpu", 1))
    assert min(result.trained.scores) > 0.9
    assert result.random is None


def test_models_are_fine_tuned_side_by_side_with_the_same_samples_and_seeds(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    news = write_news(tmp_path / "news", {"train": 32, "test": 32})
    twin = shutil.copytree(model, tmp_path / "twin")
    settings = Settings(task="classification", dataset=str(news), **{**QUICK, "epochs": 1})
    result = evaluate(str(model), settings, Session("cpu", 1, as_json=True), against=[str(twin)])
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["against"][str(twin)]["scores"] == told["trained"]["scores"] == list(result.trained.scores)
    said = " ".join(err.split())
    assert f"against {twin}: +0.00 points, no better (ahead in 0 of 2 seeds)" in said


def prepare(model: Path, settings: Settings) -> tuple[Pretrained, Ner, finetune.Samples]:
    pretrained = Pretrained(str(model), settings.max_length)
    data = load_dataset(settings, Ner.check, print)
    problem = Ner(pretrained.tokenizer, pretrained.max_length, data.train)
    return pretrained, problem, finetune.encode(data, problem)


def test_the_same_seed_gives_the_same_fine_tuning_and_another_seed_another(model: Path, entities: Path) -> None:
    settings = Settings(dataset=str(entities), learning_rate=0.01, batch=8, epochs=1)
    pretrained, problem, samples = prepare(model, settings)
    state = torch.get_rng_state()

    def losses(seed: int) -> list[float]:
        found: list[float] = []
        with finetune.seeded(seed):
            fresh = pretrained.model(problem, random_weights=True)
            finetune.fine_tune(fresh, problem, samples, settings, seed, lambda epoch, loss: found.append(loss))
        return found

    first = losses(1)
    assert len(first) == 12 == finetune.steps_of(samples, settings)
    assert losses(1) == first
    assert losses(2) != first
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_language_is_learned_too(model: Path, entities: Path, half: torch.dtype) -> None:
    settings = Settings(dataset=str(entities), **QUICK)
    pretrained, problem, samples = prepare(model, settings)

    def learned(half: torch.dtype | None, settings: Settings) -> tuple[float, list[float]]:
        losses: list[float] = []
        with finetune.seeded(1):
            fresh = pretrained.model(problem, random_weights=False)
            score = finetune.fine_tune(fresh, problem, samples, settings, 1, lambda _, loss: losses.append(loss), half)
        return score, losses

    score, losses = learned(half, settings)
    assert score > 0.9
    first = learned(None, settings.model_copy(update={"epochs": 1}))[1][0]
    assert losses[0] == pytest.approx(first, rel=0.02)
    assert losses[0] != first


def test_the_epoch_that_does_best_on_the_validation_split_is_scored_on_the_test_split(
    model: Path, entities: Path
) -> None:
    settings = Settings(dataset=str(entities), **QUICK)
    pretrained, problem, samples = prepare(model, settings)
    scored: list[tuple[int, torch.Tensor]] = []
    fresh = pretrained.model(problem, random_weights=False)

    class Scripted(Ner):
        @staticmethod
        def score(truth: list[Any], predicted: list[Any]) -> float:
            scored.append((len(truth), next(fresh.parameters()).detach().clone()))
            return [0.2, 0.9, 0.5, 0.4][len(scored) - 1]

    examples = [sample.example for sample in samples.train]
    scripted = Scripted(pretrained.tokenizer, pretrained.max_length, examples)
    assert finetune.fine_tune(fresh, scripted, samples, settings, 0, lambda epoch, loss: None) == 0.4
    assert [size for size, _ in scored] == [16, 16, 16, 32]
    weights = [tensor for _, tensor in scored]
    assert torch.equal(weights[3], weights[1])
    assert not torch.equal(weights[3], weights[2])


def test_fine_tuning_starts_from_the_weights_of_the_checkpoint_or_from_random_ones(model: Path) -> None:
    pretrained = Pretrained(str(model), 128)
    assert pretrained.max_length == 64
    problem = Ner(pretrained.tokenizer, 64, [example for example in [Ner.check(["a", "b"], ["O", "B-PER"])] if example])
    saved: Any = AlbertForPreTraining.from_pretrained(model)
    heads = []
    for seed in (1, 1, 2):
        with finetune.seeded(seed):
            trained: Any = pretrained.model(problem, random_weights=False)
            fresh: Any = pretrained.model(problem, random_weights=True)
        kept = saved.albert.embeddings.word_embeddings.weight
        assert torch.equal(trained.albert.embeddings.word_embeddings.weight, kept)
        assert not torch.equal(fresh.albert.embeddings.word_embeddings.weight, kept)
        assert fresh.config.id2label == {0: "B-PER", 1: "O"}
        heads.append(trained.classifier.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_checkpoint_of_a_run_is_taken_by_the_names_of_its_weights(model: Path, tmp_path: Path, prefix: str) -> None:
    shutil.copytree(model.with_name("tokenizer"), tmp_path / "tokenizer")
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    run = load_run(tmp_path / "run.toml")
    trained = create_task(run).model()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.5)
    tensors: dict[str, torch.Tensor] = {f"{prefix}{name}": parameter for name, parameter in trained.named_parameters()}
    path = tmp_path / "step-00000003.safetensors"
    info = StateInfo(run_id=run.run_id, step=3, rounds=())
    checkpoint.save(path, tensors, info)
    with as_folder(str(path), run) as folder:
        loaded: Any = AlbertForPreTraining.from_pretrained(folder)
        assert Pretrained(folder, 128).max_length == 32
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, tensors[prefix + name]), name
    assert not Path(folder).exists()
    del tensors[next(iter(tensors))]
    checkpoint.save(path, tensors, info)
    with pytest.raises(UserError, match="name a checkpoint of this run"), as_folder(str(path), run):
        pass


def test_what_is_no_usable_checkpoint_is_told_in_one_line_with_the_fix(
    model: Path, entities: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(checkpoint: Path | str, *words: str, more: tuple[str, ...] = ()) -> None:
        assert cli.main(["evaluate", str(checkpoint), "--dataset", str(entities), "--device", "cpu", *more]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        for word in words:
            assert word in said

    refused(tmp_path / "nowhere", "does not exist; name a folder")
    refused(tmp_path / "step-1.safetensors", "weights alone", "--run RUN.toml")
    refused(tmp_path, "holds no model that transformers loads")
    refused(model, "learning_rate: input should be greater than 0", more=("--learning-rate", "0"))
    refused(model, "diverged", "lower --learning-rate", more=("--learning-rate", "1e30"))
    bare = shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    refused(bare, "has no tokenizer of its own")
    small = shutil.copytree(model, tmp_path / "small")
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 7}), encoding="utf-8")
    refused(small, "the model 7; put the tokenizer there that the model was trained with")
    (small / "config.json").write_text(json.dumps({**config, "hidden_size": 16}), encoding="utf-8")
    refused(small, "cannot be loaded", "save it again")
    other = shutil.copytree(model, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({}, other / "pytorch_model.bin")
    refused(other, "cannot be loaded", "model.safetensors")
