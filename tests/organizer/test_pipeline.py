"""What a mix of volunteers is predicted to make of a pipeline."""

from typing import Any

import pytest

from dedloc_kit.config.parts import PipelineConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Rehearsed, SampleCost, StageCost
from dedloc_kit.organizer.check import describe
from dedloc_kit.organizer.pipeline import (
    RISE,
    describe_pipeline,
    holds,
    kinds_for,
    predict_pipeline,
    stage_memory,
)
from dedloc_kit.organizer.prediction import COLLABORATING, DEVICES, read_volunteers
from dedloc_kit.organizer.round_time import SHARE_OF_LINE
from tests.tiny import tiny_run

TOKENS, WIDTH, ROWS = 4096, 1024, 4
MBIT = 1e6 / 8


def stage(seconds: float = 1.0, parameters: int = 100_000_000, **changes: Any) -> StageCost:
    sizes = {"parameters": parameters, "gradient_bytes": parameters // 2, "average_bytes": parameters // 2}
    return StageCost(
        **{**sizes, "width": WIDTH, "tokens": TOKENS, "flops": 1e12, "kept_bytes": 10**9, "seconds": seconds, **changes}
    )


def rehearsed(*stages: StageCost) -> Rehearsed:
    seconds = sum(each.seconds for each in stages)
    cost = SampleCost(flops=1e12, kept_bytes=10**9, microbatch=ROWS, samples_per_second=ROWS / seconds)
    parameters = sum(each.parameters for each in stages)
    return Rehearsed(
        parameters=parameters,
        gradient_bytes=parameters // 2,
        average_bytes=parameters // 2,
        device="CPU",
        cost=cost,
        stages=stages,
    )


def run(activations: Any = "8bit") -> RunConfig:
    whole = tiny_run(global_batch=4096, averaging={"overlap": False})
    return whole.model_copy(update={"pipeline": PipelineConfig(stages=3, activations=activations)})


def test_the_memory_of_a_stage_is_its_weights_gradients_moments_and_activations() -> None:
    assert stage_memory(stage()).held == 16 * 100_000_000
    assert stage_memory(stage(), "8bit").held == 10 * 100_000_000
    assert stage_memory(stage()).activations == 10**9
    assert stage_memory(stage(kept_bytes=0)).gpu == stage_memory(stage()).gpu - 10**9


def test_a_kind_of_gpu_is_named_if_it_holds_every_stage() -> None:
    small, large = stage(), stage(parameters=900_000_000)
    assert holds("t4", small)
    assert not holds("t4", large)
    assert "t4" in kinds_for([small, small])
    assert "t4" not in kinds_for([small, large])
    assert kinds_for([small, large])[-1] == "h100"


def test_the_slowest_stage_passes_what_its_volunteers_compute() -> None:
    found = predict_pipeline(run(), rehearsed(stage(), stage(), stage()), read_volunteers("7xCPU@1gbit"), 1e8)
    assert sorted(found.holders) == [2, 2, 3]
    assert found.rate == pytest.approx(2 * COLLABORATING)
    assert found.step == pytest.approx(4096 / ROWS / found.rate + found.averaging)
    assert found.averaging > 0


def test_who_holds_few_stages_is_dealt_out_first() -> None:
    """A T4 holds the first two only."""
    stages = stage(), stage(), stage(parameters=900_000_000)
    found = predict_pipeline(run(), rehearsed(*stages), read_volunteers("2xT4@1gbit,1xA100@1gbit"), 1e8)
    assert found.holders == (1, 1, 1)
    assert min(found.computing) == pytest.approx(COLLABORATING * DEVICES["t4"].peak * DEVICES["t4"].share / 1e12)


def test_lines_are_what_limits_a_narrow_model() -> None:
    """A stage in the middle gets three tensors for each microbatch; all lines together carry five for each border."""
    found = predict_pipeline(run(), rehearsed(stage(), stage(), stage()), read_volunteers("3xCPU@20mbit"), 1e8)
    size = TOKENS * WIDTH
    assert found.line == pytest.approx(
        tuple(20 * MBIT * SHARE_OF_LINE / size / tensors for tensors in (1, 3, 2)), rel=1e-6
    )
    assert found.all_lines == pytest.approx(3 * 20 * MBIT * SHARE_OF_LINE / (10 * size))
    assert found.rate == min(*found.line, found.all_lines)
    assert found.limit == "the lines"
    assert found.width == pytest.approx(WIDTH * (COLLABORATING / found.rate) ** (1 / RISE), abs=1)
    exact = predict_pipeline(run("none"), rehearsed(stage(), stage(), stage()), read_volunteers("3xCPU@20mbit"), 1e8)
    assert exact.rate == pytest.approx(found.rate / 4)


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ("2xCPU@1gbit", "nobody for stage"),
        ("4xCPU@1gbit", "too few at stage"),
        ("30xCPU@1gbit", "computing"),
        ("30xCPU@1mbit", "the lines"),
    ],
)
def test_what_limits_is_said(mix: str, words: str) -> None:
    found = predict_pipeline(run(), rehearsed(stage(), stage(), stage()), read_volunteers(mix), 1e8)
    assert words in found.limit
    assert words in "\n".join(describe_pipeline(run(), found))
    assert (found.rate == 0) == (mix == "2xCPU@1gbit")


def test_a_fast_volunteer_on_a_slow_line_is_not_left_alone_at_a_stage() -> None:
    found = predict_pipeline(
        run(), rehearsed(*[stage(kept_bytes=0)] * 3), read_volunteers("3xT4@20mbit,30xCPU@1gbit"), 1e8
    )
    assert min(found.holders) >= 5


def test_the_traffic_of_a_volunteer_is_said_by_the_day() -> None:
    """Ten tensors for each microbatch, two borders with five, and a round of its stage."""
    found = predict_pipeline(run(), rehearsed(stage(), stage(), stage()), read_volunteers("30xCPU@1gbit"), 1e8)
    a_step = 10 * TOKENS * WIDTH * (4096 / ROWS) / 30 + 50_000_000
    assert found.traffic == pytest.approx(a_step * 86_400 / found.step)
    assert any(line.startswith("traffic") and "a day" in line for line in describe_pipeline(run(), found))


def test_many_volunteers_are_dealt_out_all() -> None:
    found = predict_pipeline(run(), rehearsed(stage(), stage(), stage()), read_volunteers("2500xCPU,3xT4"), 1e8)
    assert sum(found.holders) == 2503


def test_the_check_says_what_each_stage_takes_and_how_many_volunteers_it_needs() -> None:
    lines = "\n".join(describe(run(), rehearsed(stage(), stage(), stage(parameters=2_000_000_000))))
    for words in ("stage 2", "2,000.0 million parameters: 32.0 GB of weights", "3 at least", "A100, H100"):
        assert words in lines
