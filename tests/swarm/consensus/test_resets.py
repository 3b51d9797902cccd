"""When the coordinator signs a reset, and which branch it chooses."""

from dataclasses import replace

from dedloc_kit.swarm.consensus.chain import Chain
from dedloc_kit.swarm.consensus.records import Goodbye, Reset
from dedloc_kit.swarm.consensus.resets import Branch, BranchChoice, ElectorateWatch, Position, ResetOptions, new_reset
from tests.swarm.consensus.table import VERIFIER, digest, signer, voter
from tests.swarm.consensus.test_chain import GENESIS, chain, commits, reset

OPTIONS = ResetOptions(minimum=10)
ME = voter("p0")


def position(made: Chain, name: str, samples: int = 5) -> Position:
    head = made.head
    return Position(head.term, head.step, head.previous, samples, voter(name))


def signs_at(watch: ElectorateWatch, made: Chain, *there: str, samples: int = 5, until: int = 200) -> int | None:
    """The first second at which it signs, while these are heard every two seconds."""
    for now in range(0, until, 2):
        for name in there:
            watch.heard(name, position(made, name, samples), float(now))
        if watch.tick(made, ME, None, float(now)):
            return now
    return None


def watch() -> ElectorateWatch:
    return ElectorateWatch(OPTIONS, 0.0)


def test_a_newcomer_that_waits_at_the_head_without_a_quorum_gets_a_reset_after_a_minute() -> None:
    made = chain(commits(2))
    assert signs_at(watch(), made, "p9") == 60


def test_nothing_is_signed_while_a_quorum_is_in_reach_or_nobody_waits() -> None:
    made = chain(commits(2))
    assert signs_at(watch(), made, "p1", samples=3) is None  # p1 and the coordinator are a quorum of p1 and p2
    assert signs_at(watch(), made) is None
    assert signs_at(watch(), made, "p9", samples=0) is None


def test_a_full_batch_that_waits_is_no_sign_of_a_quorum() -> None:
    """Its votes may name an average that nobody holds."""
    made = chain(commits(2))
    assert signs_at(watch(), made, "p1", "p2", samples=5) == 60


def test_those_at_another_head_do_not_count() -> None:
    made, behind = chain(commits(2)), chain(commits(1))
    looking = watch()
    for now in range(0, 200, 2):
        looking.heard("p9", position(behind, "p9"), float(now))
        assert not looking.tick(made, ME, None, float(now))


def test_after_sleep_it_listens_first() -> None:
    made, looking = chain(commits(2)), watch()
    for now in (0.0, 2.0, 4.0, 100.0, 102.0, 120.0):
        looking.heard("p9", position(made, "p9"), now)
        assert not looking.tick(made, ME, None, now)


def test_a_long_round_makes_it_more_patient() -> None:
    made, looking = chain(commits(2)), watch()
    looking.round_took(50.0)
    assert signs_at(looking, made, "p9") == 100
    looking = watch()
    for seconds in (50.0, *[2.0] * 16):  # long ago
        looking.round_took(seconds)
    assert signs_at(looking, made, "p9") == 60


def goodbye(made: Chain, name: str) -> Goodbye:
    return Goodbye(run_id="run", part="", head=made.head.previous, voter=voter(name)).signed(signer(name))


def test_if_all_that_are_missing_have_said_goodbye_it_signs_at_once() -> None:
    made, looking = chain(commits(2)), watch()
    looking.said_goodbye(goodbye(made, "p1"))
    assert signs_at(looking, made, "p9") == 60
    looking = watch()
    looking.said_goodbye(goodbye(made, "p1"))
    looking.said_goodbye(goodbye(made, "p2"))
    when = signs_at(looking, made, "p9")
    assert when is not None
    assert OPTIONS.waited <= when <= OPTIONS.waited + 2


def test_a_reset_names_those_in_reach_as_voters() -> None:
    made, looking = chain(commits(2)), watch()
    looking.heard("p9", position(made, "p9", 7), 0.0)
    looking.heard("p8", replace(position(made, "p8"), voter=voter("p8", 0)), 0.0)
    looking.heard("p7", position(made, "p7", 0), 0.0)
    assert looking.voters(made, 1.0) == ((voter("p9"), 7), (voter("p7"), 1))
    assert looking.voters(made, 11.0) == ()
    unsigned = new_reset(made, Branch(made.head.previous, ()), ME, digest("state"), looking.voters(made, 1.0))
    change = made.adopt([unsigned.signed(signer("organizer"))])
    assert len(change.taken) == 1
    assert made.head.electorate.enough([voter("p9")])


def test_of_branches_that_parted_the_one_with_more_samples_is_chosen() -> None:
    old = commits(3)
    made = chain([old[0], reset(chain(old[:1]).head, 1)])
    choice = BranchChoice(OPTIONS)
    assert choice.choose(made, 100.0) is None
    choice.offer(made, tuple(old[1:]), 10.0)
    choice.offer(made, tuple(old[1:2]), 11.0)
    assert choice.choose(made, 12.9) is None
    branch = choice.choose(made, 13.0)
    assert branch == Branch(old[0].link, tuple(old[1:]))
    signed = new_reset(made, branch, ME, digest("state")).signed(signer("organizer"))
    assert signed.term == 2
    made.adopt([*branch.records, signed])
    assert made.records == (*old, signed)


def test_a_branch_with_fewer_samples_or_that_a_person_left_is_not_chosen() -> None:
    old = commits(2)
    start = chain([]).head
    longer = reset(start, 1)
    made = chain([longer, *commits(3, start.after(longer, VERIFIER))])
    choice = BranchChoice(OPTIONS)
    choice.offer(made, tuple(old), 0.0)
    assert choice.choose(made, 3.0) is None
    chosen = chain([reset(GENESIS, 1, chosen=True)])
    choice.offer(chosen, tuple(old), 0.0)
    assert choice.choose(chosen, 3.0) is None
    forged = (old[0], Reset.changed(longer, term=9))
    choice.offer(chain([longer]), forged, 0.0)
    assert choice.choose(chain([longer]), 3.0) is None
