"""Numbers as people read them."""

import pytest

from dedloc_kit.display.human import count, duration, for_organizer, rate, share, size, some, visible


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (3599.0, "59 min"),
        (7512.0, "2 h 5 min"),
        (86_400.0, "1 day 0 h"),
        (277_200.0, "3 days 5 h"),
    ],
)
def test_a_time_is_told_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (812_000, "812 kB"),
        (999_960, "1.0 MB"),
        (12_340_000, "12.3 MB"),
        (562_000_000, "562 MB"),
        (2_130_000_000, "2.1 GB"),
    ],
)
def test_bytes_are_told_in_the_largest_unit(number: float, words: str) -> None:
    assert size(number) == words


@pytest.mark.parametrize(
    ("part", "words"),
    [(0.0, "0.0 %"), (0.0004, "< 0.1 %"), (0.0231, "2.3 %"), (0.0996, "10 %"), (0.5, "50 %"), (1.0, "100 %")],
)
def test_a_small_share_is_not_rounded_to_nothing(part: float, words: str) -> None:
    assert share(part).replace("\u00a0", " ") == words


def test_one_is_not_many() -> None:
    assert [count(number, "sample") for number in (0, 1, 1234)] == ["0 samples", "1 sample", "1,234 samples"]


def test_large_rates_have_no_decimals() -> None:
    assert [rate(value) for value in (0.02, 0.25, 31.4, 99.96, 2912.4)] == ["0.02", "0.2", "31.4", "100", "2,912"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Asha", "Asha"),
        ("  two\n words ", "two words"),
        ("\u202etxet\u2066 dekcab\u200f", "txet dekcab"),
        ("ক্\u200dষ", "ক্\u200dষ"),
        ("a\u200bb\ufeff\uffff\x00\ue000", "ab"),
        ("\u200d \u0301\u2060", "anonymous"),
        ("", "anonymous"),
        ("<b>", "<b>"),
        ("W" * 10_000, "W" * 64),
    ],
)
def test_of_a_name_what_can_be_seen_is_shown(name: str, shown: str) -> None:
    assert visible(name) == shown


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("the memory is full", "the memory is full"),
        ("its log is /home/asha/dedloc/x.log; see it", "its log is … see it"),
        ("no /data/Asha Maria Roy/my data/x.txt here", "no … here"),
        ("C:\\Users\\Asha\\x is gone", "… is gone"),
        ("~/dedloc: full", "… full"),
        ("no answer of 203.0.113.7:80", "no answer of …:80"),
        ("a\x1b[2J\nb\u202e", "a[2J b"),
        ("W" * 1000, "W" * 20),
        ("", ""),
    ],
)
def test_of_a_reason_the_organizer_reads_neither_paths_nor_hosts_nor_control_characters(reason: str, told: str) -> None:
    assert for_organizer(reason, 20 if len(reason) > 500 else 160) == told


@pytest.mark.parametrize(("most", "told"), [(1, "a and 2 more"), (2, "a, b and 1 more"), (3, "a, b, c")])
def test_of_many_things_some_are_named(most: int, told: str) -> None:
    assert some(["a", "b", "c"], most) == told
