"""Models and tokenizers of strangers: their files are data, and nothing of them runs."""

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import dedloc_kit
from dedloc_kit.blocks.architecture import configuration
from dedloc_kit.errors import UserError
from dedloc_kit.inference.model import tokenizer_of
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.evaluate.pretrained import Pretrained, as_folder
from dedloc_kit.learning.models.families import DECODERS
from dedloc_kit.pretrained import load_pretrained
from dedloc_kit.serving.config import ModelVersion
from tests.loopback_hub import LoopbackHub, loopback_hub

PACKAGE = Path(dedloc_kit.__file__).parent
CODE = "open({mark!r}, 'w').close()\nclass Own: pass\n"
AUTO = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stranger's code would leave its trace; and who is asked says yes."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    return tmp_path / "code was run"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


def hostile(mark: Path, where: str = "") -> dict[str, bytes]:
    """A model whose every file names code of its own, here or in another repository."""
    code = dict.fromkeys(AUTO, f"{where}own.Own")
    config = {"model_type": "their-own", "auto_map": code, "attn_implementation": "them/kernel"}
    tokenizer = {"auto_map": {"AutoTokenizer": [f"{where}own.Own", None]}, "tokenizer_class": "Own"}
    generation = {"custom_generate": f"{where}own", "auto_map": code}
    source = CODE.format(mark=str(mark)).encode()
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer_config.json": json.dumps(tokenizer).encode(),
        "generation_config.json": json.dumps(generation).encode(),
        "own.py": source,
        "custom_generate/generate.py": source,
        "adapter_config.json": json.dumps({"base_model_name_or_path": "them/code"}).encode(),
        "model.bin": b"\x80\x04",
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("where", ["", "them/code--"])
def test_a_model_of_a_hostile_hub_runs_no_code_and_asks_nothing(
    hub: LoopbackHub, tmp_path: Path, mark: Path, where: str
) -> None:
    hub.commits["us/model"] = hub.commits["them/code"] = [hostile(mark, where)]
    with pytest.raises(UserError, match="the tokenizer us/model cannot be loaded"):
        load_tokenizer("us/model")
    with as_folder("us/model", None) as folder, pytest.raises(UserError, match="holds no model that transformers"):
        Pretrained(folder, 64)
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() or path.is_symlink()}
    assert not [name for name in fetched if name.endswith((".py", ".bin")) or "adapter" in name]
    assert not mark.exists()


@pytest.mark.parametrize("kind", [AutoConfig, AutoTokenizer, AutoModelForCausalLM, GenerationConfig])
@pytest.mark.parametrize("where", ["", "them/code--"])
def test_a_folder_with_code_runs_none(hub: LoopbackHub, tmp_path: Path, mark: Path, kind: Any, where: str) -> None:
    hub.commits["them/code"] = [hostile(mark)]
    folder = write(tmp_path / "model", hostile(mark, where))
    with suppress(OSError, ValueError, KeyError):
        load_pretrained(kind, folder)
    assert not mark.exists()
    with pytest.raises(UserError, match=r"task\.init_from cannot be loaded"):
        DECODERS.load(folder)
    assert not mark.exists()


def test_code_beside_a_good_tokenizer_is_left_alone(tmp_path: Path, mark: Path) -> None:
    train_tokenizer(iter(["the river runs to the sea, miles from here"] * 9), 300, tmp_path / "own", "bpe", CAUSAL)
    values = json.loads((tmp_path / "own" / "tokenizer_config.json").read_text())
    values["auto_map"] = {"AutoTokenizer": [None, "own.Own"]}
    write(tmp_path / "own", {"tokenizer_config.json": json.dumps(values).encode(), "own.py": hostile(mark)["own.py"]})
    model = SimpleNamespace(loaded=SimpleNamespace(files=tmp_path / "own"))
    with suppress(UserError):
        load_tokenizer(str(tmp_path / "own"))
    with suppress(ValueError):
        tokenizer_of(model)
    assert not mark.exists()


def test_a_name_is_never_looked_up_on_the_hub_by_transformers_itself(hub: LoopbackHub, mark: Path) -> None:
    hub.commits["us/model"] = [hostile(mark)]
    with pytest.raises(OSError, match="is no folder"):
        load_pretrained(AutoTokenizer, "us/model")


@pytest.mark.parametrize("name", ["own.py", "adapter_config.json", "config.json", "x/tokenizer.json", "processor.json"])
def test_a_served_model_brings_files_of_fixed_names_alone(name: str) -> None:
    ModelVersion(model="m", config={}, manifest="0" * 64, files={"tokenizer.json": "1" * 64})
    with pytest.raises(ValidationError):
        ModelVersion(model="m", config={}, manifest="0" * 64, files={name: "1" * 64})


@pytest.mark.parametrize(
    "named",
    [
        {"attn_implementation": "them/kernel"},
        {"_attn_implementation": "them/kernel@main:fast"},
        {"attn_implementation": {"text_config": "paged|them/kernel"}},
        {"_experts_implementation": "them/kernel"},
        {"text_config": {"attn_implementation": "them/kernel"}},
    ],
)
def test_code_on_the_hub_that_would_compute_attention_is_never_fetched(tmp_path: Path, named: dict[str, Any]) -> None:
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llama", **size, "vocab_size": 64, **named}
    with pytest.raises(ValidationError, match="which is never run here"):
        ModelVersion(model="m", config=config, manifest="0" * 64)
    with pytest.raises(UserError, match="which is never run here"):
        configuration(config)
    folder = write(tmp_path / "model", {"config.json": json.dumps(config).encode()})
    with pytest.raises(ValueError, match="which is never run here"):
        load_pretrained(AutoModelForCausalLM, folder)


def test_one_function_calls_from_pretrained() -> None:
    own = re.compile(  # but for what a model card shows
        r'(?<!AutoDistributedModelForCausalLM)\.from_pretrained\((?!"\{repository\}")|trust_remote_code=True'
    )
    found = {
        str(path.relative_to(PACKAGE)): hits
        for path in PACKAGE.rglob("*.py")
        if (hits := own.findall(path.read_text(encoding="utf-8")))
    }
    assert found.pop("pretrained.py") == [".from_pretrained("]
    assert not found
