"""`dedloc export --to gguf`: what is written of a model, whatever a person names it by."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from dedloc_kit.errors import UserError
from dedloc_kit.export.export import export
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from tests.export.runs import LedRun
from tests.loopback_hub import LoopbackHub
from tests.text_runs import mixed, text_run, write_text


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    texts = write_text(folder)
    train_tokenizer(iter(texts), 330, folder / "bpe", "bpe", CAUSAL)
    return folder


@pytest.fixture
def led(data: Path, tmp_path: Path) -> LedRun:
    led = LedRun(tmp_path / "run", text_run(data, "causal", tokenizer=str(data / "bpe")))
    led.step()
    return led


def check(file: Path, led: LedRun) -> None:
    reader = GGUFReader(file)
    found = {each.name: each.data for each in reader.tensors}
    weights = led.weights()
    np.testing.assert_array_equal(found["token_embd.weight"], weights["model.embed_tokens.weight"].numpy())
    np.testing.assert_array_equal(found["output_norm.weight"], weights["model.norm.weight"].numpy())


def test_of_a_run_of_a_folder_and_of_the_hub_the_same_file_is_written(
    led: LedRun, tmp_path: Path, hub: LoopbackHub
) -> None:
    out = tmp_path / "of a run"
    said = export(str(led.folder), out, "gguf", kind="f32")
    file = out / "tiny-f32.gguf"
    assert said == f"{file} is for llama.cpp; for ollama: ollama create tiny -f '{out}/Modelfile'"
    assert sorted(path.name for path in out.iterdir()) == ["Modelfile", "exported.json", "tiny-f32.gguf"]
    assert (out / "Modelfile").read_text().startswith("FROM ./tiny-f32.gguf\n")
    check(file, led)
    folder = tmp_path / "tiny"
    export(str(led.folder), folder, "transformers")
    export(str(folder), tmp_path / "of a folder", "gguf", kind="f32")
    hub.commits["us/tiny"] = [{path.name: path.read_bytes() for path in folder.iterdir()}]
    export("us/tiny", tmp_path / "of the Hub", "gguf", kind="f32")
    for other in ("of a folder", "of the Hub"):
        assert (tmp_path / other / file.name).read_bytes() == file.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_earlier_file_gives_way_to_one_of_another_step(led: LedRun, tmp_path: Path) -> None:
    export(str(led.folder), tmp_path / "out", "gguf")
    led.step()
    export(str(led.folder), tmp_path / "out", "gguf", kind="f32")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.gguf")) == ["tiny-f32.gguf"]
    check(tmp_path / "out" / "tiny-f32.gguf", led)


def test_names_of_folders_become_names_that_ollama_takes(led: LedRun, tmp_path: Path) -> None:
    for name, file in (("Jana Gana: বাংলা 7B", "jana-gana-7b-f16.gguf"), ("...", "model-f16.gguf")):
        export(str(led.folder), tmp_path / "model", "transformers")
        named = (tmp_path / "in" / name).resolve()
        shutil.copytree(tmp_path / "model", named)
        export(str(named), tmp_path / "out", "gguf")
        assert [path.name for path in (tmp_path / "out").glob("*.gguf")] == [file]
        shutil.rmtree(named)


@pytest.mark.parametrize("name", ["albert", "experts"])
def test_what_llama_cpp_does_not_have_is_one_line_and_nothing_is_left(name: str, data: Path, tmp_path: Path) -> None:
    albert = text_run(data, "albert", model={"embedding_size": 16})
    run = albert if name == "albert" else mixed(text_run(data, "causal", tokenizer=str(data / "bpe")))
    led = LedRun(tmp_path / "run", run)
    led.step()
    with pytest.raises(UserError, match=r"^[^\n]+$"):
        export(str(led.folder), tmp_path / "out", "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
