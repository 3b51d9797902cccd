"""A run of pictures from text whose captions tell the codes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.data.pictures.codes import Captioned, PictureCodes, write_code_shards
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.loading import save

WORDS = ("a", "the", "red", "green", "blue", "dark")
COLOURS = {"red": 1, "green": 2, "blue": 3, "dark": 4}
PICTURES: dict[str, Any] = {"codes": 6, "side": 3, "size": 12}
TINY: dict[str, Any] = {
    "caption_length": 4,
    "evaluation_samples": 32,
    "ranking_samples": 8,
    "model": {
        **{"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "num_shared_blocks": 1},
        **{"attention": ["full"], "last_attention": "row"},
    },
}


def write_tokenizer(folder: Path) -> None:
    """Of words, as `tokenizer` in the folder."""
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))


def write_codes(folder: Path, samples: int = 300) -> None:
    """`tokenizer`, and `codes` to learn from and held-out ones: every code of a picture is that of its colour, but for
    the first one, which is drawn."""
    write_tokenizer(folder)
    tokenizer, generator = BareTokenizer(str(folder / "tokenizer")), np.random.default_rng(0)
    (folder / "codes").mkdir()
    for split in ("train", "test"):
        made = []
        for _ in range(samples):
            colour = str(generator.choice(list(COLOURS)))
            caption = tokenizer.ids(f"{generator.choice(['a', 'the'])} {colour}")
            codes = np.full(9, COLOURS[colour], dtype=np.uint16)
            codes[0] = generator.integers(6)
            made.append(Captioned(np.array(caption, dtype=np.uint16), codes))
        write_code_shards(
            made,
            folder / "codes",
            PictureCodes(model="pictures", **PICTURES),
            tokenizer.vocabulary_hash,
            tokenizer.tokens,
            split,
        )


def run_of(folder: Path, seed: int = 0, **options: Any) -> RunConfig:
    pictures = {"model": str(folder / "pictures"), **options.pop("pictures", PICTURES)}
    values = {"tokenizer": str(folder / "tokenizer"), **TINY, "pictures": pictures, **options}
    source = {"dataset": str(folder / "codes"), "tokenized": True}
    return parse_run(
        {
            "name": "drawing",
            "global_batch": 32,
            "seed": seed,
            "task": {"name": "text-to-image", **values},
            "data": {"train": [source], "evaluation": {**source, "split": "test"}},
            "optimizer": {"name": "adamw", "learning_rate": 0.01, "warmup_steps": 5, "total_steps": 60},
        }
    )


def write_picture_model(folder: Path) -> None:
    """`pictures` in the folder, untrained: what it makes of different codes looks different all the same."""
    architecture = Architecture(codes=6, scale=4, width=8, code_width=4)
    torch.manual_seed(0)
    (folder / "pictures").mkdir()
    save(Autoencoder(architecture), architecture, folder / "pictures")
