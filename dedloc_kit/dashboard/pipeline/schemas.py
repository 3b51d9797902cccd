"""What the API answers about the stages of a pipeline. What peers say of themselves is as they say it."""

from typing import Literal

from dedloc_kit.dashboard.schemas import Answer
from dedloc_kit.events import PipelineState
from dedloc_kit.pipeline_state import limiting, throughput


class StagePeer(Answer):
    peer: str
    name: str
    state: Literal["joining", "online", "moving", "leaving"]
    """`joining`: it loads its stage; `moving`: it computes it until another is loaded."""
    microbatches_per_second: float
    """0 before it is measured."""
    queue: int
    """Calls that wait."""
    served: int
    """Samples through its stage since it came."""
    moving_to: int | None
    """The stage that it goes over to, or means to."""
    accusers: int
    """Drivers that say that it answers wrongly, each by what it has compared; one alone may say anything."""


class Stage(Answer):
    number: int
    """From 0."""
    peers: list[StagePeer]
    """Who hold it first, the fastest ones first, no more than 200."""
    holders: int
    """How many hold it and compute."""
    throughput: float
    """Microbatches a second, of all who hold it."""
    queue: int
    """Calls that wait at all who hold it."""
    forward: int
    """Microbatches that are there, or on their way there, as all drivers say together: those that go forward."""
    backward: int
    """Those that come back."""
    step: int
    """The global step that half of those who hold it have reached."""


class Driver(Answer):
    """Who sends microbatches through all stages."""

    peer: str
    name: str
    driven: int
    """Samples since it came."""
    begun: int
    """Samples for the next global step."""


class Pipeline(Answer):
    """The stages that the model is cut into."""

    count: int
    """Of stages."""
    stages: list[Stage]
    """All of them, or none while the coordinator, which sees them, is not heard."""
    throughput: float
    """Microbatches a second that the slowest stage passes."""
    bottleneck: str | None
    """What limits the run, in a sentence; null while the stages are not known."""
    limiting: list[int]
    """The stages that limit it: those that nobody holds, else the slowest, unless all pass about the same."""
    drivers: list[Driver]
    """Most samples first, no more than 200."""


def pipeline(count: int, seen: PipelineState | None) -> Pipeline:
    """As the coordinator saw it last.

    :param count: of the run's stages
    """
    if seen is None:
        return Pipeline(count=count, stages=[], throughput=0.0, bottleneck=None, limiting=[], drivers=[])
    return Pipeline(
        count=count,
        stages=[Stage.model_validate(stage.model_dump()) for stage in seen.stages],
        throughput=throughput(seen.stages),
        bottleneck=seen.bottleneck,
        limiting=list(limiting(seen.stages)),
        drivers=[Driver(**dict(driver)) for driver in seen.drivers],
    )
