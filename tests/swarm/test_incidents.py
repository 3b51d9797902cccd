from dedloc_kit.swarm.incidents import Incidents


def test_what_is_repeated_is_counted_in_full_and_told_now_and_then(warned: list[str]) -> None:
    incidents = Incidents()
    for _ in range(100):
        incidents.reject("Progress: from the future")
    assert len(warned) == 7  # the first, second, fourth ... sixty-fourth time
    assert incidents.drain() == ([], {"Progress: from the future": 100})
    assert incidents.drain() == ([], {})


def test_a_stranger_that_finds_new_nonsense_every_time_fills_neither_memory_nor_log(warned: list[str]) -> None:
    incidents = Incidents()
    for number in range(10_000):
        incidents.reject(f"Progress: samples must not be -{number}")
    assert len(warned) < 40
    _, rejected = incidents.drain()
    assert (len(rejected), rejected.total()) == (21, 10_000)


def test_failed_rounds_are_told_and_kept_until_they_are_taken(warned: list[str]) -> None:
    incidents = Incidents()
    incidents.failed(7, "QmX did not begin")
    assert warned == ["a round failed and is tried again: QmX did not begin"]
    assert incidents.drain() == ([(7, "QmX did not begin")], {})
    for step in range(1_000):
        incidents.failed(step, "again")
    assert len(incidents.drain()[0]) == 100
