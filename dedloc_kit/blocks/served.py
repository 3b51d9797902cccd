"""What is to be served of a model in a folder or on the Hub: its configuration, weights and small files, by hash."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedloc_kit.blocks.architecture import Layout, causal_class, configuration, skeleton
from dedloc_kit.blocks.weights.manifest import Manifest, describe_folder
from dedloc_kit.blocks.weights.weights import WHOLE, locate
from dedloc_kit.config.section import public_name
from dedloc_kit.errors import UserError
from dedloc_kit.pretrained import CONFIG, GENERATION_CONFIG, TOKENIZER_FILES, load_pretrained_tokenizer

FILES = (*TOKENIZER_FILES, GENERATION_CONFIG)
"""What a user needs beside the weights, if it is there."""
MAX_FILE = 2**26
"""Bytes of one of them."""
_KEPT = "manifest.json"


@dataclass(frozen=True)
class ServedModel:
    """A model whose weights are on this machine."""

    folder: Path
    config: dict[str, Any]
    """As its `config.json` says it."""
    manifest: Manifest
    files: Mapping[str, str]
    """The hashes of the small files, by name."""


def read_model(model: str, keep: Path) -> ServedModel:
    """Describe a model for those who are to serve it; reads all of its weights, unless it did so before.

    Raises UserError with what is wrong and the fix.

    :param model: a folder, or `OWNER/NAME@COMMIT` of the Hub
    :param keep: a folder that keeps the manifest for the next time
    """
    folder = locate(model, (*WHOLE, CONFIG, *FILES))
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder / CONFIG} cannot be read ({why}); name the folder of a model of transformers"
        ) from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / CONFIG} is no configuration of a model")
    parsed = configuration(config)
    causal_class(parsed)
    whole = skeleton(parsed)
    Layout.of(whole)
    _check_tokenizer(folder, model, whole.get_input_embeddings().num_embeddings)
    files = {}
    for name in FILES:
        if (folder / name).is_file():
            if (folder / name).stat().st_size > MAX_FILE:
                raise UserError(f"{folder / name} is larger than {MAX_FILE} bytes, so no user could take it")
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return ServedModel(folder, config, _manifest(folder, keep), files)


def _check_tokenizer(folder: Path, model: str, rows: int) -> None:
    """Raise UserError if a text may have tokens that the model knows nothing of: it would end whoever asks for it."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return
    try:
        tokens = 1 + max(load_pretrained_tokenizer(folder).get_vocab().values(), default=-1)
    except Exception:  # whatever the library raises; a user's own tokenizer may be another
        return
    if tokens > rows:
        raise UserError(
            f"the tokenizer of {public_name(model)} has {tokens} tokens, its model {rows}: they do not belong "
            "together; put the model's own tokenizer beside it, or give the model rows for all tokens with "
            "resize_token_embeddings of transformers, and train them"
        )


def _manifest(folder: Path, keep: Path) -> Manifest:
    """Kept until one of the files changes."""
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors*"))]
    now = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    path = keep / _KEPT
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["folder"] == str(folder) and kept["files"] == now:
            return Manifest.from_json(kept["manifest"].encode())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    manifest = describe_folder(folder)
    try:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"folder": str(folder), "files": now, "manifest": manifest.canonical()}))
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{keep} cannot be written ({error.strerror}); choose another with --folder") from None
    return manifest
