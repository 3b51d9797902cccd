"""The files of a picture model: where they are, what they say of it, and what they are together. No torch here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.models.pinned import Named, fingerprint
from dedloc_kit.validation import describe

OWN_CONFIG, OWN_WEIGHTS = "picture_model.json", "picture_model.safetensors"
"""Names of our own, so that a tokenizer and a model that draws may lie beside them."""
DIFFUSERS_WEIGHTS, JANUS_WEIGHTS = "diffusion_pytorch_model.safetensors", "model*.safetensors"
_CONFIGS = (OWN_CONFIG, "config.json", "vqvae/config.json", "vqgan/config.json")
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
    named = Named("task.pictures.model", model, _MAKE)
    folder = named.files(list(_CONFIGS))
    config = next((path for name in _CONFIGS if (path := folder / name).is_file()), None)
    if config is None:
        raise UserError(f"task.pictures.model: {named.shown} holds no picture model; {_MAKE}")
    kind, values = _kind(named.shown, named.config(config))
    pattern = {"own": OWN_WEIGHTS, "diffusers": DIFFUSERS_WEIGHTS, "janus": JANUS_WEIGHTS}[kind]
    inner = str(config.parent.relative_to(folder) / pattern)
    weights = tuple(named.weights(inner, [inner]))
    return Found(named.shown, kind, values, weights, fingerprint([config, *weights]))


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
