"""What llama.cpp computes from a GGUF file is what transformers computes from the folder, at every position."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from dedloc_kit.export.gguf import Kind, write_gguf
from dedloc_kit.learning.data.tokenizers.special_tokens import END_OF_TEXT
from tests.export.gguf.small import TEXTS, save, save_hollow, save_model, save_tokenizer
from tests.llama_cpp import LlamaCpp, needs_llama_cpp
from tests.peak import Peak

pytestmark = [pytest.mark.soak, needs_llama_cpp]

LENGTH, GREEDY = 48, 20
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases, wide heads and its own output": (
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    ),
    "llama with few keys": ("llama", {"num_key_value_heads": 2}),
    "llama 3": ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}}),
    "llama with linear scaling": ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 1e4}}),
    "mistral": ("mistral", {}),
    "qwen3": ("qwen3", {}),
    "qwen3 with wide heads": ("qwen3", {"head_dim": 48, "num_key_value_heads": 1}),
    "gemma3": ("gemma3", {}),
    "gemma3 with heads of 64": ("gemma3", {"hidden_size": 128, "num_attention_heads": 2}),
    "gemma3 beyond its window": ("gemma3", {"sliding_window": 6, "tie_word_embeddings": False}),
    "gemma3 with linear scaling": (
        "gemma3",
        {
            "sliding_window": 6,
            "rope_parameters": {
                "full_attention": {**LINEAR, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3 with as many layers as its largest": ("gemma3", {"num_hidden_layers": 62, "head_dim": 32}),
}


def tokens_of(vocabulary: int) -> list[int]:
    found: list[int] = torch.randint(2, vocabulary, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
    return found


def of_transformers(model: Any, tokens: list[int]) -> tuple[npt.NDArray[np.float64], list[int]]:
    """log p of every token after each of these, and the most probable ones that follow."""
    with torch.inference_mode():
        scores = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0].double(), dim=-1)
        made = list(tokens)
        for _ in range(GREEDY):
            made.append(int(model(input_ids=torch.tensor([made])).logits[0, -1].argmax()))
    return scores.numpy(), made[len(tokens) :]


def perplexity(log_probabilities: npt.NDArray[np.float64], tokens: list[int]) -> float:
    return math.exp(-log_probabilities[np.arange(LENGTH - 1), tokens[1:]].mean())


@pytest.mark.parametrize("name", CASES)
def test_every_probability_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, values = CASES[name]
    model, tokenizer = save(tmp_path, architecture, values)
    tokens = tokens_of(len(tokenizer))
    wanted, following = of_transformers(model, tokens)
    assert np.ptp(wanted) > 1.5  # it is no even guess, which every mistake would leave as it is
    found: dict[Kind, npt.NDArray[np.float64]] = {}
    for kind in ("f32", "f16", "q8_0"):
        path = tmp_path / f"{kind}.gguf"
        write_gguf(tmp_path, path, kind)
        log_probabilities, greedy = LlamaCpp(path).ask(
            {"kind": "log_probabilities", "tokens": tokens}, {"kind": "greedy", "tokens": tokens, "count": GREEDY}
        )
        found[kind] = np.array(log_probabilities)
        assert kind == "q8_0" or greedy == following, kind
    np.testing.assert_allclose(found["f32"], wanted, rtol=0, atol=5e-3)
    np.testing.assert_allclose(found["f16"], wanted, rtol=0, atol=1e-2)
    assert perplexity(found["q8_0"], tokens) == pytest.approx(perplexity(wanted, tokens), rel=5e-3)


ENCODERS: dict[str, dict[str, Any]] = {
    "as tasks make it": {},
    "beyond its window": {"local_attention": 6},
    "every other layer": {"layer_types": ["full_attention", "sliding_attention"] * 3, "local_attention": 6},
    "without windows": {"layer_types": ["full_attention"] * 6},
}


@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_are_the_mean_of_hidden_states(name: str, tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, "modernbert", {"num_hidden_layers": 6, **ENCODERS[name]})
    texts = [*TEXTS[:2], "a", " ".join(TEXTS[:2])]
    with torch.inference_mode():
        hidden = [model.base_model(**tokenizer(text, return_tensors="pt"))[0][0] for text in texts]
    wanted = torch.stack([each.mean(dim=0) for each in hidden]).numpy()
    tolerances: dict[Kind, float] = {"f32": 1e-3, "f16": 2e-3, "q8_0": 3e-2}
    for kind, tolerance in tolerances.items():
        write_gguf(tmp_path, tmp_path / "model.gguf", kind)
        found = LlamaCpp(tmp_path / "model.gguf").embed(texts)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * float(np.abs(wanted).max()))


CONTRACTIONS, LAYOUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)


def split(expression: str) -> Any:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), plain])


PUBLISHED: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: WORDS,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]),
    "qwen2": lambda: split(rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+{LAYOUT}"),
    "llama-bpe": lambda: split(
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+{LAYOUT}"
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tokenizers_split_as_their_names_say(name: str, tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    backend.pre_tokenizer, backend.decoder = PUBLISHED[name](), ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)
    tokenizer.save_pretrained(tmp_path)
    save_model(tmp_path, "llama", {"num_hidden_layers": 1}, len(tokenizer))
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    texts = [*TEXTS[:2], "I'LL 12345 \r\n\n\tnext\n", "এখন ২০২৬", "x" * 50 + " !?#", "   "]
    wanted = [tokenizer(text)["input_ids"] for text in texts]
    assert LlamaCpp(tmp_path / "model.gguf", vocabulary_only=True).tokenize(texts) == wanted


def test_llama_cpp_knows_how_a_text_begins_and_ends(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    save_model(tmp_path, "llama", {"num_hidden_layers": 1}, len(tokenizer))
    write_gguf(tmp_path, tmp_path / "model.gguf", "f32")
    found = LlamaCpp(tmp_path / "model.gguf").information()
    ends = {"bos": 0, "eos": 0, "adds_bos": True, "adds_eos": False, "end_of_generation": [0], "train_context": 2048}
    assert {name: found[name] for name in ends} == ends


@pytest.mark.timeout(900)
def test_a_billion_parameters_are_written_in_little_memory(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    wide = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 18}
    size = save_hollow(tmp_path, wide, torch.bfloat16)
    try:
        assert size > 2_000_000_000
        peak = Peak()
        peak.start()
        write_gguf(tmp_path, tmp_path / "model.gguf", "f16")
        assert peak.end() < 0.2 * size
        made = LlamaCpp(tmp_path / "model.gguf").greedy(tokenizer("a")["input_ids"], 1)
        assert len(made) == 1
    finally:
        for path in (*tmp_path.glob("*.gguf"), *tmp_path.glob("*.safetensors")):
            path.unlink()  # pytest keeps what is here
