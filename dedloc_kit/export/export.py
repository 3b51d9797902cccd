"""`dedloc export`: from what a person names to a new folder, in the form of transformers or as GGUF."""

import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Literal

from dedloc_kit.errors import UserError
from dedloc_kit.export.folder import Place, as_folder, write_trained
from dedloc_kit.export.placing import check_free, placed
from dedloc_kit.export.source import Finished, Trained, find, model_names
from dedloc_kit.hub import CARD_FILE, card_metadata
from dedloc_kit.machine.paths import expanded

Form = Literal["transformers", "gguf"]
Kind = Literal["f16", "f32", "q8_0"]
"""How the numbers of a GGUF file are stored."""


def export(
    where: str,
    out: Path,
    form: Form,
    *,
    kind: Kind = "f16",
    step: int | None = None,
    data: Mapping[str, Path] | None = None,
    task_module: str | None = None,
) -> str:
    """Write the model to a new folder, or in place of an earlier export; in one line what it is and how it is used.

    :param where: with `step` and `data` as for `find`
    :param task_module: as for `create_task`
    Raises UserError with what is wrong and the fix; nothing is then left at `out`.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    out = expanded(out).absolute()
    if form == "gguf" and out.suffix == ".gguf":
        raise UserError(f"{out} will be a folder, with the file and what ollama needs; name it without .gguf")
    if form == "gguf" and find_spec("gguf") is None:
        raise UserError("--to gguf needs the package gguf; run pip install 'dedloc_kit[gguf]'")
    check_free(out)
    source = find(where, step, data)
    return (
        _as_transformers(source, out, task_module)
        if form == "transformers"
        else _as_gguf(source, out, kind, task_module)
    )


def _as_transformers(source: Finished | Trained, out: Path, task_module: str | None) -> str:
    if isinstance(source, Trained):
        with placed(out, source.tensors.info) as folder:
            place = Place(f"./{out.name}", metadata=card_metadata(out / CARD_FILE))
            write_trained(folder, source, place, task_module)
        return (
            f"{out} is the model of {source.run.run_id} after global step {source.step}; {CARD_FILE} says how to use it"
        )
    if not source.on_hub:
        raise UserError(f"{source.folder} is a model of transformers already; use it as it is, or choose --to gguf")
    with placed(out) as folder:
        for name in model_names(source.folder):
            shutil.copyfile(source.folder / name, folder / name)
    return f"{out} is the model {source.name} of the Hub; load it with from_pretrained of transformers"


def _as_gguf(source: Finished | Trained, out: Path, kind: Kind, task_module: str | None) -> str:
    from dedloc_kit.export.gguf import write_gguf

    of = source.tensors.info if isinstance(source, Trained) else None
    name = re.sub(r"[^a-z0-9._-]+", "-", source.name.lower()).strip(".-") or "model"
    file = f"{name}-{kind}.gguf"
    with placed(out, of) as folder, as_folder(source, task_module, beside=folder) as model:
        write_gguf(model, folder / file, kind)
    return f"{out / file} is for llama.cpp; for ollama: ollama create {name} -f {quote(str(out / 'Modelfile'))}"
