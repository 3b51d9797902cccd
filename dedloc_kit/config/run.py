"""The whole configuration of a run, and what its sections ask of each other."""

from typing import Annotated

from pydantic import PrivateAttr, field_validator, model_validator

from dedloc_kit.config.averaging import AveragingConfig
from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.parts import ExpertsConfig, PipelineConfig
from dedloc_kit.config.section import LATER, SAMPLES, PositiveInt
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.config.task import SEQUENCE_LENGTH, DataConfig, TaskConfig
from dedloc_kit.config.trust import TrustConfig

MAX_BATCHES = 64
"""Global batches that one peer may have gathered: what rounds fail to average piles up, but not for ever. A record
that claims more is not believed, and a volunteer waits before it comes to that."""
NEWCOMER_CHECKS = 3
"""Checks that a newcomer has to pass in a run that is open to all."""

_WITHOUT_8_BITS = {
    "lars": "has one of them only, and goes along it as it is",
    "adamw": "is not made for it yet",
    "muon": "shares none",
}


class RunConfig(SwarmConfig):
    """Everything that the peers of one run share."""

    global_batch: Annotated[PositiveInt, SAMPLES]
    """Batch size of one global step, over all peers."""
    microbatch: Annotated[PositiveInt | None, SAMPLES] = None
    """Batch size of a forward pass, the same on every peer: for losses over several samples, such as contrastive ones.
    By default each peer takes what suits its device."""
    seed: int = 0
    """Seed of the evaluation. The initial weights and the data order follow from the fingerprint."""
    task: TaskConfig
    """The task, its model and its tokenizer."""
    data: DataConfig
    """The training data and the held-out data."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer and its schedule."""
    averaging: AveragingConfig = AveragingConfig()
    """How peers average; `averaging = "local-steps"` is short for a section with `mode`."""
    trust: Annotated[TrustConfig, LATER] = TrustConfig()
    """How far peers trust what other peers send."""
    pipeline: Annotated[PipelineConfig | None, LATER] = None
    """Pipeline parallelism, for a model that no volunteer could hold."""
    experts: Annotated[ExpertsConfig | None, LATER] = None
    """Mixture-of-experts layers, for a model that no volunteer could hold."""
    _stage: int | None = PrivateAttr(default=None)

    @property
    def stage(self) -> int | None:
        """Which part of the run this is; none: the whole."""
        return self._stage

    def of_stage(self, number: int) -> "RunConfig":
        """A part of this run, which is averaged for itself: the same but for its id.

        Gate, tokens and notices go by that of the whole.
        """
        part = self.model_copy()
        part._stage = number
        return part

    @property
    def run_id(self) -> str:
        whole = super().run_id
        return whole if self._stage is None else f"{whole}.stage{self._stage}"

    @property
    def parts(self) -> tuple[str, ...]:
        return () if self.pipeline is None else tuple(self.of_stage(k).run_id for k in range(self.pipeline.count))

    @field_validator("averaging", mode="before")
    @classmethod
    def _mode_alone(cls, value: object) -> object:
        """`averaging = "local-steps"` is short for the section with this mode."""
        return {"mode": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _warm_up_fits(self) -> "RunConfig":
        if self.optimizer.warmup_steps >= self.optimizer.total_steps:
            raise ValueError("optimizer.warmup_steps must be smaller than optimizer.total_steps")
        return self

    @model_validator(mode="after")
    def _muon_works_alone(self) -> "RunConfig":
        if self.optimizer.name == "muon" and self.averaging.mode != "local-steps":
            raise ValueError(
                'optimizer.name = "muon" is for the steps that each volunteer takes by itself: add averaging = '
                '"local-steps", or set the name to "adamw" or "lamb"'
            )
        return self

    @model_validator(mode="after")
    def _state_in_8_bits_is_for_lamb(self) -> "RunConfig":
        if self.optimizer.state_dtype == "float32":
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                'optimizer.state_dtype = "8bit" is for what all volunteers share, which with averaging = "local-steps" '
                "is no state of this optimizer; remove it"
            )
        if self.optimizer.name != "lamb":
            raise ValueError(
                'optimizer.state_dtype = "8bit" keeps the two averages of optimizer.name = "lamb"; '
                f'"{self.optimizer.name}" {_WITHOUT_8_BITS[self.optimizer.name]}: remove it'
            )
        return self

    @property
    def probation(self) -> int:
        """Checks that a newcomer has to pass before it counts in full; 0 if the organizer knows who joins."""
        return NEWCOMER_CHECKS if self.trust.checks == "on" and self.access.who == "open" else 0

    @model_validator(mode="after")
    def _checks_are_of_gradients(self) -> "RunConfig":
        if self.trust.checks == "on" and self.averaging.mode == "local-steps":
            raise ValueError(
                'trust.checks = "on" is for gradients, and with averaging = "local-steps" volunteers send none; remove '
                "one of them"
            )
        return self

    @model_validator(mode="after")
    def _stages_are_averaged_exactly(self) -> "RunConfig":
        if self.pipeline is None:
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                'in a [pipeline] nobody can take steps by itself; remove averaging = "local-steps" or the pipeline'
            )
        if self.averaging.overlap:
            raise ValueError("[pipeline] needs averaging.overlap = false: every stage takes each step with the others")
        if self.trust.checks == "on":
            raise ValueError('trust.checks = "on" is not made for stages of a [pipeline] yet; remove one of them')
        return self

    @model_validator(mode="after")
    def _experts_take_the_steps_of_all(self) -> "RunConfig":
        if self.experts is None:
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                '[experts] take the steps that all volunteers take together; remove averaging = "local-steps" or the '
                "experts"
            )
        if self.averaging.overlap:
            raise ValueError("[experts] need averaging.overlap = false: every expert takes each step with the trunk")
        if self.pipeline is not None:
            raise ValueError("[experts] are not made for the stages of a [pipeline] yet; remove one of them")
        if self.trust.checks == "on":
            raise ValueError(
                'trust.checks = "on" computes gradients again, and which experts a token goes to hangs on rounding; '
                "remove it or the [experts]"
            )
        return self

    @model_validator(mode="after")
    def _what_is_downloaded_is_whole(self) -> "RunConfig":
        parts = "pipeline" if self.pipeline else "experts" if self.experts else None
        if self.averaging.state_bucket is not None and parts is not None:
            raise ValueError(f"averaging.state_bucket is not made for a run with [{parts}] yet; remove one of them")
        return self

    @model_validator(mode="after")
    def _decay_is_ordered(self) -> "RunConfig":
        if self.data.cooldown and self.optimizer.schedule != "warmup-stable-decay":
            raise ValueError('data.cooldown needs optimizer.schedule = "warmup-stable-decay"; add that or remove it')
        return self

    @model_validator(mode="after")
    def _microbatch_fits(self) -> "RunConfig":
        if self.microbatch is not None and self.microbatch > self.peer_batch:
            raise ValueError(f"microbatch must be at most {self.peer_batch}, what one step of a peer takes")
        return self

    @property
    def answers_of_a_sample(self) -> int:
        """Tokens of a sample at most, once for each expert that they go to; 0 if the run has no experts."""
        if self.experts is None:
            return 0
        length = self.task.options.get("sequence_length")
        tokens = length if isinstance(length, int) else SEQUENCE_LENGTH
        return tokens * len(self.experts.layers) * self.experts.top_k

    @property
    def peer_batch(self) -> int:
        """Samples of one step, over all peers or, with `local-steps`, of one of them."""
        return self.averaging.local_batch if self.averaging.mode == "local-steps" else self.global_batch
