"""What follows from recent rounds for the next one."""

from dedloc_kit.swarm.rounds.timing import IDLING_SECONDS, AdaptiveTimeouts, Idling


def test_each_failure_makes_more_patient_until_a_round_is_complete() -> None:
    timeouts = AdaptiveTimeouts()
    usual = timeouts.patience
    timeouts.failed()
    once = timeouts.patience
    timeouts.failed()
    assert usual < once < timeouts.patience
    timeouts.averaged(2.0, longest_silence=0.5, upload_rate=None)
    assert timeouts.patience <= usual


def test_who_waits_for_rounds_for_much_of_its_time_hears_so_once() -> None:
    idling, heard = Idling(), list[float]()
    for begin in range(0, int(4 * IDLING_SECONDS), 2):
        waits = 0.3 if begin < IDLING_SECONDS else 0.5
        if idling.limited(begin + waits, since=begin):
            heard.append(begin)
    assert len(heard) == 1, "0.5 of 2 seconds are much, 0.3 are not"
    assert IDLING_SECONDS < heard[0] <= 3 * IDLING_SECONDS
