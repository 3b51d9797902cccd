"""What a peer shows that the organizer has confirmed of it."""

from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.averaging.entries import EntryReader, new_entry
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import MAX_EPOCH, Entry, Voter
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.rounds.finished_step import decay_order
from dedloc_kit.swarm.trust.standing import Standing, check_standing, read, signed
from dedloc_kit.swarm.trust.weight import claimed
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


def test_an_entry_holds_no_standing_that_its_author_has_made_up(people: People) -> None:
    alice = people.alice
    reader = EntryReader(RUN, people.organizer.peer, alice, claimed)
    for by, right in ((people.organizer, True), (alice, False)):
        standing = people.standing(by, alice)
        mine = pledged("a", 1, run_id=RUN.run_id, confirmed=40, standing=standing)
        if right:
            assert reader.read(an_entry(alice, mine), 1) == mine
        else:
            with pytest.raises(ValueError, match="did not give"):
                reader.read(an_entry(alice, mine), 1)


def an_entry(signer: Signer, mine: Contribution) -> Entry:
    voter = Voter(signer.peer, 2**53 - 1)
    where = Instance(RUN.run_id, "", 1, "7" * 64, (0, ""), "organizer", "organizer", Electorate({voter: 1}, None))
    return new_entry(where, voter, mine).signed(KeySigner(signer))


def test_an_entry_with_all_that_can_be_in_it_is_short_enough(people: People) -> None:
    standing = people.standing(people.organizer, people.alice, confirmed=2**53)
    order = decay_order(people.organizer, RUN.run_id, 2**53, 2**53)
    values: dict[str, Any] = {
        "samples": 2**30,
        "session_samples": 2**40,
        "loss": -1.0000000000000002e-30,
        "time": 1.7e9 + 1 / 3,
    }
    values |= {"session": "ab" * 20, "group": "ab" * 20, "microbatches": 2000, "name": "\u09ac" * 60}
    mine = pledged("a", 2**53, run_id=RUN.run_id, decay_order=order, confirmed=2**53, standing=standing, **values)
    assert len(wire.introduction(MAX_EPOCH, an_entry(people.alice, mine))) <= wire.ENTRY_BYTES
