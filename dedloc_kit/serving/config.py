"""The configurations of serving a model: which one it is, what all share, and what one server decides for itself."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator

from dedloc_kit.config.machine import Devices, PeerConfig
from dedloc_kit.config.option import HIDDEN, Option
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY, PositiveInt, Section
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.pretrained import GENERATION_CONFIG, TOKENIZER_FILES, check_kernels
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.validation import describe

WeightFormat = Literal["float32", "bfloat16", "int8", "int4"]
"""In which a server holds the weights."""
MAX_CONFIG = 2**16
"""Bytes of a model's configuration as JSON."""
MAX_VERSION = 2**17
"""Bytes of a version as JSON."""
SERVED_TASK = "causal"
"""Of runs whose model is served."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=rf"^({'|'.join(map(re.escape, (*TOKENIZER_FILES, GENERATION_CONFIG)))})$")]
"""What may come beside a model's configuration and weights: nothing else that transformers would read."""
MODEL_ON_HUB = rf"{HUB_REPOSITORY}@[0-9a-f]{{40}}"
"""The pattern of `OWNER/NAME@COMMIT`."""


class ModelVersion(Section):
    """Which model it is, to the last bit."""

    model: str = Field(min_length=1, max_length=200)
    """`OWNER/NAME@COMMIT` of the Hub, from where anybody may take the weights, or a name for people."""
    config: dict[str, Any]
    """The model's own configuration, as its `config.json` says it."""
    manifest: Sha256
    """The digest of the model's manifest, which names every tensor by its hash."""
    files: dict[FileName, Sha256] = Field(default={}, max_length=16)
    """The files that a user needs besides, the tokenizer above all, by their hashes."""

    @field_validator("config")
    @classmethod
    def _config_is_short_and_holds_no_code(cls, config: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(config)) > MAX_CONFIG:
            raise ValueError(f"config has more than {MAX_CONFIG} bytes")
        if "auto_map" in config:
            raise ValueError("config.auto_map names code of the model's own, which is never run here")
        check_kernels(config)
        return config

    @property
    def layers(self) -> int:
        """How many the model has; 0 if its configuration does not say."""
        layers = self.config.get("num_hidden_layers", self.config.get("n_layer", self.config.get("num_layers", 0)))
        return layers if isinstance(layers, int) and 0 < layers <= 1024 else 0

    @property
    def from_hub(self) -> bool:
        return re.fullmatch(MODEL_ON_HUB, self.model) is not None

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical form: it names the version."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Of what `canonical` gives; raises ValueError with the field that is wrong."""
        if len(text) > MAX_VERSION:
            raise ValueError(f"a version of {len(text)} bytes is too large")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(f"{cls.__name__}: {describe(error, cls)}") from None


class ServingConfig(SwarmConfig, ModelVersion):
    """Everything that the peers of one serving swarm share: the model, which never changes, and who may take part."""


class ServerConfig(PeerConfig):
    """What one server decides for itself."""

    devices: Annotated[Devices, HIDDEN] = "cpu"  # layers are computed on the processor, also where there is a GPU
    task_module: Annotated[str | None, HIDDEN] = None
    listed: Annotated[bool, HIDDEN] = False
    until_step: Annotated[PositiveInt | None, HIDDEN] = None
    source: Annotated[str | None, Option(metavar="MODEL")] = None
    """To join: take the weights from this folder, or OWNER/NAME@COMMIT of the Hub; default: from where the model is, or
    from other servers."""
    blocks: Annotated[int | None, Field(ge=1, le=1024), Option(metavar="N")] = None
    """Layers that this machine holds; default: all that fit into its memory."""
    span: Annotated[str | None, Field(pattern=r"^\d{1,4}:\d{1,4}$"), Option(metavar="BEGIN:END")] = None
    """Which ones, for good; default: those that others lack most."""
    weights: WeightFormat = "bfloat16"
    """How the weights are held: less memory from left to right, and less exact."""
    cache_tokens: Annotated[int, Field(ge=128, le=2**24), Option(metavar="N")] = 8192
    """Size of the KV cache in tokens, over all texts that are being written."""
    forwarding: Annotated[bool, Option(help="do not connect peers that cannot reach each other")] = True
    """Connect peers that cannot reach each other, if others can reach this machine."""


def parse_serving(values: dict[str, Any]) -> ServingConfig:
    """Validate a serving configuration that came as plain values; raises UserError."""
    try:
        return ServingConfig.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(describe(error, ServingConfig)) from None


def serving_of(invitation: Invitation) -> ServingConfig:
    """The configuration of a swarm that serves one model."""
    serving = parse_serving(invitation.run)
    invitation.check_fingerprint(serving)
    return serving


def swarm_of(invitation: Invitation) -> SwarmConfig:
    """The configuration of whatever it invites to."""
    return invitation.run_config() if invitation.kind == "run" else serving_of(invitation)


def served_by_swarm(invitation: Invitation) -> SwarmConfig:
    """The same, of a swarm that serves a model: one that serves nothing else, or a run that trains one to be served.

    Raises UserError if the run trains something else.
    """
    swarm = swarm_of(invitation)
    if isinstance(swarm, RunConfig) and swarm.task.name != SERVED_TASK:
        raise UserError(
            f"{swarm.run_id} trains with the task '{swarm.task.name}', which makes no causal language model, and only "
            "these are served; to train with the others: dedloc join"
        )
    return swarm
