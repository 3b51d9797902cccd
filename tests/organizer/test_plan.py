"""The plan of a run: electricity, traffic, the loss to expect, and what would halve the time."""

from pathlib import Path

import pytest

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import Rehearsed, SampleCost
from dedloc_kit.organizer.plan import (
    DIRECTORY_BYTES,
    HEADERS,
    describe_plan,
    halved,
    kilowatt_hours,
    plan_of,
    traffic_of,
)
from dedloc_kit.organizer.prediction import Prediction, Volunteers, predict, read_volunteers
from dedloc_kit.organizer.round_time import TOLD_BYTES
from dedloc_kit.organizer.scaling_law import SPREAD, expected_loss
from dedloc_kit.records.plan import PLAN_FILE, read_plan, write_plan
from tests.tiny import tiny_run

MBIT = 1e6 / 8


def rehearsed(parameters: int = 45_000_000, vector: int = 20_000_000) -> Rehearsed:
    cost = SampleCost(flops=1e12, kept_bytes=800_000_000, microbatch=1, samples_per_second=4.0)
    return Rehearsed(parameters=parameters, gradient_bytes=vector, average_bytes=vector, device="CPU", cost=cost)


def causal(**task: object) -> RunConfig:
    return tiny_run(global_batch=4096, task={"name": "causal", "tokenizer": "owner/name", **task})


def test_a_mix_of_laptops_is_read_with_or_without_blanks() -> None:
    assert read_volunteers("5 x t4, 3 x laptop") == (Volunteers(5, "t4"), Volunteers(3, "laptop"))
    assert read_volunteers("5xt4,3xlaptop") == read_volunteers("5 x T4, 3x Laptop")


def test_the_laws_give_the_loss_that_their_papers_do() -> None:
    # Chinchilla itself: 70 G parameters and 1.4 T tokens (Hoffmann et al. 2022, table 3: 1.9 or so with approach 3).
    found = expected_loss(70_000_000_000, 1.4e12)
    assert found is not None
    low, high = found
    assert low / (1 - SPREAD) == pytest.approx(1.94, abs=0.05)
    assert high / (1 + SPREAD) == pytest.approx(1.98, abs=0.05)
    assert expected_loss(300_000, 1e9) is None, "no law was fitted to so small a model"


def test_who_averages_for_others_sends_and_receives_more() -> None:
    alone = traffic_of(rehearsed(), members=4, step_seconds=0.0)
    assert alone.sent == alone.received == HEADERS * (20e6 + 4 * TOLD_BYTES)
    quarter = traffic_of(rehearsed(), members=4, step_seconds=0.0, share=0.25)
    assert quarter.sent == HEADERS * (0.75 * 20e6 + 0.25 * 3 * 20e6 + 4 * TOLD_BYTES)
    assert quarter.received == HEADERS * (0.75 * 20e6 + 0.25 * 2 * 20e6 + 4 * TOLD_BYTES)
    longer = traffic_of(rehearsed(), members=4, step_seconds=10.0)
    assert longer.sent - alone.sent == pytest.approx(10 * 2 * DIRECTORY_BYTES)


def test_all_traffic_of_a_group_is_sent_by_one_and_received_by_another() -> None:
    shares, members = (0.5, 0.25, 0.0, 0.0), 5
    volunteers = [traffic_of(rehearsed(), members, 0.0, share) for share in shares]
    told = HEADERS * members * TOLD_BYTES
    rest = 1 - sum(shares)  # the coordinator's, who gives no gradient
    sent = sum(each.sent - told for each in volunteers) + HEADERS * rest * 4 * 20e6
    received = sum(each.received - told for each in volunteers) + HEADERS * ((1 - rest) + rest * 4) * 20e6
    assert sent == pytest.approx(received)


def test_devices_that_wait_take_less_electricity_than_devices_that_compute() -> None:
    mix = [Volunteers(10, "t4")]
    busy = Prediction(computing=10.0, network=1.0, matchmaking=1.0, vanishing=0.0, step=10.0, days=1.0)
    waits = Prediction(computing=5.0, network=1.0, matchmaking=4.0, vanishing=0.0, step=10.0, days=1.0)
    assert kilowatt_hours(mix, busy) == pytest.approx(10 * (60 + 70) * 24 / 1000)
    assert 10 * 60 * 24 / 1000 < kilowatt_hours(mix, waits) < kilowatt_hours(mix, busy)
    assert kilowatt_hours([Volunteers(1, "cpu")], busy) == pytest.approx((60 + 45) * 24 / 1000)


def test_what_is_said_to_halve_the_time_does() -> None:
    mix = [Volunteers(10, "t4", 50 * MBIT)]
    assert halved(causal(), rehearsed(), [Volunteers(2, "laptop")], 1000 * MBIT) == (
        "4 such volunteers in place of 2 would halve the time"
    )
    slow = halved(causal(), rehearsed(vector=400_000_000), [Volunteers(40, "a100", 500 * MBIT)], 10 * MBIT)
    assert slow.startswith("a coordinator's line of ")
    line = float(slow.split()[4].replace(",", "")) * MBIT
    before, after = (
        predict(causal(), rehearsed(vector=400_000_000), [Volunteers(40, "a100", 500 * MBIT)], each).step
        for each in (10 * MBIT, line)
    )
    assert after <= before / 2
    tiny = tiny_run(global_batch=8, task={"name": "causal", "tokenizer": "owner/name"})
    assert "no single change halves the time: rounds take longest" in halved(tiny, rehearsed(vector=10), mix, 1e9)


def test_a_plan_tells_all_an_organizer_asks_for() -> None:
    run, mix = causal(), [Volunteers(10, "t4", 50 * MBIT)]
    predicted = predict(run, rehearsed(), mix, 100 * MBIT)
    plan = plan_of(run, rehearsed(), mix, 0, predicted)
    assert plan.volunteers == "10xt4@50mbit"
    assert read_volunteers(plan.volunteers) == tuple(mix)
    assert plan.loss is not None
    told = "\n".join(describe_plan(run, rehearsed(), plan, "a line"))
    assert "each volunteer sends " in told
    assert "and gets 540 MB when it joins" in told
    assert "kWh of 10 volunteers" in told
    assert f"{plan.loss[0]:.2f} to {plan.loss[1]:.2f} nats a token after 2.10 G tokens" in told
    small = plan_of(run, rehearsed(300_000), mix, 0, predicted)
    assert "no scaling law was fitted to so small a model" in "\n".join(
        describe_plan(run, rehearsed(300_000), small, "")
    )
    albert = plan_of(tiny_run(), rehearsed(), mix, 0, predicted)
    assert albert.loss is None, "the laws are for models that write"


def test_a_plan_is_read_for_its_run_alone_and_damage_is_as_if_there_were_none(tmp_path: Path) -> None:
    run, mix = causal(), [Volunteers(10, "t4", 50 * MBIT)]
    plan = plan_of(run, rehearsed(), mix, 0, predict(run, rehearsed(), mix, 100 * MBIT))
    assert read_plan(tmp_path, run.run_id) is None
    assert write_plan(plan, tmp_path) == tmp_path / PLAN_FILE
    assert read_plan(tmp_path, run.run_id) == plan
    assert read_plan(tmp_path, "other-0123456789abcdef") is None
    for text in ("", "{}", '{"run_id": 3}', plan.model_dump_json().replace(":", ":[", 1), "[" * 50_000):
        (tmp_path / PLAN_FILE).write_text(text)
        assert read_plan(tmp_path, run.run_id) is None
    with pytest.raises(UserError, match="cannot be written"):
        write_plan(plan, tmp_path / "none")
