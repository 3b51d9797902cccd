"""What forward calls leave is bounded in bytes and time, and a flood costs its sender alone."""

import pytest

from dedloc_kit.experts.kept import Kept
from dedloc_kit.experts.refused import Refused

KB = 1024


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store(clock: Clock | None = None) -> Kept[str]:
    """Room for ten that are as small as can be."""
    return Kept(10 * KB, 5.0, clock or Clock())


def there(kept: Kept[str], sender: str, ticket: int) -> bool:
    try:
        kept.take(sender, ticket)
    except Refused:
        return False
    return True


def test_what_was_kept_is_given_out_once_and_leaves_its_room() -> None:
    kept = store()
    ticket = kept.put("a", "value", KB)
    assert kept.size == 2 * KB
    assert kept.take("a", ticket) == "value"
    assert kept.size == 0
    assert not there(kept, "a", ticket)


def test_it_is_forgotten_after_a_while() -> None:
    kept = store(clock := Clock())
    first = kept.put("a", "", 0)
    clock.now = 4.0
    second = kept.put("a", "", 0)
    clock.now = 6.0
    assert not there(kept, "a", first)
    assert kept.size == KB
    assert there(kept, "a", second)


def test_a_flood_of_one_sender_takes_nothing_from_the_others() -> None:
    kept = store()
    honest = [kept.put("honest", "", 0) for _ in range(4)]
    flood = [kept.put("flood", "", 0) for _ in range(100)]
    assert kept.size <= 10 * KB
    assert all(there(kept, "honest", ticket) for ticket in honest)
    assert [there(kept, "flood", ticket) for ticket in flood[-7:]] == [False, *[True] * 6]


def test_who_has_most_makes_room_for_who_has_little() -> None:
    kept = store()
    flood = [kept.put("flood", "", 0) for _ in range(10)]
    honest = kept.put("honest", "", 0)
    assert there(kept, "honest", honest)
    assert [there(kept, "flood", ticket) for ticket in flood[:2]] == [False, True]


def test_what_there_can_be_no_room_for_is_refused_and_the_others_lose_nothing() -> None:
    kept = store()
    others = [kept.put(sender, "", 0) for sender in "abc"]
    for size in (10 * KB, 7 * KB):
        with pytest.raises(Refused, match="large"):
            kept.put("large", "", size)
    assert all(there(kept, sender, ticket) for sender, ticket in zip("abc", others, strict=True))
    assert kept.size == 0
