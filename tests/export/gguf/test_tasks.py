"""What the tasks of text export becomes a GGUF file, or one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf import write_gguf
from dedloc_kit.learning.task import create_task
from tests.export.gguf.small import save_tokenizer
from tests.text_runs import text_run, write_text

MODELS = {"llama": "llama", "mistral": "llama", "qwen3": "qwen3", "gemma3": "gemma3"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def written(run: RunConfig, folder: Path) -> GGUFReader:
    """The first model of a run as GGUF."""
    task: Any = create_task(run)
    (folder / "model").mkdir()
    task.export(task.model(), folder / "model", "owner/name")
    write_gguf(folder / "model", folder / "model.gguf", "f16")
    return GGUFReader(folder / "model.gguf")


def value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


@pytest.mark.parametrize("architecture", MODELS)
def test_a_decoder_is_written_with_its_tokenizer(architecture: str, corpus: Path, tmp_path: Path) -> None:
    reader = written(text_run(corpus, "causal", architecture=architecture), tmp_path)
    assert value(reader, "general.architecture") == MODELS[architecture]
    assert value(reader, "tokenizer.ggml.pre") == "gpt-2"
    assert value(reader, "tokenizer.ggml.add_bos_token")  # as documents begin in training
    assert value(reader, "tokenizer.ggml.bos_token_id") == value(reader, "tokenizer.ggml.eos_token_id") == 0


def test_layers_that_share_weights_each_have_a_copy(corpus: Path, tmp_path: Path) -> None:
    reader = written(text_run(corpus, "causal", shared_layers=2), tmp_path)
    weights = {each.name: each.data for each in reader.tensors}
    np.testing.assert_array_equal(weights["blk.0.ffn_up.weight"], weights["blk.1.ffn_up.weight"])


def test_an_encoder_is_written_for_embeddings(corpus: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, causal=False)
    run = text_run(corpus, "encoder", tokenizer=str(tmp_path / "trained"))
    assert value(written(run, tmp_path), "general.architecture") == "modern-bert"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("causal", {"architecture": "gpt_neox"}, "not of 'gpt_neox'"),
        ("causal", {"architecture": "mixtral", "model": {"num_local_experts": 2}}, "a mixtral with experts"),
        ("encoder", {}, "llama.cpp has no name for the way in which this tokenizer splits texts"),
        ("albert", {}, "not of 'albert'"),
    ],
)
def test_what_has_no_gguf_form_is_one_line_with_a_way_out(
    name: str, options: dict[str, Any], message: str, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        written(text_run(corpus, name, **options), tmp_path)
    assert "export it with --to transformers" in str(raised.value)
    assert "\n" not in str(raised.value)
