"""Which checkpoints stay, over seeded histories of saves."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.checkpoint import Checkpoints, steps_in
from dedloc_kit.learning.train.state.retention import DAY_SECONDS, DAYS, steps_to_keep
from dedloc_kit.records.state import StateInfo

BEGIN = 20_000 * DAY_SECONDS
HISTORIES = 1000
JUMPS = (-20_000, -400, -3, -1, 1, 2, 8, 400, 80_000)
"""Days by which a clock jumps; with the largest it says 2238, with the least 1970."""


def honest(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Steps and the time at which each is written, minutes to days apart."""
    step, now = 0, BEGIN + rng.randrange(DAY_SECONDS)
    while True:
        step += rng.randint(1, 5)
        now += int(rng.choice([60, 3600, 20_000, DAY_SECONDS, 3 * DAY_SECONDS]) * rng.random())
        yield step, now


def days(history: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each day with its newest step, the last ones first."""
    newest = {time // DAY_SECONDS: step for step, time in history}
    return sorted(newest.items(), key=lambda item: -item[1])


def kept_after(history: list[tuple[int, int]], newest: int) -> dict[int, int]:
    """What is left when the others are removed after each save, as `Checkpoints` does."""
    saved: dict[int, int] = {}
    for step, time in history:
        saved[step] = time
        stay = steps_to_keep(saved, newest)
        assert len(stay) <= newest + DAYS
        saved = {step: time for step, time in saved.items() if step in stay}
    return saved


def test_the_newest_and_that_of_each_of_the_last_seven_days_stay() -> None:
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        history, newest = list(islice(honest(rng), rng.randint(1, 60))), rng.randint(1, 4)
        steps = [step for step, _ in history]
        assert kept_after(history, newest).keys() == {*steps[-newest:], *(step for _, step in days(history)[:DAYS])}


def test_a_clock_that_jumps_costs_at_most_one_day() -> None:
    """For a while it is ahead or behind, by hours to centuries."""
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        history = list(islice(honest(rng), rng.randint(10, 60)))
        first = rng.randrange(len(history))
        last = rng.randint(first, len(history)) if rng.random() < 0.7 else len(history)
        jump, same = rng.choice(JUMPS) * DAY_SECONDS, rng.random() < 0.5
        wrong = [
            (step, (history[first][1] if same else time) + jump) if first <= place < last else (step, time)
            for place, (step, time) in enumerate(history)
        ]
        kept = kept_after(wrong, 3)
        assert kept.keys() >= {step for step, _ in history[-3:]}
        assert kept.keys() >= {step for _, step in days(wrong)[:DAYS]}
        if same and last - first > 0:  # it stands for one day at most
            right = [*history[:first], *history[last:]]
            lost = [step for _, step in days(right)[: DAYS - 1] if step not in kept]
            assert len(lost) <= 1


def test_a_clock_that_jumps_at_each_step_keeps_no_more_and_loses_no_newest() -> None:
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        history = [(step, rng.randrange(2**33)) for step, _ in islice(honest(rng), 40)]
        kept = kept_after(history, 3)
        assert kept.keys() >= {step for step, _ in history[-3:]}
        assert len(kept) == DAYS


def test_a_diverged_training_pushes_no_day_out() -> None:
    saved = {day: BEGIN + day * DAY_SECONDS for day in range(20)}
    assert steps_to_keep(saved, 2, lost=range(12, 20)) == {18, 19, *range(5, 12)}


def saved_on(folder: Path, clock: Callable[[], float], *steps: int) -> None:
    checkpoints = Checkpoints(folder, keep=3, clock=clock)
    for step in steps:
        checkpoints.save({"w": torch.ones(1)}, StateInfo(run_id="x", step=step, rounds=()))


def test_yesterdays_checkpoint_is_still_in_the_folder(tmp_path: Path) -> None:
    for day in range(10):
        saved_on(tmp_path, lambda day=day: BEGIN + day * DAY_SECONDS, *range(10 * day, 10 * day + 10))  # type: ignore[misc]
    assert steps_in(tmp_path) == [99, 98, 97, 89, 79, 69, 59, 49, 39]


def test_a_folder_that_was_copied_to_another_machine_keeps_its_days(tmp_path: Path) -> None:
    """The files are as old as the copy then, and the clock there is wrong."""
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    for day in range(9):
        saved_on(here, lambda day=day: BEGIN + day * DAY_SECONDS, 10 * day, 10 * day + 1)  # type: ignore[misc]
    for path in here.iterdir():
        (there / path.name).write_bytes(path.read_bytes())
    saved_on(there, lambda: 0.0, 90, 91)
    assert steps_in(there) == [91, 90, 81, 71, 61, 51, 41, 31]


def test_a_protected_step_and_the_best_stay_beside_those_of_days(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, clock=lambda: BEGIN)
    for step in range(20):
        checkpoints.save({"w": torch.ones(1)}, StateInfo(run_id="x", step=step, rounds=()))
        if step == 4:
            checkpoints.protect(step)
        if step == 7:
            checkpoints.rate(step, 1.0)
    assert steps_in(tmp_path) == [19, 18, 17, 7, 4]


@pytest.mark.parametrize("metadata", [{}, {"dedloc_kit.saved": "soon"}, {"dedloc_kit.saved": "9" * 5000}])
def test_without_a_usable_time_that_of_the_file_counts(tmp_path: Path, metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    path = checkpoint.path_of(tmp_path, 1)
    info = StateInfo(run_id="x", step=1, rounds=())
    save_file({"w": torch.ones(1)}, path, {checkpoint.INFO_KEY: info.model_dump_json(), **metadata})
    saved_on(tmp_path, lambda: BEGIN + 100 * DAY_SECONDS * DAYS, *range(2, 7))
    assert steps_in(tmp_path) == [6, 5, 4, 1]


def test_a_damaged_file_ends_no_save(tmp_path: Path) -> None:
    checkpoint.path_of(tmp_path, 1).write_bytes(b"damaged")
    saved_on(tmp_path, lambda: BEGIN, 2, 3, 4)
    assert steps_in(tmp_path)[:3] == [4, 3, 2]
