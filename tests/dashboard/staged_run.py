"""A run whose model is cut into stages, for tests of what is told of it."""

from dataclasses import dataclass
from typing import Any

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import PipelineState
from dedloc_kit.pipeline_state import State
from tests.dashboard.runs import HOSTILE_NAMES, RUN

COUNT = 4
STAGED: RunConfig = parse_run(
    RUN.model_dump(mode="json") | {"averaging": {"overlap": False}, "pipeline": {"stages": COUNT}}
)


@dataclass
class Moved:
    stage: int


@dataclass
class Begun:
    samples: int


@dataclass
class Offer:
    """What a peer says of itself."""

    stage: int | None
    microbatches_per_second: float = 2.0
    state: State = "online"
    name: str = "Asha"
    step: int = 7
    queue: int = 1
    served: int = 900
    moving: Moved | None = None
    accuses: tuple[str, ...] = ()
    driven: int = 0
    begun: Begun | None = None
    in_flight: tuple[tuple[int, int], ...] = ()


def offer(number: int, stage: int | None, speed: float = 2.0, **values: Any) -> Offer:
    return Offer(stage, speed, name=HOSTILE_NAMES[number % len(HOSTILE_NAMES)], **values)


def pipeline(*offers: Offer) -> PipelineState:
    return PipelineState.of({f"Qm{number}": each for number, each in enumerate(offers)}, COUNT)


WHOLE = pipeline(
    *(offer(number, number % COUNT, begun=Begun(4), in_flight=((1, 0), (0, 2))) for number in range(2 * COUNT))
)
LIMITED = pipeline(
    *(offer(number, 0, 2.6) for number in range(3)),
    offer(3, 1, 4.0),
    offer(4, 1, 1.5, state="moving", moving=Moved(2)),
    offer(5, 2, 3.1, queue=12),
    offer(6, 2, 9.0, state="joining"),
    offer(7, 3, 5.0, step=2**53),
    offer(8, 3, 0.5),
    offer(9, 3, 0.0),
    offer(10, None, 0.0, driven=640, begun=Begun(24), accuses=("Qm4",), in_flight=((2, 1), (1, 0), (16, 3), (0, 1))),
)
"""Stage 2 passes 3.1 of the 7.8 microbatches a second that stage 0 passes."""
GAP = pipeline(*(offer(number, number % 2, begun=Begun(8)) for number in range(4)), offer(4, 3))
"""Nobody holds stage 2, one peer alone stage 3."""
