"""What follows from recent rounds for the next one."""

from dedloc_kit.swarm.rounds.timing import IDLING_SECONDS, MIN_LEAD, AdaptiveTimeouts, Idling


def test_who_had_to_wait_for_the_others_gathers_no_earlier_next_time() -> None:
    timeouts = AdaptiveTimeouts()
    timeouts.gathered(seconds=30.0, late=0.0)
    assert timeouts.lead == MIN_LEAD


def test_a_group_that_stood_late_is_gathered_earlier_until_it_has_long_been_in_time() -> None:
    timeouts = AdaptiveTimeouts()
    timeouts.gathered(seconds=6.0, late=4.0)
    assert timeouts.lead > 4.0
    for _ in range(20):
        timeouts.gathered(seconds=6.0, late=0.0)
    assert timeouts.lead == MIN_LEAD


def test_each_failure_makes_more_patient_until_a_round_is_complete() -> None:
    timeouts = AdaptiveTimeouts()
    usual = timeouts.patience
    timeouts.failed(begun=True)
    once = timeouts.patience
    timeouts.failed(begun=True)
    assert usual < once < timeouts.patience
    timeouts.averaged(2.0, longest_silence=0.5, upload_rate=None)
    assert timeouts.patience <= usual


def test_a_search_in_vain_makes_the_pause_longer_and_nobody_more_patient() -> None:
    timeouts = AdaptiveTimeouts()
    usual, limit = timeouts.patience, timeouts.limit
    timeouts.failed(begun=False)
    once = timeouts.pause
    timeouts.failed(begun=False)
    assert 0.0 < once < timeouts.pause
    assert (timeouts.patience, timeouts.limit) == (usual, limit)


def test_who_waits_for_rounds_for_much_of_its_time_hears_so_once() -> None:
    idling, heard = Idling(), list[float]()
    for begin in range(0, int(4 * IDLING_SECONDS), 2):
        waits = 0.3 if begin < IDLING_SECONDS else 0.5
        if idling.limited(begin + waits, since=begin):
            heard.append(begin)
    assert len(heard) == 1, "0.5 of 2 seconds are much, 0.3 are not"
    assert IDLING_SECONDS < heard[0] <= 3 * IDLING_SECONDS
