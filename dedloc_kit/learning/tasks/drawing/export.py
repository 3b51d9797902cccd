"""A model that draws, for people without dedloc_kit: its weights, all that belongs to them, and a file that uses it."""

import ast
import inspect
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import save_file

from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.models.picture_model.files import find
from dedloc_kit.learning.models.picture_model.loading import load_picture_model
from dedloc_kit.learning.task import Usage
from dedloc_kit.learning.tasks.drawing.draw import CONFIG, PICTURE_CONFIG, PICTURE_WEIGHTS, TOKENIZER, WEIGHTS
from dedloc_kit.learning.tasks.drawing.generation import Drawn
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer

PROGRAM = "draw.py"
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dedloc_kit.learning.data.text.plain", ()),
    ("dedloc_kit.learning.tasks.drawing.places", ()),
    ("dedloc_kit.learning.tasks.drawing.transformer", ()),
    ("dedloc_kit.learning.tasks.drawing.generation", ()),
    (
        "dedloc_kit.learning.models.picture_model.autoencoder",
        ("_WIDER_AT_MOST", "_GROUPS", "Codebook", "Autoencoder", "_Residual"),
    ),
    ("dedloc_kit.learning.models.picture_model.published", ("Published",)),
    ("dedloc_kit.learning.models.picture_model.loading", ("as_pixels",)),
    ("dedloc_kit.learning.tasks.drawing.draw", ()),
)
"""The modules that the file is made of, and what of each; nothing: all of it."""
_HEAD = '''\
"""Draws pictures for captions with the model in this folder.

Needs torch, safetensors, tokenizers and pillow, and the library of the picture model if that is a published one.
Written by dedloc_kit, of which these are the parts that draw.
"""

from __future__ import annotations

'''
_LIBRARIES = {"own": "pillow", "diffusers": "pillow, diffusers", "janus": "pillow, transformers"}
"""What else is needed, by the kind of picture model."""
_USAGE = """\
import sys

{folder}
sys.path.append(folder)  # {program} needs torch, safetensors, tokenizers, {libraries}
from draw import Drawer

picture = Drawer(folder).draw(["Put a caption here"], seed=0)[0]
picture.save("drawn.png")
"""
_HERE = 'folder = "{where}"'
_ON_HUB = """\
from huggingface_hub import snapshot_download

names = ["{program}", "{config}", "{weights}", "{tokenizer}", "{picture_config}", "{picture_weights}"]
folder = snapshot_download("{where}", allow_patterns=names)"""


def export(
    model: DrawingTransformer,
    tokenizer: BareTokenizer,
    pictures: PictureCodes,
    how: Drawn,
    folder: Path,
    repository: str,
) -> Usage:
    """Write all of it to an existing folder; see `dedloc_kit.learning.task.Task.export`.

    :param how: codes are drawn if a user says nothing else
    """
    _save(dict(model.named_parameters()), folder / WEIGHTS)  # what is tied is there once
    config = {"shape": asdict(model.shape), "drawing": asdict(how)}
    _write(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    tokenizer.save(folder)
    found = find(pictures.model)
    _save(load_picture_model(pictures).network.state_dict(), folder / PICTURE_WEIGHTS)
    _write(folder / PICTURE_CONFIG, json.dumps({"kind": found.kind, **found.config}, indent=2) + "\n")
    _write(folder / PROGRAM, program())
    names = {"config": CONFIG, "weights": WEIGHTS, "tokenizer": TOKENIZER, "program": PROGRAM}
    names |= {"picture_config": PICTURE_CONFIG, "picture_weights": PICTURE_WEIGHTS, "libraries": _LIBRARIES[found.kind]}
    where = (_HERE if repository.startswith(".") else _ON_HUB).format(where=repository, **names)
    return Usage("pytorch", "text-to-image", _USAGE.format(folder=where, **names))


def program() -> str:
    """The file that draws, made of the modules that draw here; it knows nothing of dedloc_kit."""
    imports: dict[str, None] = {}
    parts: list[str] = []
    names: set[str] = set()
    for module, wanted in _PARTS:
        source = inspect.getsource(import_module(module))
        for node in ast.parse(source).body[1:]:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports[ast.unparse(node)] = None
                continue
            own = _names(node)
            if wanted and not own & set(wanted):
                continue
            assert not own & names, f"two modules have a {own & names}"
            names |= own
            parts.append(_text(source, node))
    kept = [line for line in sorted(imports) if not line.startswith(("from dedloc_kit", "from pydantic"))]
    return _HEAD + "\n".join(kept) + "\n\n" + "\n\n".join(parts) + "\n"


def _names(node: ast.stmt) -> set[str]:
    """What a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _text(source: str, node: ast.stmt) -> str:
    """As it stands there, with its decorators."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({name: each.detach().cpu().contiguous() for name, each in tensors.items()}, path)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
