"""The section `optimizer`."""

from typing import Annotated, Literal

from pydantic import Field

from dedloc_kit.config.section import LATER, Decay, PositiveFloat, PositiveInt, Section


class OptimizerConfig(Section):
    """The optimizer and its schedule; the defaults are DeDLOC's for ALBERT (section 4.2)."""

    name: Literal["lamb", "lars", "adamw", "muon"] = "lamb"
    """`lamb` (You et al. 2020), `lars` with momentum (You et al. 2017), as DeDLOC trains SwAV with, or `adamw`
    (Loshchilov and Hutter 2019). With `local-steps` also `muon` (Jordan et al. 2024), which takes matrices and leaves
    words and all else to AdamW, at the rate and weight decay that suit AdamW."""
    learning_rate: PositiveFloat = 1.76e-3
    start_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Where the linear warm-up begins."""
    end_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """What the rate falls to after the warm-up."""
    schedule: Literal["linear", "cosine", "warmup-stable-decay"] = "linear"
    """How it falls. `warmup-stable-decay`: not before the organizer says so (`dedloc run cooldown`), and the run
    ends with that."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5_000
    total_steps: PositiveInt = 125_000
    """Global steps after which the run is finished; with `warmup-stable-decay` at the latest."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """With `lamb`, `adamw` and `muon`."""
    epsilon: PositiveFloat = 1e-6
    """With `lamb`, `adamw` and `muon`."""
    max_weight_norm: PositiveFloat = 10_000.0
    """With `lamb`: upper bound on the norm of a layer's weights in the trust ratio."""
    momentum: Decay = Field(default_factory=lambda said: 0.95 if said.get("name") == "muon" else 0.9)
    """With `lars` and `muon`; with `muon` 0.95 (Jordan et al. 2024) unless it is said."""
    trust_coefficient: PositiveFloat = 0.001
    """With `lars`: the step of a layer at the rate 1, relative to the norm of its weights."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Which parameters do not decay (biases, say) is the task's choice."""
    max_grad_norm: PositiveFloat = 1.0
    """The averaged gradient is scaled down to at most this norm."""
    state_dtype: Annotated[Literal["float32", "8bit"], LATER] = "float32"
    """With `lamb`: how each peer keeps what the optimizer remembers. `8bit` takes a quarter of the memory, and half as
    much has to be downloaded by who joins; a step of the optimizer takes two to four times as long, on every peer."""
