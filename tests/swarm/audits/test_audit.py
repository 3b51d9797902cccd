"""One audit: every way to cheat is found, and whoever is honest is never convicted."""

from random import Random

import pytest

from dedloc_kit.swarm.audits import audit
from dedloc_kit.swarm.audits.audit import GIVEN_UP_STEPS, KEPT_STEPS, Audit, Outcome
from dedloc_kit.swarm.audits.questions import MAX_ASKED, Found, Recompute
from dedloc_kit.swarm.network.service import NoAnswer
from tests.swarm.audits.audited import World, pledged


def audited(world: World, author: str = "alice", chance: int = 1, newest: int = 7) -> Outcome:
    earlier = [pledged(author, 6), pledged(author, 5, session="cd")]
    return Audit(author, pledged(author, 7), earlier, world, lambda: newest, Random(chance)).outcome()


def convicted(outcome: Outcome) -> set[str]:
    return {verdict.peer for verdict in outcome.verdicts}


def test_honest_work_passes_and_others_than_its_author_have_computed_it() -> None:
    world = World(microbatches=20)
    assert audited(world) == Outcome("passed")
    assert {peer for peer, _ in world.asked} <= {"bob", "carol", "dave", "organizer"}
    assert sum(len(question.work) for _, question in world.asked) == sum(
        len(line.content) for line in world.lines(7)
    ), "each microbatch once"


@pytest.mark.parametrize("audits", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_nobody_honest_is_ever_convicted(audits: int) -> None:
    """Every computation is off by up to what honest ways to compute differ."""
    world, results = World(), set()
    for number in range(audits):
        world.microbatches = 1 + number % 11
        outcome = audited(world, chance=number)
        assert not outcome.verdicts
        results.add(outcome.result)
    assert results == {"passed"}


@pytest.mark.parametrize("how", ["sends_other", "covers_up", "inflates", "tilts", "contradicts", "repeats"])
@pytest.mark.parametrize("chance", range(5))
def test_an_author_that_lies_is_convicted_and_nobody_else(how: str, chance: int) -> None:
    world = World()
    setattr(world, how, frozenset({"alice"}))
    outcome = audited(world, chance=chance)
    assert (outcome.result, convicted(outcome)) == ("convicted", {"alice"})
    assert "step 7" in outcome.verdicts[0].why
    assert outcome.verdicts[0].records, "what shows it is there"


@pytest.mark.parametrize("how", ["accuses", "belittles"])
def test_a_checker_that_accuses_falsely_is_convicted_and_not_who_it_accuses(how: str) -> None:
    world = World(peers={"alice": 1.0, "mallory": 1.0})
    setattr(world, how, frozenset({"mallory"}))
    assert convicted(audited(world)) == {"mallory"}


def test_a_checker_that_belittles_a_gradient_does_not_make_rounding_a_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a chunk whose gradient vanishes beside the whole one, what is left is rounding: only the norm tells.
    world = World(peers={"alice": 1.0, "mallory": 1.0}, noise=0.0)
    honest = world.recompute

    def vanishing(peer: str, question: Recompute) -> Found:
        found = honest(peer, question)
        sign = -1.0 if peer == "mallory" else 1.0
        return found.model_copy(
            update={
                "projections": tuple(tuple(sign * value for value in each) for each in found.projections),
                "norms": tuple(0.0 if peer == "mallory" else 1e9 for _ in found.norms),
            }
        )

    monkeypatch.setattr(world, "recompute", vanishing)
    assert convicted(audited(world)) == {"mallory"}


def test_who_shows_nothing_is_silent_and_who_accounts_for_nothing_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audited(World(mute=frozenset({"alice"}))) == Outcome("silent")
    world = World(sends_other=frozenset({"alice"}))
    honest = world.recompute
    monkeypatch.setattr(world, "recompute", lambda peer, each: Found() if peer == "alice" else honest(peer, each))
    assert audited(world) == Outcome("silent")
    assert audited(world, newest=8 + KEPT_STEPS) == Outcome("given up"), "nobody has to keep its parameters so long"


def test_nonsense_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("an opening shows nothing")

    world = World()
    monkeypatch.setattr(world, "proven", refuse)
    assert audited(world) == Outcome("silent")


def test_what_others_do_not_compute_the_organizer_computes_itself() -> None:
    others = frozenset({"bob", "carol", "dave"})
    world = World(mute=others, microbatches=20)
    assert audited(world) == Outcome("passed")
    lines = sum(len(question.work) for peer, question in world.asked if peer == "organizer")
    assert lines == sum(len(line.content) for line in world.lines(7))
    assert convicted(audited(World(peers={}, sends_other=frozenset({"alice"})))) == {"alice"}


def test_where_nobody_can_compute_it_nobody_is_convicted() -> None:
    assert audited(World(unable=True, sends_other=frozenset({"alice"}))) == Outcome("uncomputed")


def test_where_the_organizer_cannot_decide_nobody_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(covers_up=frozenset({"alice"}))
    monkeypatch.setattr(audit, "OWN_SHARE", 0.0)
    monkeypatch.setattr(world, "own", lambda _: Found())
    assert audited(world) == Outcome("uncomputed")


def test_the_organizer_takes_some_lots_itself_so_that_checkers_cannot_cover_for_their_friend() -> None:
    """Alice sends another gradient, and all others say what makes it add up."""

    class Ring(World):
        def recompute(self, peer: str, question: Recompute) -> Found:
            found = super().recompute(peer, question)
            if peer == "organizer":
                return found
            return found.model_copy(
                update={"projections": tuple(tuple(-value for value in each) for each in found.projections)}
            )

    alice = frozenset({"alice"})
    found = [
        convicted(audited(Ring(microbatches=MAX_ASKED, sends_other=alice), chance=chance)) for chance in range(100)
    ]
    assert {"alice"} in found, "5 are expected"
    assert set() in found, "else this test shows nothing"
    assert all(each <= alice for each in found)


def test_who_claims_to_be_fast_is_not_asked_more_than_others() -> None:
    counts = dict.fromkeys(("bob", "carol", "mallory"), 0)
    for chance in range(100):
        world = World(peers={"bob": 1.0, "carol": 1.0, "mallory": 1e9}, microbatches=1, noise=0.0)
        audited(world, chance=chance)
        for peer, _ in world.asked:
            counts[peer] = counts.get(peer, 0) + 1
    assert counts["mallory"] < 60, "a third is its share"


@pytest.mark.parametrize(
    "answer",
    [
        lambda found: found.model_copy(update={"norms": found.norms[:-1]}),
        lambda found: found.model_copy(update={"projections": found.projections * 2}),
        lambda found: found.model_copy(update={"weights": found.weights[:-1]}),
        lambda found: found.model_copy(update={"norms": (1e300,) * len(found.norms)}),
        lambda found: found.model_copy(update={"weights": (1e300,) * len(found.norms)}),
        lambda found: found.model_copy(update={"projections": ((1e300,) * 32,) * len(found.norms)}),
    ],
)
def test_an_answer_that_is_none_is_asked_of_somebody_else(answer, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    world = World(peers={"alice": 1.0, "mallory": 1.0})
    honest = world.recompute
    monkeypatch.setattr(
        world, "recompute", lambda peer, each: answer(honest(peer, each)) if peer == "mallory" else honest(peer, each)
    )
    assert audited(world) == Outcome("passed")


def test_who_does_not_answer_is_asked_no_further_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(peers={"alice": 1.0, "bob": 1.0}, microbatches=100), []
    honest = world.recompute

    def silent(peer: str, question: Recompute) -> Found:
        if peer == "bob":
            asked.append(question)
            raise NoAnswer("bob")
        return honest(peer, question)

    monkeypatch.setattr(world, "recompute", silent)
    assert audited(world) == Outcome("passed")
    assert len(asked) == 1


def test_an_audit_that_matters_no_more_is_given_up() -> None:
    world = World()
    assert audited(world, newest=8 + GIVEN_UP_STEPS) == Outcome("given up")
    assert not world.asked
