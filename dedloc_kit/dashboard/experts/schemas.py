"""What the API answers about the experts of a run. How many tokens they get is as their hosts say it."""

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.dashboard.schemas import Answer
from dedloc_kit.events import ExpertsState
from dedloc_kit.experts_state import ExpertLayer as Seen
from dedloc_kit.experts_state import most_over_mean


class ExpertHost(Answer):
    peer: str
    name: str
    organizer: bool
    """It is the organizer's machine, which has what nobody else has."""
    kept: int
    """Experts that it computes and whose steps it takes."""
    copies: int
    """Those that it stands in for."""


class ExpertLayer(Answer):
    """The cells of one layer's grid, row by row."""

    layer: int
    keepers: list[int | None]
    """Of each cell the place of its keeper among the hosts, from 0; null if nobody keeps it."""
    stand_ins: list[int | None]
    """Likewise who has an equal copy and takes over."""
    machines: list[int]
    """Likewise on how many machines it is, 0 to 2."""
    tokens: list[int]
    """About how many went to each cell in the last finished global step."""
    most_over_mean: float
    """How many times the mean the most used cell got; 0 while nothing is known."""


class Experts(Answer):
    """The experts of the run."""

    rows: int
    """Of the grid; `columns` as well."""
    columns: int
    count: int
    """Of all layers."""
    layers: list[ExpertLayer]
    """All of them; none while the coordinator, which sees them, is not heard, or where there are too many to tell."""
    hosts: list[ExpertHost]
    """Who has any."""
    held: str | None
    """How well they are held, in a sentence; null while that is not known."""


def experts(settings: ExpertsConfig, seen: ExpertsState | None) -> Experts:
    """As the coordinator saw them last."""
    (rows, columns), layers = settings.grid, () if seen is None else seen.layers
    return Experts(
        rows=rows,
        columns=columns,
        count=settings.count,
        layers=[_layer(layer) for layer in layers],
        hosts=[] if seen is None else [ExpertHost(**dict(host)) for host in seen.hosts],
        held=None if seen is None else seen.held,
    )


def _layer(seen: Seen) -> ExpertLayer:
    machines = [seen.machines(cell) for cell in range(len(seen.keepers))]
    return ExpertLayer(**seen.model_dump(mode="json"), machines=machines, most_over_mean=most_over_mean(seen))
