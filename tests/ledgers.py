"""What a ledger may hold, for tests."""

from dedloc_kit.records.evaluation import FillMask
from dedloc_kit.records.steps import Contribution, GlobalStep

GAP = FillMask(before="a boat on the ", guess="road", truth="river", after=", slowly")
NOON = 20_000.5 * 86_400.0


def a_step(step: int, samples: int = 64, loss: float | None = 2.0, way: str = "a") -> GlobalStep:
    """The step as one of several ways of the training led to it."""
    return GlobalStep(
        step=step, round=f"{way}{step:x}", time=1000.0 + step, samples=samples, loss=loss, peers=3, seconds=0.5
    )


def given(step: int, samples: int, total: int, *, session: str = "a1", name: str = "Asha") -> Contribution:
    return Contribution(
        run_id="demo-0123456789abcdef",
        step=step,
        session=session,
        samples=samples,
        session_samples=total,
        loss=2.0,
        name=name,
        time=1000.0 + step,
    )
