"""The section `averaging`."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dedloc_kit.config.section import HUB_REPOSITORY, LATER, SAMPLES, Decay, PositiveFloat, PositiveInt, Section

STATE_BUCKET = rf"{HUB_REPOSITORY}|https://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~%/-]*)?"
"""The pattern of a bucket's name on the Hub or of a folder's address."""


class AveragingConfig(Section):
    """How peers average what they have learned."""

    mode: Literal["global-batch", "local-steps"] = "global-batch"
    """What peers average. `global-batch`: gradients, so the result is that of one machine with the global batch.
    `local-steps`: weights, after steps of each peer's own (DiLoCo, Douillard et al. 2023), for slow lines."""
    overlap: bool = True
    """Average while the next batch accumulates; gradients are then up to one global step old. `false` is exact
    large-batch training: every peer waits for the average."""
    allow_overflow: Annotated[bool, LATER] = False
    """Count every sample that was computed before the round began. With `false` those beyond `global_batch` count in
    the next batch, and a device waits once it has computed its share of that."""
    compression: Literal["none", "float16", "8bit", "4bit", "sparse"] = "4bit"
    """How gradients travel; rounding errors are added to the next gradient (error feedback). `sparse` (SparseLoCo,
    Sarfi et al. 2025) is for `local-steps` and sends the largest 64 of each 4,096 values."""
    local_batch: Annotated[PositiveInt, SAMPLES] = 64
    """Batch size of the steps that each peer takes by itself with `local-steps`."""
    outer_learning_rate: PositiveFloat = 0.7
    """Learning rate of the outer step of `local-steps`, SGD with Nesterov momentum; 1 with `sparse`."""
    outer_momentum: Decay = 0.9
    """Momentum of the outer step of `local-steps`; 0 with `sparse`."""
    state_bucket: Annotated[str | None, Field(max_length=300), LATER] = None
    """Where the coordinator puts the training state and recent averages for newcomers, so that its own line is free: a
    public Storage Bucket of the Hub, `OWNER/BUCKET`, or the `https://` address of a folder."""

    @model_validator(mode="before")
    @classmethod
    def _sparse_without_momentum(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("compression") == "sparse":
            return {"outer_learning_rate": 1.0, "outer_momentum": 0.0, **given}
        return given

    @field_validator("state_bucket")
    @classmethod
    def _state_bucket_is_a_place(cls, state_bucket: str | None) -> str | None:
        if state_bucket is not None and not re.fullmatch(STATE_BUCKET, state_bucket):
            raise ValueError(
                'averaging.state_bucket must be a bucket of the Hub, "OWNER/BUCKET", or the address of a folder, '
                '"https://..."'
            )
        return state_bucket

    @model_validator(mode="after")
    def _sparse_is_for_local_steps(self) -> "AveragingConfig":
        if self.compression == "sparse" and self.mode != "local-steps":
            raise ValueError(
                'averaging.compression = "sparse" needs averaging.mode = "local-steps"; add that, or choose "4bit"'
            )
        return self
