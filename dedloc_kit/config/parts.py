"""Models that no volunteer could hold: the sections `pipeline` and `experts`."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dedloc_kit.config.section import TOKENS, PositiveInt, Section

MAX_STAGES = 64


class PipelineConfig(Section):
    """Pipeline parallelism for a model that no volunteer could hold: each volunteer holds one stage of its layers, and
    microbatches go through all stages (SWARM, Ryabinin et al. 2023)."""

    stages: (
        Annotated[int, Field(ge=2, le=MAX_STAGES)]
        | Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=MAX_STAGES)]
    ) = 4
    """The number of stages, or a list with the number of layers of each."""
    activations: Literal["8bit", "float16", "none"] = "8bit"
    """How hidden states and their gradients travel from stage to stage."""
    microbatch_tokens: Annotated[PositiveInt, TOKENS] = 4096
    """Size of the microbatches that go through the stages."""

    @property
    def count(self) -> int:
        """The number of stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)


MAX_SIDE = 64
"""Of a layer's grid of experts."""


class ExpertsConfig(Section):
    """Mixture-of-experts layers whose experts are on volunteers' machines (Learning@home, Ryabinin and Gusev 2020). The
    rest of the model, the trunk, is trained as without them."""

    layers: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(min_length=1, max_length=1024)]
    """The layers whose feed-forward network is replaced by experts, counted from 0."""
    grid: tuple[int, int] = Field(strict=False)  # the validator below sees to it
    """Rows and columns of the experts in each of these layers: `[8, 8]` are 64 experts."""
    top_k: Annotated[int, Field(ge=2)] = 2
    """The number of experts that a token goes to in each of these layers; at least 2, or the gate learns nothing."""
    width: PositiveInt
    """Channels of an expert's input and output: the trunk's `hidden_size`."""
    hidden: PositiveInt
    """Channels inside an expert: its `intermediate_size`."""
    aux_loss_weight: Annotated[float, Field(ge=0, le=1e3)] = 0.01
    """Weight of the load-balancing term in the loss."""

    @property
    def count(self) -> int:
        """Of all layers."""
        return len(self.layers) * self.grid[0] * self.grid[1]

    @field_validator("grid", mode="before")
    @classmethod
    def _grid_has_cells(cls, value: Any) -> Any:
        sides = value if isinstance(value, list | tuple) else ()
        if len(sides) != 2 or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
            raise ValueError(
                f"experts.grid must be two whole numbers from 1 to {MAX_SIDE}, its rows and columns, such as [4, 4]"
            )
        return value

    @field_validator("layers")
    @classmethod
    def _each_layer_once(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if list(layers) != sorted(set(layers)):
            raise ValueError("experts.layers must name each layer once, in their order, such as [1, 3]")
        return layers

    @model_validator(mode="after")
    def _as_many_are_there(self) -> "ExpertsConfig":
        rows, columns = self.grid
        if self.top_k > rows * columns:
            raise ValueError(
                f"experts.top_k is {self.top_k}, and a grid of {rows} x {columns} has {rows * columns} cells; set it "
                "to at most that"
            )
        return self
