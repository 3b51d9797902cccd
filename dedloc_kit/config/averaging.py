"""The section `averaging`."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dedloc_kit.config.section import HUB_REPOSITORY, LATER, Decay, PositiveFloat, PositiveInt, Section

STATE_BUCKET = rf"{HUB_REPOSITORY}|https://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~%/-]*)?"
"""The pattern of a bucket's name on the Hub or of a folder's address."""


class AveragingConfig(Section):
    mode: Literal["global-batch", "local-steps"] = "global-batch"
    """What is averaged. `global-batch`: gradients; the result is that of one machine with the global batch.
    `local-steps`: every peer takes steps of its own (`local_batch` samples each) with the optimizer below, and once
    the swarm has gone through a global batch the peers average what they have learned and take an outer step
    (DiLoCo, Douillard et al. 2023): for slow lines, with a global batch that is many times larger."""
    overlap: bool = True
    """Average while the next batch accumulates (gradients are then up to one global step old). With `local-steps` each
    peer's own steps go on meanwhile, and from the average on when it comes.
    With `false` every peer waits for the average: exact large-batch training."""
    allow_overflow: Annotated[bool, LATER] = False
    """What is computed after the batch is full, until its round begins, belongs to the next one, and where rounds take
    longer than a batch the devices wait (a larger `global_batch` would use them). With `true` it all counts at once:
    nobody waits for that, and a batch may hold several times as many samples as it says."""
    compression: Literal["none", "float16", "8bit", "4bit", "sparse"] = "4bit"
    """How gradients travel. What rounding loses is added to the next gradient (error feedback). On Bengali text 4
    bits did no worse than 8: after 400 overlapped steps at a rate of 0.005 both were 0.6 to 0.7 % above one plain large
    batch, and so was overlap alone; at twice the rate both were about 5 % above (`benchmarks/convergence.py`, two
    seeds). Few runs: measure your own. `sparse` is for `local-steps`: of each 4,096 values the largest 64 alone, the
    others later (SparseLoCo, Sarfi et al. 2025), so that 0.03 bytes for each parameter go up; averages travel in 4
    bits. What is still to be sent stands in for the outer momentum, which is then 0 and `outer_learning_rate` 1, unless
    they are said. What it costs in loss has not been measured here yet."""
    local_batch: PositiveInt = 64
    """With `local-steps`: samples of each peer's own steps. In the first ten of each session the rate rises to the
    run's, for the optimizer begins without moments."""
    outer_learning_rate: PositiveFloat = 0.7
    """With `local-steps`: of the outer step, SGD with Nesterov momentum."""
    outer_momentum: Decay = 0.9
    """With `local-steps`: the outer step's."""
    state_bucket: Annotated[str | None, Field(max_length=300), LATER] = None
    """A public Storage Bucket of the Hub, `OWNER/BUCKET`, or the address of a folder that a web server shows
    (`https://...`): the coordinator puts the state for newcomers and the averages for latecomers there, and its own
    line is free of them. Whoever gets nothing from there asks peers, as without it."""

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
