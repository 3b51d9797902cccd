"""Models and tokenizers of transformers out of a folder: the one call of `from_pretrained`, and the files it may read.

It reads this machine's disk alone, never asks a question, and never runs code that comes with a model. What is on the
Hub is fetched first, by the names below and no others (`hub.model_files`).
"""

import json
from pathlib import Path
from typing import Any

CONFIG = "config.json"
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TOKENIZER_FILES = (
    *(_TOKENIZER, _TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja"),
)
MODEL_FOLDER = "model"
"""In a run's folder: the folder of its newest best model."""
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")


def load_pretrained(kind: Any, folder: str | Path | None, **options: Any) -> Any:
    """What a class of transformers makes of a folder; errors as its `from_pretrained`.

    :param folder: none if `options` hold the configuration and the weights
    """
    where = None if folder is None else Path(folder).absolute()
    if where is not None and not where.is_dir():  # a bare name would be looked up on the Hub
        raise OSError(f"{where} is no folder")
    if where is not None and (where / CONFIG).is_file():
        check_kernels(json.loads((where / CONFIG).read_text(encoding="utf-8")))
    # Left out, `trust_remote_code` means that the person at the terminal is asked.
    return kind.from_pretrained(where, trust_remote_code=False, local_files_only=True, **options)


def load_weights(kind: Any, folder: str | Path, **options: Any) -> tuple[Any, list[str]]:
    """The same with weights in safetensors alone, and the names of weights that the folder lacks."""
    model, report = load_pretrained(kind, folder, use_safetensors=True, output_loading_info=True, **options)
    return model, sorted(report["missing_keys"])


def load_pretrained_tokenizer(folder: str | Path) -> Any:
    """What transformers makes of a folder's tokenizer; errors as `from_pretrained`.

    Where the folder says that tokenizer.json is all there is to it, that is taken as it is. For some architectures,
    such as qwen2, `AutoTokenizer` would split texts as the published models do, and a model of one's own would get
    other tokens than it was trained with.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    where, kind = Path(folder), AutoTokenizer
    if (where / _TOKENIZER).is_file() and (where / _TOKENIZER_CONFIG).is_file():
        match json.loads((where / _TOKENIZER_CONFIG).read_text(encoding="utf-8")):
            case {"tokenizer_class": "TokenizersBackend" | "PreTrainedTokenizerFast"}:
                kind = PreTrainedTokenizerFast
    return load_pretrained(kind, folder)


def is_misread(folder: str | Path) -> bool:
    """Whether `AutoTokenizer` makes other tokens of texts than a folder's tokenizer.json says; errors as above."""
    from transformers import AutoTokenizer

    forms = []
    for tokenizer in (load_pretrained_tokenizer(folder), load_pretrained(AutoTokenizer, folder)):
        form = json.loads(tokenizer.backend_tokenizer.to_str())
        forms.append([form["normalizer"], form["pre_tokenizer"], form["model"]["type"]])
    return forms[0] != forms[1]


def check_kernels(config: Any) -> None:
    """Raise ValueError if a model's configuration names code on the Hub that computes its attention or experts.

    transformers fetches and runs that with the package `kernels`, whatever `trust_remote_code` says.
    """
    match config:
        case dict():
            for key, value in config.items():
                if str(key).endswith("_implementation") and any(mark in json.dumps(value) for mark in "/:|@"):
                    raise ValueError(f"{key} names code of the model's own ({value!r:.60}), which is never run here")
                check_kernels(value)
        case list():
            for value in config:
                check_kernels(value)
