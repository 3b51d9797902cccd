"""Runs, tokenizers and data for the reference figures of training; see `tests.learning.references`."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WIDE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
DECODER: dict[str, Any] = {**WIDE, "num_key_value_heads": 2}
GPT2: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32, "n_positions": 64}
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ALBERT: dict[str, Any] = {**WIDE, "embedding_size": 8}
SWAV: dict[str, Any] = {
    "name": "swav",
    "image_size": 16,
    "global_crops": {"count": 2, "size": 16, "scale": [0.5, 1.0]},
    "local_crops": {"count": 2, "size": 8, "scale": [0.2, 0.5]},
    "queue_length": 0,
    "model": {
        "layer_type": "basic",
        "depths": [1, 1],
        "hidden_sizes": [8, 16],
        "embedding_size": 8,
        "stem": "small",
        "projection": [16, 8],
        "num_prototypes": 12,
    },
}
DRAWING: dict[str, Any] = {
    "name": "text-to-image",
    "tokenizer": "masked",
    "caption_length": 6,
    "caption_dropout": 0.3,
    "pictures": {"model": "pictures", "codes": 20, "side": 4, "size": 16},
    "model": {
        **{"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "num_shared_blocks": 2},
        **{"attention": ["row", "column"], "kernel_size": 3},
    },
}


def _albert(model: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"name": "albert", "tokenizer": "masked", "sequence_length": 32, "model": {**ALBERT, **model}, **options}


def _causal(architecture: str, model: dict[str, Any], tokenizer: str = "causal", **options: Any) -> dict[str, Any]:
    named = {"name": "causal", "architecture": architecture, "tokenizer": tokenizer, "sequence_length": 32}
    return {**named, "model": model, **options}


def _encoder(architecture: str, model: dict[str, Any], **options: Any) -> dict[str, Any]:
    named = {"name": "encoder", "architecture": architecture, "tokenizer": "masked", "sequence_length": 32}
    return {**named, "model": {**WIDE, **model}, **options}


TASKS: dict[str, dict[str, Any]] = {
    "albert": _albert({}),  # with the dropout of its classifier
    "albert-words": _albert({"num_hidden_groups": 2, "classifier_dropout_prob": 0.0}, masking="words"),
    "causal-llama": _causal("llama", DECODER),
    "causal-two-edges": _causal("llama", {**DECODER, "tie_word_embeddings": False}, "two-edges"),
    "causal-shared-layers": _causal("llama", {**DECODER, "num_hidden_layers": 4}, shared_layers=2),
    "causal-experts": _causal("llama", DECODER),
    "causal-gemma2": _causal(
        "gemma2",
        {
            **DECODER,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 6,
            "final_logit_softcapping": 2.0,
        },
    ),
    "causal-gpt2": _causal("gpt2", {**GPT2, **NO_DROPOUT}),
    "causal-mistral": _causal("mistral", {**DECODER, "num_key_value_heads": 1, "sliding_window": 6}),
    "encoder-modernbert": _encoder("modernbert", {"num_hidden_layers": 3, "local_attention": 8}),
    "encoder-bert": _encoder("bert", {}, masking="words"),
    "encoder-deberta": _encoder("deberta", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "swav-crops": {**SWAV, "augmentation": {"hue": 0.1, "blur_probability": 0.5}},
    "swav-queue": {**SWAV, "queue_length": 8, "queue_start_step": 1, "freeze_prototypes_steps": 1},
    "text-to-image-tied": DRAWING,
    "text-to-image-untied": {
        **DRAWING,
        "model": {**DRAWING["model"], "tie_word_embeddings": False, "attention": ["full"]},
    },
}
"""The section `task` of each run, with the name of a tokenizer in place of its path."""
EXPERTS: dict[str, Any] = {"causal-experts": {"layers": [1], "grid": [2, 2], "width": 16, "hidden": 12}}
BATCHES = {"swav-queue": 2}
"""How many batches a run has, if not one: here the first one fills the queue."""
ROWS = {"swav-crops": 8, "swav-queue": 8}
"""Samples in a batch, if not four."""

_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
_SPECIAL: dict[str, dict[str, str]] = {
    "masked": {**_TOKENS, "mask_token": "[MASK]"},
    "causal": {"bos_token": "<|end|>", "eos_token": "<|end|>"},
    "two-edges": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
}
_CONSONANTS, _VOWELS = "bdfgklmnprst", "aeiou"


def write_tokenizers(folder: Path) -> None:
    """Write tokenizers of syllables to the folders `masked`, `causal` and `two-edges`."""
    for name, special in _SPECIAL.items():
        first = list(dict.fromkeys(special.values()))
        syllables = [(consonant, vowel) for consonant in _CONSONANTS for vowel in _VOWELS]
        tokens = [*first, "▁", ".", *_CONSONANTS, *_VOWELS, *map("".join, syllables)]
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, syllables))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        if name == "masked":
            edges = [(token, first.index(token)) for token in ("[CLS]", "[SEP]")]
            tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=edges)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / name)


def texts(seed: int) -> Iterator[str]:
    """An endless stream of documents of two or three sentences."""
    generator = np.random.default_rng(seed)
    while True:
        sentences = (_words(generator, int(generator.integers(1, 5))) for _ in range(generator.integers(2, 4)))
        yield ". ".join(sentences) + "."


def captions(seed: int, codes: int, places: int) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.uint16]]]]:
    """An endless stream of captions with the codes of their pictures."""
    generator = np.random.default_rng(seed)
    while True:
        yield _words(generator, 2), generator.integers(codes, size=places).astype(np.uint16)


def pictures(seed: int, size: int) -> Iterator[bytes]:
    """An endless stream of PNG files: a gradient between two colours, with noise."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    while True:
        one, other, (down, right) = generator.random(3), generator.random(3), generator.random(2)
        share = np.clip(down * rows + right * columns, 0, 1)[:, :, None]
        noisy = share * one + (1 - share) * other + 0.1 * generator.random((size, size, 3))
        file = io.BytesIO()
        Image.fromarray((230 * np.clip(noisy, 0, 1)).astype(np.uint8)).save(file, "PNG")
        yield file.getvalue()


def _words(generator: np.random.Generator, count: int) -> str:
    pairs = zip(generator.choice(list(_CONSONANTS), 3 * count), generator.choice(list(_VOWELS), 3 * count), strict=True)
    syllables = ["".join(pair) for pair in pairs]
    return " ".join("".join(syllables[3 * number : 3 * number + generator.integers(1, 4)]) for number in range(count))
