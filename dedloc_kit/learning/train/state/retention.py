"""Which checkpoints stay: the newest few, and one for each of the last days."""

from collections.abc import Container, Mapping

DAYS = 7
DAY_SECONDS = 86_400


def steps_to_keep(saved: Mapping[int, int], newest: int, lost: Container[int] = ()) -> set[int]:
    """Return the `newest` highest steps, and the highest step of each of the last seven days (UTC).

    The last days are those of the highest steps, not those with the latest dates: a clock that jumps, forward or back,
    costs at most one of the seven, and what stays never depends on the time now.

    :param saved: when the checkpoint of each step was written, in seconds since 1970
    :param lost: steps of a training that had diverged; they stand for no day
    """
    steps = sorted(saved, reverse=True)
    of_days: dict[int, int] = {}
    for step in steps:
        if step not in lost and len(of_days) < DAYS:
            of_days.setdefault(saved[step] // DAY_SECONDS, step)
    return {*steps[:newest], *of_days.values()}
