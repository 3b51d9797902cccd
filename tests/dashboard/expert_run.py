"""A run with experts, for tests of what is told of it."""

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import ExpertsState
from dedloc_kit.experts_state import ExpertHost, ExpertLayer
from tests.dashboard.runs import HOSTILE_NAMES, RUN

MIXED: RunConfig = parse_run(
    RUN.model_dump(mode="json")
    | {
        "averaging": {"overlap": False},
        "experts": {"layers": [1, 3], "grid": [2, 3], "width": 8, "hidden": 12},
    }
)
HOSTS = tuple(
    ExpertHost(peer=peer, name=name, organizer=organizer, kept=kept, copies=copies)
    for peer, name, organizer, kept, copies in (
        ("QmO", "coordinator", True, 1, 0),
        ("Qm1", HOSTILE_NAMES[0], False, 6, 4),
        ("Qm2", HOSTILE_NAMES[8], False, 4, 6),
    )
)


def state(*layers: ExpertLayer) -> ExpertsState:
    return ExpertsState(grid=(2, 3), layers=layers, hosts=HOSTS)


_TOKENS = (10, 20, 30, 0, 60, 0)
LACKING = state(
    ExpertLayer(layer=1, keepers=(1, 1, 1, 2, 2, 0), stand_ins=(2, 2, 2, 1, 1, None), tokens=_TOKENS),
    ExpertLayer(layer=3, keepers=(1, 1, 1, 2, 2, None), stand_ins=(2, 2, 2, 1, 1, None), tokens=(0,) * 6),
)
"""The organizer's machine alone has 1.1.2, and nobody 3.1.2."""
WHOLE = state(
    *(
        ExpertLayer(layer=layer, keepers=(1, 1, 1, 2, 2, 2), stand_ins=(2, 2, 2, 1, 1, 1), tokens=_TOKENS)
        for layer in (1, 3)
    )
)
HELD = (
    "nobody keeps 1 of 12 experts (3.1.2); one machine alone has 1 of 12 experts (1.1.2)",
    "each of 12 experts is on two machines",
)
"""Of either."""
