"""The auditor draws contributions, and sends away who cheats or never shows its work."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.audits.audit import GIVEN_UP_STEPS, KEPT_STEPS
from dedloc_kit.swarm.audits.auditor import (
    ALARM_SHARE,
    ALARM_STEPS,
    AUDITS_AT_ONCE,
    MAX_WAITING,
    MOST_UNSHOWN,
    MOST_WRONG,
    SPARED_STEPS,
    Auditor,
)
from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.audits.proofs import Proven, Shown
from dedloc_kit.swarm.audits.questions import Found, Prove, Recompute
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import Earned, claimed
from tests.hang import HANG
from tests.swarm.audits.audited import NOTHING_LOST, World, pledged, root

ALWAYS = TrustConfig(checks="on", share=1.0)
RARELY = TrustConfig(checks="on", share=1e-9)


class Rolls(Random):
    """The same number each time."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


@dataclass
class Run:
    """Steps of a world, each audited to its end before the next one."""

    auditor: Auditor
    world: World
    verdicts: list[Verdict] = field(default_factory=list)
    step: int = 0
    before: dict[str, bytes] = field(default_factory=dict)

    def takes(self, *authors: str, **values: object) -> None:
        self.step += 1
        counted = {}
        for author in authors:
            given = {"before": self.before.get(author, NOTHING_LOST)} | values
            counted[author] = pledged(author, self.step, **given)  # type: ignore[arg-type]
            self.before[author] = root(author, self.step)
        self.auditor.stepped(self.step, counted)
        self.settles()

    def settles(self) -> None:
        wait_until(lambda: self.auditor.idle)

    @property
    def convicted(self) -> list[str]:
        return [verdict.peer for verdict in self.verdicts]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def run_of(
    world: World, trust: TrustConfig = ALWAYS, probation: int = 0, chance: Random | None = None
) -> Iterator[Run]:
    verdicts = list[Verdict]()
    standing = Probation(probation, Earned(claimed))
    auditor = Auditor(trust, standing, NOTHING_LOST, world, verdicts.append, chance or Random(3))
    try:
        yield Run(auditor, world, verdicts)
    finally:
        auditor.close()


def test_whoever_cheats_is_sent_away_and_the_others_are_not() -> None:
    with run_of(World(sends_other=frozenset({"mallory"}))) as run:
        run.takes("alice", "mallory", "bob")
        assert run.convicted == ["mallory"]
        assert (run.auditor.tally.passed, run.auditor.tally.convicted) == (2, 1)
        assert run.auditor.checks == Checks(passed=2, convicted=1, share=1.0, alarm=0)


def test_a_verdict_tells_up_to_which_step_the_work_was_right() -> None:
    world = World(sends_other=frozenset({"eve"}))
    with run_of(world) as run:
        for author in ("mallory", "mallory", "alice", "eve"):
            run.takes(author)
        world.sends_other |= {"mallory"}
        run.takes("mallory")
        assert [(verdict.peer, verdict.last_passed) for verdict in run.verdicts] == [("eve", 0), ("mallory", 2)]


def test_who_is_convicted_is_not_convicted_again_until_it_may_have_been_let_in_again() -> None:
    with run_of(World(sends_other=frozenset({"mallory"}))) as run:
        for _ in range(SPARED_STEPS):
            run.takes("mallory")
        assert run.convicted == ["mallory"]
        run.takes("mallory")
        assert run.convicted == ["mallory", "mallory"]


def test_what_is_drawn_is_a_share_and_a_larger_one_after_a_conviction() -> None:
    world = World(peers={"alice": 1.0, "bob": 1.0}, microbatches=1)
    with run_of(world, TrustConfig(checks="on", share=0.05)) as run:
        for _ in range(200):
            run.takes("alice")
        assert 2 <= len(world.proofs) <= 25, "10 are expected"
        world.contradicts = frozenset({"mallory"})
        while not run.convicted:
            run.takes("mallory")
        before = len(world.proofs)
        for ago in range(ALARM_STEPS):
            assert (run.auditor.checks.share, run.auditor.checks.alarm) == (ALARM_SHARE, ago)
            run.takes("alice")
        assert 5 <= len(world.proofs) - before <= 25, "15 are expected"
        assert (run.auditor.checks.share, run.auditor.checks.alarm) == (0.05, None), "it is over"


def test_a_residual_from_nowhere_convicts_without_computing() -> None:
    world = World()
    with run_of(world, RARELY, chance=Rolls(0.99)) as run:
        run.takes("alice", "bob")
        run.takes("alice", "bob")
        assert not run.convicted
        run.before["alice"] = b"x" * 32
        run.takes("alice", "bob")
        assert run.convicted == ["alice"]
        assert not world.asked


def test_who_never_shows_its_work_is_sent_away_after_a_few_steps_in_a_row() -> None:
    world = World(mute=frozenset({"mallory"}))
    with run_of(world) as run:
        for _ in range(MOST_UNSHOWN - 1):
            run.takes("alice", "mallory")
        assert not run.convicted
        run.takes("alice", "mallory")
        assert run.convicted == ["mallory"]
        assert "does not show its work" in run.verdicts[0].why


def test_who_did_not_show_its_work_is_drawn_for_certain_and_forgiven_once_it_does() -> None:
    world = World(mute=frozenset({"bob"}))
    with run_of(world, RARELY, chance=Rolls(0.99)) as run:
        run.auditor._unshown["bob"] = (MOST_UNSHOWN - 2, 0)
        run.takes("bob")
        assert world.proofs == ["bob"]
        world.mute = frozenset()
        run.takes("bob")
        assert world.proofs == ["bob", "bob"]
        world.mute = frozenset({"bob"})
        run.takes("bob")
        assert world.proofs == ["bob", "bob"], "it is one of many again"
        assert not run.convicted


def test_silence_about_an_old_step_proves_nothing() -> None:
    world = World(mute=frozenset({"alice"}))
    held, goes_on = threading.Event(), threading.Event()
    show = world.prove

    def slow(*question: object) -> object:
        held.set()
        assert goes_on.wait(HANG)
        return show(*question)  # type: ignore[arg-type]

    world.prove = slow  # type: ignore[method-assign,assignment]
    with run_of(world) as run:
        for step in range(1, 9):  # two are asked at a time: the others have to wait until their steps are old
            run.auditor.stepped(step, {"alice": pledged("alice", step, before=NOTHING_LOST)})
        assert held.wait(HANG)
        run.auditor.stepped(20, {})
        goes_on.set()
        run.settles()
        assert not run.convicted
        assert run.auditor.tally.given_up == 8


def test_where_nobodys_work_can_be_computed_nobody_is_sent_away() -> None:
    with run_of(World(unable=True)) as run:
        for _ in range(3 * MOST_UNSHOWN):
            run.takes("alice", "bob")
        assert not run.convicted


def test_who_alone_names_work_that_nobody_can_compute_is_sent_away() -> None:
    class Absurd(World):
        def own(self, question: Recompute) -> Found:
            return Found() if question.author == "mallory" else super().own(question)

        def recompute(self, peer: str, question: Recompute) -> Found:
            return Found() if question.author == "mallory" else super().recompute(peer, question)

    with run_of(Absurd()) as run:
        for _ in range(3 * MOST_UNSHOWN):
            run.takes("alice", "bob")
            run.takes("mallory")
        assert set(run.convicted) == {"mallory"}


def test_audits_that_take_too_long_are_given_up_and_those_that_wait_are_bounded() -> None:
    world, goes_on = World(), threading.Event()
    compute = world.recompute

    def slow(peer: str, question: Recompute) -> Found:
        assert goes_on.wait(HANG)
        return compute(peer, question)

    world.recompute = slow  # type: ignore[method-assign]
    world.microbatches = 100
    with run_of(world) as run:
        for step in range(1, 2 * MAX_WAITING):
            run.auditor.stepped(step, {"alice": pledged("alice", step)})
        assert run.auditor.waiting == MAX_WAITING
        run.auditor.stepped(3 * MAX_WAITING + GIVEN_UP_STEPS, {})
        goes_on.set()
        run.settles()
        assert (run.auditor.tally.given_up, run.auditor.tally.passed) == (MAX_WAITING, 0)
        assert not run.convicted


def test_contributions_without_a_pledge_or_samples_and_steps_taken_alone_are_let_be() -> None:
    world = World(mute=frozenset({"alice"}))
    bare = {"group": "", "parts": bytes(32), "before": bytes(32), "after": bytes(32), "work": bytes(32)}
    with run_of(world) as run:
        plain = Contribution.parse(pledged("alice", 1).model_dump(include=set(Contribution.model_fields)))
        run.auditor.stepped(1, {"alice": plain})
        run.auditor.stepped(2, {"alice": pledged("alice", 2, samples=0, microbatches=0)})
        run.auditor.stepped(3, {"alice": pledged("alice", 3, **bare)})  # type: ignore[arg-type]
        run.settles()
        assert not world.proofs
        others: Mapping[str, Pledged] = {"alice": pledged("alice", 4, **bare), "bob": pledged("bob", 4)}  # type: ignore[arg-type]
        run.auditor.stepped(4, others)
        run.settles()
        assert "alice" in world.proofs, "with others there it is no such step"


def test_an_audit_that_breaks_does_not_end_those_after_it() -> None:
    world = World()
    proven, broken = world.proven, iter([True])

    def breaks(*given: object) -> object:
        if next(broken, False):
            raise RuntimeError("out of memory")
        return proven(*given)  # type: ignore[arg-type]

    world.proven = breaks  # type: ignore[method-assign,assignment]
    with run_of(world) as run:
        run.takes("alice")
        run.takes("alice")
        assert run.auditor.tally.passed == 1
        assert not run.convicted


def reduced(run: Run, steps: int) -> None:
    """Alice brings twice what Bob does, and all reduce."""
    run.world.averages = True
    for _ in range(steps):
        run.step += 1
        alice, bob = (pledged(peer, run.step, samples=n, session_samples=n) for peer, n in (("alice", 80), ("bob", 40)))
        run.auditor.stepped(run.step, {"alice": alice, "bob": bob})
        run.settles()


def test_a_reducer_that_makes_something_else_of_what_was_sent_is_sent_away_after_some_averages_and_no_other() -> None:
    with run_of(World(spoils=frozenset({"carol"}))) as run:
        reduced(run, 30)
        assert set(run.convicted) == {"carol"}
        assert "averaged" in run.verdicts[0].why
        assert run.world.made_by.count("carol") >= MOST_WRONG
        assert set(run.world.made_by) == set(run.world.peers), "honest ones were looked at as well"


def test_one_average_that_is_far_off_sends_nobody_away_if_the_next_one_is_right() -> None:
    world = World(spoils=frozenset({"alice", "bob", "carol", "dave"}))
    with run_of(world) as run:
        reduced(run, MOST_WRONG - 1)
        world.spoils = frozenset()
        reduced(run, 2 * len(world.peers))
        world.spoils = frozenset({"alice", "bob", "carol", "dave"})
        reduced(run, MOST_WRONG - 1)
        assert run.convicted == []


def test_an_average_of_parts_that_are_not_shown_is_not_judged() -> None:
    with run_of(World(spoils=frozenset({"carol"}), mute=frozenset({"bob"}))) as run:
        reduced(run, MOST_WRONG + 1)
        assert "carol" not in run.convicted


class Held(World):
    """Whoever is asked waits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go_on = threading.Event()
        self.steps: list[int] = []

    def prove(self, peer: str, question: Prove) -> Shown:
        assert self.go_on.wait(HANG)
        return super().prove(peer, question)

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        self.steps.append(pledged.step)
        return super().proven(pledged, question, shown)


def test_what_has_waited_too_long_makes_way_for_what_is_new() -> None:
    world = Held(microbatches=1)
    with run_of(world) as run:
        newest = AUDITS_AT_ONCE + KEPT_STEPS + 3
        for step in range(1, newest + 1):
            run.auditor.stepped(step, {"alice": pledged("alice", step)})
        wait_until(lambda: run.auditor.waiting >= newest)
        world.go_on.set()
        run.settles()
        begun = set(range(1, AUDITS_AT_ONCE + 1))
        assert set(world.steps) == begun | set(range(newest - KEPT_STEPS, newest + 1))


def test_a_reducer_that_has_left_is_not_looked_for_in_every_step() -> None:
    world = World(spoils=frozenset({"alice", "bob", "carol", "dave"}))
    with run_of(world, RARELY, chance=Rolls(0.99)) as run:
        run.auditor._wrong["zoe"] = 1
        reduced(run, 5)
        assert not world.made_by
        run.auditor._wrong["alice"] = 1
        reduced(run, 1)
        assert world.made_by == ["alice"]


def test_who_has_passed_enough_checks_is_told_so_and_who_cheats_is_not() -> None:
    world = World(sends_other=frozenset({"mallory"}))
    with run_of(world, probation=3) as run:
        for _ in range(2):
            run.takes("alice", "bob", "carol", "mallory")
        assert world.confirmed == {}
        run.takes("alice", "bob", "carol", samples=50, session_samples=50)
        run.takes("alice", "bob")
        assert world.confirmed == {"alice": 50, "bob": 50}, "who is not there is not told"
        run.takes("carol", confirmed=10)
        assert world.confirmed["carol"] == 50


def test_whoever_brings_more_than_it_counts_for_is_checked_as_in_an_alarm() -> None:
    world = World(peers={"alice": 1.0, "bob": 1.0}, microbatches=1)
    with run_of(world, RARELY, probation=1, chance=Rolls(ALARM_SHARE - 0.01)) as run:
        run.takes("alice", "bob", "carol")
        assert sorted(world.proofs) == ["alice", "bob", "carol"], "newcomers"
        run.takes("alice", "bob", confirmed=20)
        assert len(world.proofs) == 3
        run.takes("alice", confirmed=19)
        assert world.proofs[3:] == ["alice"]
