"""What follows from recent groups for the next one."""

from dedloc_kit.swarm.gathering.timing import MAX_WINDOW, MIN_LEAD, GatheringTimes


def test_a_peer_that_had_to_wait_for_the_others_gathers_no_earlier_next_time() -> None:
    times = GatheringTimes()
    times.stood(seconds=30.0, late=0.0)
    assert times.lead == MIN_LEAD


def test_a_group_that_stood_late_is_gathered_earlier_until_it_has_long_been_in_time() -> None:
    times = GatheringTimes()
    times.stood(seconds=6.0, late=4.0)
    assert times.lead > 4.0
    for _ in range(20):
        times.stood(seconds=6.0, late=0.0)
    assert times.lead == MIN_LEAD


def test_each_group_in_vain_makes_the_pause_longer_until_a_step_is_taken() -> None:
    times = GatheringTimes()
    assert times.pause == 0.0
    times.ended(commit=False)
    once = times.pause
    times.ended(commit=False)
    assert 0.0 < once < times.pause
    times.ended(commit=True)
    assert times.pause == 0.0


def test_a_group_waits_longer_for_peers_that_finish_a_microbatch_first() -> None:
    times = GatheringTimes()
    times.stood(seconds=600.0, late=0.0)
    assert times.window == MAX_WINDOW
    times.may_need(60.0)
    assert times.window == MAX_WINDOW + 120.0
