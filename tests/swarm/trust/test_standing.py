"""What a peer shows that the organizer has confirmed of it."""

from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.swarm.network.identity import MAX_RECORD_BYTES, Signer
from dedloc_kit.swarm.rounds.finished_step import decay_order, opened
from dedloc_kit.swarm.trust.standing import Standing, check_standing, read, signed
from tests.identities import an_identity
from tests.swarm.audits.audited import pledged
from tests.tiny import tiny_run

RUN = tiny_run(trust={"checks": "on"})


class People:
    def __init__(self, folder: Path) -> None:
        self.organizer, self.alice, self.bob = (Signer(an_identity(folder / name)) for name in ("organizer", "a", "b"))

    def standing(self, by: Signer, peer: Signer, confirmed: int = 40, run_id: str = RUN.run_id) -> str:
        return signed(by, Standing(run_id=run_id, peer=peer.peer, confirmed=confirmed))


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path)


def test_what_the_organizer_has_signed_is_believed_of_its_peer_and_nothing_else(people: People) -> None:
    alice, organizer = people.alice, people.organizer.peer
    right = people.standing(people.organizer, alice)
    assert read(alice, RUN.run_id, organizer, alice.peer, right).confirmed == 40
    check_standing(alice, organizer, alice.peer, pledged("a", 1, run_id=RUN.run_id, confirmed=40, standing=right))
    check_standing(alice, organizer, alice.peer, pledged("a", 1, run_id=RUN.run_id))
    for confirmed, standing, why in (
        (41, right, "shows another"),
        (0, right, "shows another"),
        (40, "", "Standing|record|signature|owner"),
        (40, people.standing(alice, alice), "did not give"),
        (40, people.standing(people.organizer, people.bob), "did not give"),
        (40, people.standing(people.organizer, alice, run_id="other-0123456789abcdef"), "did not give"),
        (40, right[:-4], "Standing|record|signature|owner"),
    ):
        brought = pledged("a", 1, run_id=RUN.run_id, confirmed=confirmed, standing=standing)
        with pytest.raises(ValueError, match=why):
            check_standing(alice, organizer, alice.peer, brought)


def test_a_receipt_holds_no_standing_that_its_author_has_made_up(people: People) -> None:
    alice, organizer = people.alice, people.organizer.peer
    for by, right in ((people.organizer, True), (alice, False)):
        standing = people.standing(by, alice)
        mine = pledged("a", 1, run_id=RUN.run_id, confirmed=40, standing=standing)
        receipt = (alice.sign(mine),)
        if right:
            assert opened(alice, RUN, organizer, 1, "cd", receipt) == {alice.peer: mine}
        else:
            with pytest.raises(ValueError, match="did not give"):
                opened(alice, RUN, organizer, 1, "cd", receipt)


def test_an_introduction_with_all_that_can_be_in_it_is_short_enough(people: People) -> None:
    standing = people.standing(people.organizer, people.alice, confirmed=2**53)
    order = decay_order(people.organizer, RUN.run_id, 2**53, 2**53)
    values: dict[str, Any] = {
        "samples": 2**53,
        "session_samples": 2**53,
        "loss": -1.0000000000000002e-30,
        "time": 1.7e9 + 1 / 3,
    }
    values |= {"session": "ab" * 20, "group": "ab" * 20, "microbatches": 2000, "name": "\u09ac" * 60}
    mine = pledged("a", 2**53, run_id=RUN.run_id, decay_order=order, confirmed=2**53, standing=standing, **values)
    assert len(people.alice.sign(mine)) <= MAX_RECORD_BYTES
