"""The section `optimizer`."""

from typing import Annotated, Literal

from pydantic import Field

from dedloc_kit.config.section import LATER, STEPS, Decay, PositiveFloat, PositiveInt, Section


class OptimizerConfig(Section):
    """The optimizer and its schedule; the defaults are DeDLOC's for ALBERT (section 4.2)."""

    name: Literal["lamb", "lars", "adamw", "muon"] = "lamb"
    """The optimizer: LAMB (You et al. 2020), LARS with momentum (You et al. 2017), AdamW (Loshchilov and Hutter 2019),
    or Muon (Jordan et al. 2024) for matrices with AdamW for the rest, which needs `local-steps`."""
    learning_rate: PositiveFloat = 1.76e-3
    """The peak learning rate, at the end of the warm-up."""
    start_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """The learning rate at which the linear warm-up begins."""
    end_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """The learning rate at the end of the schedule."""
    schedule: Literal["linear", "cosine", "warmup-stable-decay"] = "linear"
    """How the learning rate falls after the warm-up. With `warmup-stable-decay` it stays until `dedloc run cooldown`
    lets it fall, and the run ends with that."""
    warmup_steps: Annotated[int, Field(ge=0), STEPS] = 5_000
    """Length of the linear warm-up."""
    total_steps: Annotated[PositiveInt, STEPS] = 125_000
    """Length of the run; with `warmup-stable-decay` its greatest length."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the averages of the gradient and of its square, for `lamb`, `adamw` and `muon`."""
    epsilon: PositiveFloat = 1e-6
    """Added to the denominator of the update, for `lamb`, `adamw` and `muon`."""
    max_weight_norm: PositiveFloat = 10_000.0
    """Upper bound on the weight norm in LAMB's trust ratio."""
    momentum: Decay = Field(default_factory=lambda said: 0.95 if said.get("name") == "muon" else 0.9)
    """Momentum of `lars` and `muon`; by default 0.9, for `muon` 0.95."""
    trust_coefficient: PositiveFloat = 0.001
    """LARS's trust coefficient: the step of a layer at learning rate 1, relative to the norm of its weights."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay. Most tasks leave biases and normalization scales out."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient clipping: the averaged gradient is scaled down to at most this norm."""
    state_dtype: Annotated[Literal["float32", "8bit"], LATER] = "float32"
    """How each peer keeps the state of `lamb`. `8bit` takes a quarter of the memory and halves a newcomer's download;
    a step of the optimizer takes two to four times as long."""
