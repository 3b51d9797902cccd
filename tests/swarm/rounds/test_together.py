"""With which step parts of a run go back."""

from dedloc_kit.swarm.rounds.together import BEYOND, Together


def test_a_run_of_one_part_goes_back_with_its_next_step() -> None:
    together = Together(7, lambda: 9)
    assert together.agree(0, able=False) is None
    assert together.agree(0, able=True) == 10
    assert Together(12, lambda: 9).agree(0, able=True) == 13


def test_all_parts_go_back_with_one_step_that_nobody_has_come_to_as_soon_as_all_can() -> None:
    steps = [3, 18]
    together = Together(2, lambda: max(steps), parts=2)
    assert together.agree(0, able=True) is None
    assert together.agree(0, able=False) is None, "others are further by now"
    assert together.agree(1, able=True) is None
    steps[0] = 18
    assert together.agree(0, able=True) == 18 + 1 + BEYOND
    steps[1] = 19
    assert together.agree(1, able=False) == 18 + 1 + BEYOND, "it is agreed"


def test_where_a_part_has_gone_back_already_the_others_follow_with_its_step() -> None:
    together = Together(2, lambda: 18, parts=3)
    assert together.agree(0, able=False) is None
    assert together.agree(1, able=True, done=29) == 29
    assert together.agree(0, able=False) == together.agree(2, able=True) == 29
