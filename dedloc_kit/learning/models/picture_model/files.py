"""The files of a picture model: where they are, what they say of it, and what they are together. No torch here."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.section import public_name
from dedloc_kit.validation import describe

OWN_CONFIG, OWN_WEIGHTS = "picture_model.json", "picture_model.safetensors"
"""Names of our own, so that a tokenizer and a model that draws may lie beside them."""
DIFFUSERS_WEIGHTS, JANUS_WEIGHTS = "diffusion_pytorch_model.safetensors", "model*.safetensors"
_CONFIGS = (OWN_CONFIG, "config.json", "vqvae/config.json", "vqgan/config.json")
_MAX_CONFIG_BYTES = 1_000_000
_COMMIT = r"[0-9a-f]{40}"
_MAKE = "name a published one, OWNER/NAME@COMMIT"

Kind = Literal["own", "diffusers", "janus"]


@dataclass(frozen=True)
class Found:
    """A picture model as files."""

    name: str
    """For people."""
    kind: Kind
    config: dict[str, Any]
    """Of the picture model alone, where the file also describes something else."""
    weights: tuple[Path, ...]
    """Files of safetensors."""
    sha256: str
    """Of a line with the name and SHA-256 of each file."""

    def check(self, pictures: PictureCodes) -> None:
        """Raise UserError unless it is what the run's file says."""
        codes, scale = _shape(self)
        if codes != pictures.codes:
            raise UserError(f"{self.name} has {codes} codes; set task.pictures.codes to {codes}")
        if pictures.size != pictures.side * scale:
            raise UserError(
                f"{self.name} makes one code of {scale} x {scale} pixels, so pictures of {pictures.size} pixels have "
                f"{pictures.size / scale:g} x {pictures.size / scale:g}; set task.pictures.size to "
                f"{pictures.side * scale}, or task.pictures.side"
            )
        if pictures.sha256 not in ("", self.sha256):
            raise UserError(
                f"{self.name} is not what the run's file says: task.pictures.sha256 must be {self.sha256}, if that is "
                "the picture model; codes of another one have to be written again"
            )


def pictures_of(run: RunConfig) -> PictureCodes:
    """What the run's file says of its pictures; raises UserError with the key and the fix."""
    values = run.task.options.get("pictures")
    if not isinstance(values, dict):
        raise UserError(
            "task.pictures must say what makes the codes: { model = ..., codes = ..., side = ..., size = ... }"
        )
    try:
        return PictureCodes.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(f"task.pictures.{describe(error, PictureCodes)}") from None


def completed(run: RunConfig) -> RunConfig:
    """The run with the SHA-256 of its picture model, so that no other's codes are taken for its own.

    A run without pictures, or with the SHA-256 in its file, stays as it is. Raises UserError if the model is not there
    or not what the file says.
    """
    if "pictures" not in run.task.options or (pictures := pictures_of(run)).sha256:
        return run
    found = find(pictures.model)
    found.check(pictures)
    whole = pictures.model_copy(update={"sha256": found.sha256}).model_dump()
    return run.model_copy(update={"task": run.task.model_copy(update={"pictures": whole})})


def find(model: str) -> Found:
    """The files that `task.pictures.model` names, from the Hub if need be; raises UserError with the fix."""
    name = public_name(model)
    folder = _folder(model, list(_CONFIGS))
    config = next((path for name in _CONFIGS if (path := folder / name).is_file()), None)
    if config is None:
        raise UserError(f"task.pictures.model: {name} holds no picture model; {_MAKE}")
    kind, values = _kind(name, _read(name, config))
    pattern = {"own": OWN_WEIGHTS, "diffusers": DIFFUSERS_WEIGHTS, "janus": JANUS_WEIGHTS}[kind]
    inner = str(config.parent.relative_to(folder) / pattern)
    weights = tuple(sorted(_folder(model, [inner]).glob(inner)))
    if not weights:
        raise UserError(
            f"task.pictures.model: {name} has no weights in safetensors, and others are not read, for they may hold "
            "code; load it with its library, write it with save_pretrained, and name that folder"
        )
    return Found(name, kind, values, weights, fingerprint([config, *weights]))


def fingerprint(files: list[Path]) -> str:
    """The SHA-256 of a line with the name and SHA-256 of each file."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _folder(model: str, patterns: list[str]) -> Path:
    """Where the files of these patterns are."""
    path = Path(model)
    if path.is_absolute():
        if not path.is_dir():
            raise UserError(f"task.pictures.model: there is no folder {path}; {_MAKE}")
        return path
    where, commit = repository_and_revision(model) or (None, None)
    if where is None:
        raise UserError(f"task.pictures.model: {model} is neither a folder nor OWNER/NAME@COMMIT of the Hub; {_MAKE}")
    if not re.fullmatch(_COMMIT, commit or ""):
        raise UserError(
            f'task.pictures.model must name a commit, so that it stays the same: "{where}@" and the 40 digits of the '
            f"newest one on huggingface.co/{where}/commits/main"
        )
    try:
        return model_files(where, str(commit), patterns)
    except HubUnavailable as error:
        raise UserError(
            f"task.pictures.model: {where} cannot be read now ({error}); try again later, or name a folder"
        ) from None


def _read(name: str, path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise UserError(f"the {path.name} of {name} cannot be used ({error}); name another picture model") from None
    return values


def _kind(name: str, values: dict[str, Any]) -> tuple[Kind, dict[str, Any]]:
    """Which library has its class, and the part of the configuration that describes it."""
    match values:
        case {"kind": "dedloc_kit"}:
            return "own", values
        case {"_class_name": "VQModel"}:
            return "diffusers", values
        case {"model_type": "janus_vqgan"}:
            return "janus", values
        case {"model_type": "janus", "vq_config": dict(inner)}:
            return "janus", inner
    what = values.get("_class_name", values.get("model_type", "something else"))
    raise UserError(
        f"task.pictures.model: {name} is {str(what)[:80]!r}; name a folder of `dedloc prepare images`, a VQModel of "
        "diffusers or a Janus of transformers"
    )


def _shape(found: Found) -> tuple[int, int]:
    """How many codes there are, and how many pixels along each side become one."""
    config = found.config
    try:
        match found.kind:
            case "own":
                codes, scale = config["codes"], config["scale"]
            case "diffusers":
                codes, scale = config["num_vq_embeddings"], 2 ** (len(config["block_out_channels"]) - 1)
            case "janus":
                # What a file leaves out has the default of its class.
                codes = config.get("num_embeddings", 16384)
                scale = 2 ** (len(config.get("channel_multiplier", "11224")) - 1)
        return int(codes), int(scale)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"the configuration of {found.name} cannot be used; name another picture model") from None
