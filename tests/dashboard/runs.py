"""A run with a past, for tests of what the dashboard makes of it."""

import math
from collections.abc import Sequence
from pathlib import Path

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Joined, PeerSeen
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.steps import Contribution, GlobalStep

RUN: RunConfig = parse_run(
    {
        "name": "demo",
        "global_batch": 64,
        "task": {"name": "albert"},
        "data": {"train": [{"dataset": "owner/name"}]},
        "optimizer": {"total_steps": 100, "warmup_steps": 10},
    }
)
BEGAN = 1_760_000_000.0
HOSTILE_NAMES = (
    "</text></svg><script>alert(1)</script>",
    "\" onload=alert(1) x='&amp;]]><!--",
    "\u202etxet sdrawkcab\u2066\u200b\u200d\ufeff",
    "\ufffe\uffff\U0010ffff\U000e0041",
    "W" * 64,
    "﷽" * 64,
    "\u0301" * 64,
    " ",
    "আশা রহমান",
    "{{7*7}} %s %(x)s \\n # HELP",
)
"""All that the records allow: 64 characters, none of them a control character."""


def fill(path: Path, names: Sequence[str] = ("Asha",), steps: int = 3, *, samples: int = 64, loss: float = 8.0) -> None:
    """Record global steps of one minute to which every one of these people gives as much; their peer ids are p0, p1."""
    now = BEGAN
    ledger = Ledger(path, clock=lambda: now)
    for step in range(1, steps + 1):
        now = BEGAN + 60 * step
        given = {
            f"p{number}": Contribution(
                run_id=RUN.run_id,
                step=step,
                session="a1",
                samples=samples,
                session_samples=samples * step,
                loss=2.0,
                name=name,
                time=now,
            )
            for number, name in enumerate(names)
        }
        done = GlobalStep(
            step=step, round=f"a{step:x}", time=now, samples=samples, loss=loss / step, peers=2, seconds=0.5
        )
        ledger.record_step(done, given)
        if math.isfinite(loss):
            ledger.record_evaluation(step, Evaluation(loss=loss / step), now)
    ledger.close()


HOSTILE = "</script><img src=x onerror=alert(1)>\u202e" + "W" * 20


def seen(
    peer: str, samples: int = 0, *, step: int = 0, rate: float = 8.0, name: str = "Asha", follower: bool = False
) -> PeerSeen:
    return PeerSeen(
        peer=peer,
        name=name,
        device="NVIDIA T4",
        step=step,
        samples=samples,
        samples_per_second=rate,
        follower=follower,
        client_mode=not follower,
    )


def joined() -> Joined:
    return Joined(run_id=RUN.run_id, peer="c", session="a1", addresses=(), step=0, device="cpu", parameters=1)


COORDINATOR = seen("c", follower=True, rate=0.0, name="organizer")
