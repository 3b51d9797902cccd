"""What an exported model says of itself is what it is: its length, its special tokens, how it generates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from dedloc_kit.config.run import RunConfig
from dedloc_kit.export.export import export
from dedloc_kit.learning.tasks.text.common import TextTask
from tests.export.runs import LedRun
from tests.learning.every_task import run_of, write_data
from tests.learning.models import test_parts as parts
from tests.learning.tasks.text_to_image_run import write_picture_model
from tests.text_runs import mixed, text_run

LENGTH = {"max_position_embeddings": 48}


def staged(run: RunConfig) -> RunConfig:
    return run.model_copy(update={"averaging": run.averaging.model_copy(update={"overlap": False})})


RUNS: dict[str, Callable[[Path], RunConfig]] = {
    "albert": lambda folder: text_run(folder, "albert", model={"embedding_size": 16, **LENGTH}),
    "encoder": lambda folder: text_run(folder, "encoder", model=LENGTH),
    "bert": lambda folder: text_run(folder, "encoder", architecture="bert", model=LENGTH),
    "causal": lambda folder: text_run(folder, "causal", model=LENGTH),
    "causal with two edges": lambda folder: text_run(folder, "causal", tokenizer=str(folder / "edged"), model=LENGTH),
    "causal with others' names": lambda folder: text_run(
        folder, "causal", tokenizer=str(folder / "masked"), model=LENGTH
    ),
    "shared layers": lambda folder: text_run(folder, "causal", shared_layers=2, model=LENGTH),
    "gemma3": lambda folder: text_run(folder, "causal", architecture="gemma3", model=LENGTH),
    "experts": lambda folder: mixed(text_run(folder, "causal", model=LENGTH)),
    "stages": lambda folder: staged(parts.run_of(folder, 3, {"num_hidden_layers": 3, **LENGTH})),
    "span-corruption": lambda folder: run_of("span-corruption", folder),
    "text-to-image": lambda folder: run_of("text-to-image", folder),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    write_picture_model(folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_what_is_exported_says_what_it_is(name: str, data: Path, tmp_path: Path) -> None:
    led = LedRun(tmp_path / "run", RUNS[name](data))
    led.step()
    out = tmp_path / "out"
    said = export(str(led.folder), out, "transformers")
    assert said == f"{out} is the model of {led.run.run_id} after global step 1; README.md says how to use it"
    assert (out / "README.md").is_file()
    assert {"run.json", "curve.svg", "contributors.json", "exported.json"} <= {path.name for path in out.iterdir()}
    if isinstance(led.task, TextTask):
        check_text(out, led.task, 32 if name == "span-corruption" else 48)


def check_text(out: Path, task: Any, length: int) -> None:
    config = json.loads((out / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(out)
    begin, end = getattr(task, "begin", tokenizer.cls_token_id), getattr(task, "end", tokenizer.sep_token_id)
    assert tokenizer.model_max_length == length
    assert config.get("max_position_embeddings", length) == length
    assert len(tokenizer("river bank " * 100, truncation=True)["input_ids"]) == length
    assert config["vocab_size"] == len(tokenizer)
    assert config["eos_token_id"] == end
    assert config.get("bos_token_id", begin) == begin
    assert config["pad_token_id"] in (tokenizer.pad_token_id, None)
    if (out / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(out)
        assert generation.eos_token_id == tokenizer.eos_token_id == end
        assert generation.bos_token_id in (tokenizer.bos_token_id, None)
        assert generation.pad_token_id == tokenizer.pad_token_id
        assert not generation.do_sample


def test_texts_of_unlike_length_are_continued_together(data: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    led = LedRun(tmp_path / "run", RUNS["causal with two edges"](data))
    led.step()
    export(str(led.folder), tmp_path / "out", "transformers")
    model, tokenizer = (each.from_pretrained(tmp_path / "out") for each in (AutoModelForCausalLM, AutoTokenizer))
    given = tokenizer(["river", "the river is a bank"], padding=True, padding_side="left", return_tensors="pt")
    together = model.generate(**given, max_new_tokens=4)
    alone = model.generate(**tokenizer("river", return_tensors="pt"), max_new_tokens=4)
    assert torch.equal(together[0, -alone.shape[1] :], alone[0])
