"""Those who host experts get credit for what trainers confirm, as far as the trainers' own samples explain it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.events import PeerSeen
from dedloc_kit.ledger import Conviction, Ledger
from dedloc_kit.records.steps import Contribution
from tests.ledgers import a_step, given

ANSWERS = 12
"""Tokens of a sample, once for each expert that they go to."""


def here(*peers: str) -> list[PeerSeen]:
    return [
        PeerSeen(
            peer=peer,
            name=peer.lower(),
            device="CPU",
            step=0,
            samples=0,
            samples_per_second=0.0,
            follower=False,
            client_mode=False,
        )
        for peer in peers
    ]


def said(step: int, samples: int, total: int, session: str = "a1", **answered: int) -> Contribution:
    return given(step, samples, total, session=session).model_copy(update={"answered": answered})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite", answers=ANSWERS)
    made.record_presence(here("QmA", "QmB", "QmHost", "QmOther"))
    yield made
    made.close()


def credit(ledger: Ledger) -> dict[str, int]:
    return {host.peer: host.tokens for host in ledger.hosts(100)}


def test_hosts_get_what_trainers_confirm_once_and_in_no_sum_of_samples(ledger: Ledger) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmHost=60, QmOther=30), "QmB": said(1, 5, 5, QmHost=7)})
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmHost=99)})  # the same step once more
    assert credit(ledger) == {"QmHost": 67, "QmOther": 30}
    ledger.record_step(a_step(2), {"QmA": said(2, 10, 20, QmHost=100), "QmB": said(2, 5, 5, "b2", QmHost=8)})
    assert credit(ledger) == {"QmHost": 67 + 40 + 8, "QmOther": 30}
    (host, _) = ledger.hosts(100)
    assert (host.name, len(ledger.hosts(1))) == ("qmhost", 1)
    assert ledger.samples_total() == 30
    assert [(person.peer, person.answered) for person in ledger.people()] == [("QmA", 0), ("QmB", 0)]


def test_a_trainer_confirms_no_more_than_its_own_samples_explain(ledger: Ledger) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmHost=2**53, QmOther=2**53)})
    assert credit(ledger) == {"QmHost": 5 * ANSWERS, "QmOther": 5 * ANSWERS}
    ledger.record_step(a_step(2), {"QmA": said(2, 10, 20, "a2", QmHost=2**53)})
    assert credit(ledger) == {"QmHost": 15 * ANSWERS, "QmOther": 5 * ANSWERS}, "another session changes nothing"
    ledger.record_step(a_step(3), {"QmB": said(3, 0, 0, "b1", QmOther=50)})
    assert credit(ledger)["QmOther"] == 5 * ANSWERS, "who gave no sample confirms nothing"


def test_a_late_sample_still_explains_what_was_said_before(ledger: Ledger) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 1, 1, QmHost=20)})
    assert credit(ledger) == {"QmHost": ANSWERS}
    ledger.record_step(a_step(2), {"QmA": said(2, 1, 2, QmHost=20)})
    assert credit(ledger) == {"QmHost": 20}


def test_nobody_confirms_itself_or_somebody_who_was_never_here(ledger: Ledger) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmA=50, QmNobody=50, QmHost=3)})
    assert credit(ledger) == {"QmHost": 3}


def test_what_a_rewind_forgets_is_not_explained_a_second_time(ledger: Ledger) -> None:
    for step in (1, 2, 3):
        ledger.record_step(a_step(step), {"QmA": said(step, 10, 10 * step, QmHost=step * 10 * ANSWERS)})
    assert credit(ledger) == {"QmHost": 30 * ANSWERS}
    for step in (2, 3, 4):
        told = said(step, 10, 20 + 10 * step, QmHost=(20 + 10 * step) * ANSWERS)
        ledger.record_step(a_step(step, way="b"), {"QmA": told})
    assert credit(ledger) == {"QmHost": 40 * ANSWERS}


def test_who_was_sent_away_stands_among_no_hosts_and_who_only_hosted_is_known_as_a_person(ledger: Ledger) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmHost=9, QmOther=4)})
    person = ledger.giver("QmHost")
    assert person is not None
    assert (person.name, person.samples, person.answered, person.carried) == ("qmhost", 0, 9, 0)
    assert ledger.giver("QmB") is None
    ledger.record_convictions([Conviction("QmHost", 5.0, "h", "it lied")])
    assert credit(ledger) == {"QmOther": 4}
    assert ledger.giver("QmHost") is None


def test_a_ledger_that_is_opened_again_goes_on_and_one_of_a_run_without_experts_counts_nothing(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.record_step(a_step(1), {"QmA": said(1, 10, 10, QmHost=9)})
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite", answers=ANSWERS)
    again.record_step(a_step(2), {"QmA": said(2, 10, 20, QmHost=12)})
    assert credit(again) == {"QmHost": 12}
    again.close()
    plain = Ledger(tmp_path / "ledger.sqlite")
    plain.record_step(a_step(3), {"QmA": said(3, 10, 30, QmHost=20)})
    assert credit(plain) == {"QmHost": 12}
    plain.close()
