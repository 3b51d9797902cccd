"""The learning rate is a pure function of the global step."""

import math

import pytest

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.records.orders import Decay

CONFIG = OptimizerConfig(learning_rate=0.1, warmup_steps=4, total_steps=14)


def test_it_warms_up_in_equal_parts_from_the_first_update_on() -> None:
    rates = [learning_rate(CONFIG, step) for step in range(5)]
    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


def test_it_peaks_at_the_end_of_the_warm_up_and_falls_to_zero_at_the_end() -> None:
    rates = [learning_rate(CONFIG, step) for step in range(4, 15)]
    assert rates == pytest.approx([0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.0])


def test_it_stays_zero_after_the_end() -> None:
    assert learning_rate(CONFIG, 15) == 0.0
    assert learning_rate(CONFIG, 10_000) == 0.0


def test_the_last_update_of_a_run_still_learns() -> None:
    assert learning_rate(CONFIG, CONFIG.total_steps - 1) > 0


def test_without_warm_up_it_starts_at_the_peak() -> None:
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=0, total_steps=2)
    assert [learning_rate(config, step) for step in range(3)] == pytest.approx([0.1, 0.05, 0.0])


def test_it_never_exceeds_the_configured_rate() -> None:
    config = OptimizerConfig()
    assert max(learning_rate(config, step) for step in range(0, 130_000, 50)) == pytest.approx(config.learning_rate)


def test_it_begins_and_ends_where_the_run_says() -> None:
    config = OptimizerConfig(
        learning_rate=1.0, start_learning_rate=0.5, end_learning_rate=0.2, warmup_steps=4, total_steps=8
    )
    rates = [learning_rate(config, step) for step in range(9)]
    assert rates == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0, 0.8, 0.6, 0.4, 0.2])
    assert learning_rate(config, 10_000) == pytest.approx(0.2)


def test_it_falls_on_half_a_cosine_as_swavs_does() -> None:
    config = OptimizerConfig(
        learning_rate=2.4, start_learning_rate=0.3, end_learning_rate=0.0048, schedule="cosine",
        warmup_steps=500, total_steps=5000,
    )  # fmt: skip
    for step in range(500, 5001, 100):  # equation 5 of arXiv 1608.03983
        expected = 0.0048 + 0.5 * (2.4 - 0.0048) * (1 + math.cos(math.pi * (step - 500) / 4500))
        assert learning_rate(config, step) == pytest.approx(expected)
    assert learning_rate(config, 0) == pytest.approx(0.3, rel=0.02)
    assert learning_rate(config, 6000) == pytest.approx(0.0048)


def test_it_stays_until_the_decay_is_ordered_and_ends_where_the_run_says() -> None:
    config = OptimizerConfig(
        learning_rate=1.0, end_learning_rate=0.2, schedule="warmup-stable-decay", warmup_steps=2, total_steps=100
    )
    assert [learning_rate(config, step) for step in (0, 1, 2, 50, 99)] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0])
    decay = Decay(start=11, steps=3)  # so the first one follows ten finished updates
    rates = [learning_rate(config, step, decay) for step in (9, 10, 11, 12, 13, 99)]
    assert rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.4, 0.4])


def test_a_decay_that_is_ordered_during_the_warm_up_begins_where_the_rate_is() -> None:
    config = OptimizerConfig(learning_rate=1.0, schedule="warmup-stable-decay", warmup_steps=9, total_steps=100)
    rates = [learning_rate(config, step, Decay(start=4, steps=3)) for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.2, 0.1])
