"""How large a model some text carries, how long a run may read it, and what several languages get."""

import pytest

from dedloc_kit.organizer.corpus_size import MOST_PASSES, Schedule, parameters, shares, tokens_in, within


def test_swahili_carries_what_chinchilla_says() -> None:
    tokens = tokens_in(0.57e9)
    assert tokens == pytest.approx(0.88e9, rel=0.01)
    assert parameters(tokens) == pytest.approx(44e6, rel=0.01)
    assert parameters(tokens, 4) == pytest.approx(177e6, rel=0.01)


def test_a_run_that_reads_its_text_seldom_stays_as_it_is() -> None:
    usual = Schedule(1024, 1000, 100, 512)
    assert within(usual, usual.tokens / MOST_PASSES) == usual


def test_a_run_that_would_read_its_text_too_often_ends_earlier() -> None:
    usual = Schedule(1024, 1000, 300, 512)
    shorter = within(usual, usual.tokens / MOST_PASSES / 2)
    assert shorter == Schedule(1024, 500, 50, 512)


@pytest.mark.parametrize("tokens", [1e4, 1e6, 0.9e9, 30e9])
@pytest.mark.parametrize("languages", [1, 3])
def test_no_text_is_read_more_often_than_planned_and_there_are_steps_enough(tokens: float, languages: int) -> None:
    usual = Schedule(65536, 5000, 10, 1024)
    planned = within(usual, tokens, languages)
    least = 64 * 1024
    assert planned.tokens <= max(tokens * (MOST_PASSES if languages == 1 else 2), least)
    assert planned.total_steps >= 100 or planned.global_batch == 64
    assert planned.warmup_steps < planned.total_steps
    assert usual.global_batch % planned.global_batch == 0


def test_languages_share_a_run_by_a_power_of_their_text() -> None:
    large, small = shares([1000e9, 1e9], planned=1e9)
    assert large / small == pytest.approx(1000**0.3)
    assert large + small == pytest.approx(1)


def test_no_language_is_read_more_than_four_times() -> None:
    texts = [400e9, 40e9, 0.9e9, 0.1e9]
    of = shares(texts, planned=300e9)
    assert sum(of) == pytest.approx(1)
    assert [share * 300e9 / text for share, text in zip(of, texts, strict=True)] == pytest.approx(
        [0.493, 2.466, 4, 4], rel=0.01
    )
    assert of[0] / of[1] == pytest.approx(10**0.3, rel=1e-6), "the others share what is left as before"


def test_where_all_text_is_read_as_often_as_it_may_be_each_gets_its_part() -> None:
    assert shares([3.0, 1.0], planned=16.0) == pytest.approx([0.75, 0.25])
    assert shares([3.0, 1.0], planned=1e9) == pytest.approx([0.75, 0.25])
    assert shares([5.0], planned=1.0) == [1.0]
