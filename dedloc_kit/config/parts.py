"""Models that no volunteer could hold: the sections `pipeline` and `experts`."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dedloc_kit.config.section import PositiveInt, Section

MAX_STAGES = 64


class PipelineConfig(Section):
    """The model is cut into stages, each volunteer holds one of them, and microbatches go through all (Ryabinin et al.
    2023): for models that no volunteer could hold."""

    stages: (
        Annotated[int, Field(ge=2, le=MAX_STAGES)]
        | Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=MAX_STAGES)]
    ) = 4
    """How many, or how many layers each has."""
    activations: Literal["8bit", "float16", "none"] = "8bit"
    """How hidden states and their gradients travel from stage to stage."""
    microbatch_tokens: PositiveInt = 4096
    """That go through the stages together."""

    @property
    def count(self) -> int:
        """The number of stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)


MAX_SIDE = 64
"""Of a layer's grid of experts."""


class ExpertsConfig(Section):
    """Layers whose feed-forward network is a mixture of experts, which volunteers host (Ryabinin and Gusev 2020, arXiv
    2002.04013): for models that no volunteer could hold. The rest of the model, the trunk, is trained as without."""

    layers: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(min_length=1, max_length=1024)]
    """Which ones, from 0 on."""
    grid: tuple[int, int] = Field(strict=False)  # the validator below sees to it
    """Rows and columns: as many experts as these are cells, in each of the layers."""
    top_k: Annotated[int, Field(ge=2)] = 2
    """Experts that a token goes to in each of the layers. With a single one the gate would learn nothing."""
    width: PositiveInt
    """Channels that go to an expert and come back: those of the trunk."""
    hidden: PositiveInt
    """Channels inside an expert."""
    aux_loss_weight: Annotated[float, Field(ge=0, le=1e3)] = 0.01
    """How much weight the loss gives to all experts being used alike."""

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
