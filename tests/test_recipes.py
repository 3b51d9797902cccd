"""What the recipes promise: models of the size that their comments name, and a small form that learns."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import continuing
from benchmarks.lib.mixture import PlainLoop
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.experts.bank import names_of
from dedloc_kit.experts.network import Network
from dedloc_kit.learning.data.pictures.codes import Captioned, PictureCodes, write_code_shards
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.models.families import DECODERS, ENCODERS
from dedloc_kit.learning.models.parts import Part
from dedloc_kit.learning.task import create_task, parse_options
from dedloc_kit.learning.tasks.drawing.options import TextToImageOptions
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.organizer.init import PURPOSES
from dedloc_kit.resources import recipe, recipes
from tests.batches import batches_from

FAMILIES = {"causal": DECODERS, "encoder": ENCODERS}
TEXT = "the river runs to the sea, and it runs by day and by night. " * 4


def millions(run: RunConfig) -> float:
    """Parameters of a run's model, which is not made for it."""
    options = run.task.options
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), 0)
    config = FAMILIES[run.task.name].config(
        options["architecture"], options.get("model", {}), {"vocab_size": options["vocab_size"], **special}
    )
    with torch.device("meta"):
        model = FAMILIES[run.task.name].automatic.from_config(config)
    return float(sum(parameter.numel() for parameter in model.parameters())) / 1e6


def test_every_recipe_says_what_it_is_for_in_the_words_of_those_who_choose() -> None:
    assert PURPOSES.keys() == set(recipes())


@pytest.mark.parametrize("name", sorted(set(recipes()) - {"albert-demo"}))  # the demo follows no paper
def test_every_recipe_says_what_differs_from_its_paper(name: str) -> None:
    assert "\n**What differs from " in (recipe(name) / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "expected"), [("gpt", 124), ("encoder", 150)])
def test_the_model_of_a_recipe_is_as_large_as_it_says(name: str, expected: int) -> None:
    assert round(millions(load_run(recipe(name) / "run.toml"))) == expected


def test_the_larger_model_in_the_comments_is_one_too(tmp_path: Path) -> None:
    text = (recipe("gpt") / "run.toml").read_text(encoding="utf-8")
    lines = text.splitlines()
    larger = {found[1]: found[2] for line in lines if (found := re.fullmatch(r"# (\w+) = (\d+)", line))}
    assert "hidden_size" in larger
    changed = [f"{key} = {larger[key]}" if (key := line.split(" = ")[0]) in larger else line for line in lines]
    whole = "\n".join(changed).replace("vocab_size = 30000", "vocab_size = 48000")
    (tmp_path / "run.toml").write_text(whole, encoding="utf-8")
    assert round(millions(load_run(tmp_path / "run.toml"))) == 361


def test_the_pipeline_of_the_recipe_has_a_billion_parameters_in_stages_that_hold_only_their_own(tmp_path: Path) -> None:
    """Nothing is made of it: it would not fit here."""
    train_tokenizer(iter([TEXT] * 50), 300, tmp_path / "tokenizer")
    recipes_run = load_run(recipe("causal-pipeline") / "run.toml")
    task = recipes_run.task.model_copy(update={"tokenizer": str(tmp_path / "tokenizer")})
    created: Any = create_task(recipes_run.model_copy(update={"task": task}))
    cut = created.cut()
    sizes = []
    for number in (0, 1):  # the last is as large as the first, with the output in place of the embeddings
        part = Part(cut.config, *cut.bounds(number))
        stored = sum(each.numel() for each in part.layers[0].parameters())
        matrices = sum(each.numel() for each in part.layers[0].parameters() if each.ndim > 1)
        ends = sum(each.numel() for each in part.parameters() if each.ndim > 1) - 12 * matrices
        sizes.append((stored, ends * 32000 // cut.config.vocab_size))
    assert round(2 * sum(stored + ends for stored, ends in sizes) / 1e9, 2) == 1.07
    assert round(2 * sum(12 * stored + ends for stored, ends in sizes) / 1e9) == 10
    assert [round((stored + ends) / 1e6) for stored, ends in sizes] == [333, 202]


def test_the_model_that_draws_is_that_of_the_demonstration() -> None:
    run = load_run(recipe("text-to-image") / "run.toml")
    shape = parse_options(run, TextToImageOptions).shape(run.task.options["vocab_size"])
    with torch.device("meta"):
        model = DrawingTransformer(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(125.5e6, rel=0.01)
    assert (shape.layers, shape.places.codes, shape.caption) == (64, 1024, 256)


def test_the_small_form_of_the_recipe_that_draws_learns(tmp_path: Path) -> None:
    small = load_run(recipe("text-to-image") / "run.toml", recipe("text-to-image") / "smoke.toml")
    train_tokenizer(iter(["a dark tile, a light tile"] * 50), 280, tmp_path / "tokenizer")
    tokenizer, pictures = BareTokenizer(str(tmp_path / "tokenizer")), PictureCodes(**small.task.options["pictures"])
    some = [
        Captioned(np.array(tokenizer.ids(f"a {name} tile"), np.uint16), np.full(64, code, np.uint16))
        for name, code in (("dark", 3), ("light", 250))
    ]
    (tmp_path / "codes").mkdir()
    write_code_shards(some * 20, tmp_path / "codes", pictures, tokenizer.vocabulary_hash, tokenizer.tokens)
    data = {"train": (Source(dataset=str(tmp_path / "codes"), tokenized=True),), "evaluation": None}
    run = small.model_copy(
        update={
            "task": small.task.model_copy(update={"tokenizer": str(tmp_path / "tokenizer")}),
            "data": small.data.model_copy(update=data),
        }
    )
    losses = learned(run)
    assert min(losses[-2:]) < losses[0] - 0.3


@pytest.mark.parametrize("name", ["gpt", "encoder", "causal-pipeline"])
def test_the_small_form_of_a_recipe_learns(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join([TEXT] * 50), encoding="utf-8")
    small = load_run(recipe(name) / "run.toml", recipe(name) / "smoke.toml")
    train_tokenizer(iter([TEXT] * 50), 300, tmp_path / "tokenizer")
    data = {"train": (Source(dataset=str(tmp_path / "text.txt")),), "evaluation": None}
    run = small.model_copy(
        update={
            "task": small.task.model_copy(update={"tokenizer": str(tmp_path / "tokenizer")}),
            "data": small.data.model_copy(update=data),
        }
    )
    losses = learned(run)
    assert min(losses[-2:]) < losses[0] - 0.3


def test_the_model_with_experts_has_a_billion_parameters_of_which_a_token_uses_as_many_as_without() -> None:
    run = load_run(recipe("experts") / "run.toml")
    assert run.experts is not None
    expert = sum(parameter.numel() for parameter in Network(run.experts.width, run.experts.hidden, 0).parameters())
    replaced = len(run.experts.layers) * 3 * run.experts.width * run.task.options["model"]["intermediate_size"]
    trunk, held = millions(run) - replaced / 1e6, len(names_of(run.experts)) * expert / 1e6
    used = len(run.experts.layers) * run.experts.top_k * expert
    assert (round(trunk + held), round(held), round(trunk + used / 1e6)) == (978, 906, 100)
    assert used == replaced


def test_the_small_form_of_the_recipe_with_experts_learns(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join([TEXT] * 50), encoding="utf-8")
    small = load_run(recipe("experts") / "run.toml", recipe("experts") / "smoke.toml")
    train_tokenizer(iter([TEXT] * 50), 300, tmp_path / "tokenizer")
    data = {"train": (Source(dataset=str(tmp_path / "text.txt")),), "evaluation": None}
    run = small.model_copy(
        update={
            "task": small.task.model_copy(update={"tokenizer": str(tmp_path / "tokenizer")}),
            "data": small.data.model_copy(update=data),
            "optimizer": small.optimizer.model_copy(update={"warmup_steps": 0}),
        }
    )
    task = create_task(run)
    loop = PlainLoop(run, task)
    losses = [loop.take([batch]) for batch in islice(batches_from(task, 8, 0, print), 8)]
    assert min(losses[-2:]) < losses[0] - 0.3


def test_the_small_form_of_going_on_takes_the_model_that_the_benchmark_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"{number} times {TEXT}" for number in range(100)]
    monkeypatch.setattr(continuing, "VOCABULARY", 300)
    monkeypatch.setattr(continuing, "EVALUATIONS", 1)
    continuing.prepare(tmp_path, documents)
    continuing.keep(tmp_path, 1, tmp_path / "start")
    sha256 = re.fullmatch('init_from_sha256 = "(.*)"', capsys.readouterr().out.splitlines()[-1])
    assert sha256 is not None
    small = load_run(recipe("continue") / "run.toml", recipe("continue") / "smoke.toml")
    place = {
        "init_from": str(tmp_path / "start"),
        "init_from_sha256": sha256[1],
        "tokenizer": str(tmp_path / "new-tokenizer"),
    }
    source = Source(dataset=str(tmp_path / "new"))
    run = small.model_copy(
        update={
            "task": small.task.model_copy(update=place),
            "data": small.data.model_copy(update={"train": (source,), "evaluation": None}),
        }
    )
    learned(run)


def learned(run: RunConfig) -> list[float]:
    """The losses of a few steps."""
    task = create_task(run)
    model = task.first_model()
    optimizer = build_optimizer(run.optimizer, task.groups(model))
    losses = []
    for batch in islice(batches_from(task, 8, 0, print), 8):
        loss = task.loss(model, task.prepare(batch), 0).mean
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = run.optimizer.learning_rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
