"""Trainers and hosts that only make outgoing connections, and one peer that all reach; real nodes on loopback."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.keeping import Keeping
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.experts.member import ExpertMember, Held
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node, addresses_of
from dedloc_kit.swarm.remote import offers
from tests.identities import an_identity
from tests.swarm.experts.local_hosts import CELLS, LAYER, NAMES, RUN, learn
from tests.swarm.harness import open_node, wait_until


class Place:
    """Where a peer is."""

    def __init__(self, folder: Path, organizer: "Place | None" = None) -> None:
        identity = an_identity(folder / "identity.key")
        self.signer = Signer(identity)
        config = PeerConfig(folder=folder, swarm_host="127.0.0.1", client_mode=organizer is not None)
        self._known = () if organizer is None else addresses_of(organizer.node)
        gate = Gate(RUN.run_id, (organizer or self).signer.peer, self.signer, restricted=False)
        self.node: Node = open_node(config, identity, self._known, gate, may_start_alone=organizer is None)
        self.failed: list[Any] = []

    def member(self, bank: Bank | None) -> ExpertMember:
        profile = Profile(
            session="",
            name="p",
            team="",
            device="cpu",
            follower=False,
            client_mode=self.node.client_mode,
            addresses=addresses_of(self.node),
            reached="",
            listed=False,
        )
        held = None if bank is None else Held(Keeping(bank, RUN, lambda _: 0.01))
        return ExpertMember(
            *(RUN, self.node, self.signer, profile, self._known, held, "float32"),
            failed=lambda *failure: self.failed.append(failure),
        )


@pytest.mark.soak
def test_peers_whom_nobody_can_dial_call_each_other_through_one_that_all_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "LOOK_SECONDS", 0.3)
    plain, some, others = (Bank(RUN) for _ in range(3))
    plain.hold_all()
    some.hold(NAMES[::2])
    others.hold(NAMES[1::2])
    with ExitStack() as stack:
        places = [Place(tmp_path / "organizer")]
        stack.callback(places[0].node.shutdown)
        for name in ("host", "trainer"):  # the trainer hosts the others: it asks itself without the network
            places.append(Place(tmp_path / name, places[0]))
            stack.callback(places[-1].node.shutdown)
        members = [place.member(bank) for place, bank in zip(places, (None, some, others), strict=True)]
        *_, trainer = [stack.enter_context(member.serving()) for member in members]
        wait_until(lambda: bool(trainer.alive(LAYER).all()), "not all experts are there")
        for mine, right in zip(learn(trainer, 1, 5), learn(plain, 1, 5), strict=True):
            assert mine.keys() == set(CELLS)
            assert all(torch.allclose(mine[cell], right[cell], rtol=0, atol=1e-6) for cell in CELLS)
        wait_until(lambda: members[1].offer().through == (places[0].signer.peer,), "it does not say through whom")
        members[1].say("leaving")
        wait_until(lambda: int(trainer.alive(LAYER).sum()) == len(CELLS) // 2, "who leaves is still asked")
        assert not any(place.failed for place in places)
