"""A tokenizer in a GGUF file: what llama.cpp reads as the same tokens, and one line where it does not."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf import write_gguf
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, END_OF_TEXT
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from tests.export.gguf.small import TEXTS, save_model, save_tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)


def published(folder: Path, pre_tokenizer: Any, **changes: Any) -> Any:
    """Save a byte-level tokenizer with another way to split."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END_OF_TEXT: 0, **{letter: number for number, letter in enumerate(letters, 1)}, "ab": 257}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    for name, change in changes.items():
        setattr(backend, name, change)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)
    tokenizer.save_pretrained(folder)
    return tokenizer


def written(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """What a file says of a tokenizer, which it saves beside a model of its size."""
    tokenizer.save_pretrained(folder)
    save_model(folder, "llama", {"num_hidden_layers": 1}, len(tokenizer))
    write_gguf(folder, folder / "model.gguf", "f32")
    reader = GGUFReader(folder / "model.gguf")
    return {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith("tokenizer.")
    }


def test_a_tokenizer_of_a_new_run_is_written_whole(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    found = written(tmp_path, tokenizer)
    assert found["ggml.model"] == "gpt2"
    assert found["ggml.pre"] == "qwen35"
    assert found["ggml.tokens"] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert found["ggml.token_type"] == [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokenizer) - 2)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    assert found["ggml.merges"] == [" ".join(merge) for merge in merges]
    ids = {"bos": 0, "eos": 0, "padding": 1}
    assert {name: found[f"ggml.{name}_token_id"] for name in ids} == ids
    assert (found["ggml.add_bos_token"], found["ggml.add_eos_token"]) == (True, False)
    assert "chat_template" not in found
    assert 'PARAMETER stop "<|endoftext|>"' in (tmp_path / "Modelfile").read_text()


def test_a_chat_tokenizer_brings_its_tokens_and_template(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    special = [AddedToken(token, special=True, normalized=False) for token in ("<|im_start|>", "<|im_end|>")]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", "{{ bos_token }}" + CHATML
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [321, 0]}))
    found = written(tmp_path, tokenizer)
    assert found["ggml.token_type"][-3:] == [TokenType.CONTROL, TokenType.CONTROL, TokenType.USER_DEFINED]
    assert found["ggml.tokens"][-3:] == ["<|im_start|>", "<|im_end|>", "<tool>"]
    assert (found["ggml.eos_token_id"], found["ggml.eot_token_id"], found["ggml.bos_token_id"]) == (321, 0, 0)
    assert found["chat_template"] == tokenizer.chat_template
    modelfile = (tmp_path / "Modelfile").read_text()
    assert modelfile.startswith("FROM ./model.gguf\n")
    assert 'PARAMETER stop "<|im_end|>"\nPARAMETER stop "<|endoftext|>"\n' in modelfile
    assert modelfile.endswith(
        'TEMPLATE """{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n'
        '{{ end }}<|im_start|>assistant\n"""\n'
    )


def test_another_template_is_in_the_file_without_marks_of_who_says_what(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    tokenizer.chat_template = (
        "{% for message in messages %}{%- generation -%}{{ message['content'] }}{% endgeneration %}{% endfor %}"
    )
    found = written(tmp_path, tokenizer)
    assert found["chat_template"] == ("{% for message in messages %}{#--#}{{ message['content'] }}{##}{% endfor %}")
    assert "TEMPLATE" not in (tmp_path / "Modelfile").read_text()  # ollama knows it, or nobody does


@pytest.mark.parametrize("template", ["{% for message in messages %}", "{{ 'a' ", "{{" + "(" * 20_000])
def test_a_template_with_a_syntax_error_is_one_line(template: str, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=r"chat template.*; correct chat_template.jinja, or remove it") as raised:
        written(tmp_path, tokenizer)
    assert "\n" not in str(raised.value)


def test_a_published_tokenizer_goes_by_its_name(tmp_path: Path) -> None:
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS])
    found = written(tmp_path, published(tmp_path, digits))
    assert found["ggml.pre"] == "smollm"
    assert (found["ggml.add_bos_token"], found["ggml.add_eos_token"]) == (False, False)


def test_a_tokenizer_without_a_first_token_has_none_that_means_something_else(tmp_path: Path) -> None:
    tokenizer = published(tmp_path, WORDS)
    tokenizer.bos_token = None
    found = written(tmp_path, tokenizer)
    assert found["ggml.bos_token_id"] == found["ggml.eos_token_id"] == 0  # llama.cpp would take token 11


@pytest.mark.parametrize("tokenization", ["unigram", "unigram-bytes"])
def test_unigram_is_one_line_that_says_what_to_do(tokenization: Any, tmp_path: Path) -> None:
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    train_tokenizer(
        iter(TEXTS), 340, tmp_path / "trained", tokenization, special if tokenization == "unigram" else CAUSAL
    )
    with pytest.raises(UserError, match=r"llama.cpp has no Unigram tokenizer .* start a run with a new tokenizer"):
        written(tmp_path, PreTrainedTokenizerFast.from_pretrained(tmp_path / "trained"))


@pytest.mark.parametrize(
    ("pre_tokenizer", "changes", "message"),
    [
        (pre_tokenizers.Whitespace(), {}, "has no name for the way in which this tokenizer splits texts"),
        (WORDS, {"normalizer": normalizers.Lowercase()}, "has no name for the way"),
        (
            WORDS,
            {"post_processor": processors.TemplateProcessing("$A a", None, [("a", 66)])},
            "puts something else around a text",
        ),
    ],
)
def test_other_tokenizers_are_one_line(
    pre_tokenizer: Any, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        written(tmp_path, published(tmp_path, pre_tokenizer, **changes))
    assert "export it with --to transformers" in str(raised.value)


def test_a_tokenizer_that_is_larger_than_the_model_is_one_line(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_model(tmp_path, "llama", {"num_hidden_layers": 1}, 300)
    with pytest.raises(UserError, match="the tokenizer has 320 tokens and the model 300; export both again"):
        write_gguf(tmp_path, tmp_path / "model.gguf", "f32")


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", {"num_hidden_layers": 1})
    with pytest.raises(UserError, match="tokenizer"):
        write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    with pytest.raises(UserError, match="tokenizer") as raised:
        write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    assert "\n" not in str(raised.value)
