"""What the page says of the plan."""

from dedloc_kit.dashboard.live.planned import FIRST_STEPS, planned
from dedloc_kit.records.plan import Plan

PLAN = Plan(
    run_id="demo-0123456789abcdef",
    volunteers="8xt4@50mbit",
    volunteer_count=8,
    step_seconds=10.0,
    days=3.0,
    kilowatt_hours=100.0,
    sent_bytes=1e6,
    received_bytes=1e6,
    loss=(3.3, 4.5),
)


def test_nothing_is_said_before_the_pace_is_known() -> None:
    assert planned(PLAN, FIRST_STEPS - 1, 10.0, 8) is None
    assert planned(PLAN, FIRST_STEPS, None, 8) is None


def test_the_pace_and_the_volunteers_are_compared() -> None:
    def told(seconds: float, volunteers: int = 8) -> str:
        found = planned(PLAN, FIRST_STEPS, seconds, volunteers)
        assert found is not None
        return found.text

    assert told(10.4) == (
        "A step takes 10.4 s, as planned (10.0 s); 8 volunteers at work, 8 planned; final loss planned 3.30 to 4.50"
    )
    assert told(15.0, 1).startswith("A step takes 15.0 s, 1.5 times as long as planned (10.0 s); 1 volunteer at work")
    assert "2.0 times as fast as planned" in told(5.0)
    assert planned(PLAN.model_copy(update={"step_seconds": 0.0}), FIRST_STEPS, 1.0, 8) is not None
