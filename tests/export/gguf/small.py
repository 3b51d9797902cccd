"""Small models of transformers in folders, as runs export them, with a tokenizer that llama.cpp knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from dedloc_kit.blocks.weights.manifest import SINGLE
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.models.families import DECODERS, ENCODERS

TEXTS = [
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। ১২৩ 456\n\n  hello world's (test)\t",
    "ภาษาไทย the quick brown fox jumps over the lazy dog 🙂🙂, don't",
] * 3
SHAPE = {"hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "intermediate_size": 96}
VOCABULARY = 320


def save_tokenizer(folder: Path, causal: bool = True) -> Any:
    """Train a tokenizer as `dedloc prepare tokenizer` does, and save it in an existing folder."""
    path = folder / "trained"
    train_tokenizer(iter(TEXTS), VOCABULARY, path, "bpe", CAUSAL if causal else MASKED)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_model(folder: Path, architecture: str, values: dict[str, Any], vocabulary: int = VOCABULARY) -> Any:
    """Build a model as the tasks `causal` and `encoder` do, far from its first weights, and save it in a folder.

    :param values: of `task.model`
    """
    causal = architecture != "modernbert"
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    if not causal:
        tokens = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    family = DECODERS if causal else ENCODERS
    config = family.config(architecture, {**SHAPE, **values}, {"vocab_size": vocabulary, **tokens})
    torch.manual_seed(0)
    model: Any = family.build(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # a norm of ones, or of zeros where it adds one, hides a mistake
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
            else:
                weight.mul_(3.0)
    with quiet():
        model.save_pretrained(folder)
    model.set_attn_implementation("eager")
    return model


def save(folder: Path, architecture: str, values: dict[str, Any]) -> tuple[Any, Any]:
    """Save a model and its tokenizer in an existing folder."""
    tokenizer = save_tokenizer(folder, architecture != "modernbert")
    return save_model(folder, architecture, values, len(tokenizer)), tokenizer


def save_hollow(folder: Path, values: dict[str, Any], dtype: torch.dtype = torch.float32) -> int:
    """Save a llama of any size, with the same number everywhere and without ever being built; return its bytes."""
    config = DECODERS.config("llama", {**SHAPE, **values}, {"vocab_size": VOCABULARY, "bos_token_id": 0})
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config).state_dict()
    shapes = {name: each for name, each in shapes.items() if name != "lm_head.weight" or not config.tie_word_embeddings}
    save_file({name: torch.full(each.shape, 0.5, dtype=dtype) for name, each in shapes.items()}, folder / SINGLE)
    return (folder / SINGLE).stat().st_size


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars."""
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.utils.logging.enable_progress_bar()
