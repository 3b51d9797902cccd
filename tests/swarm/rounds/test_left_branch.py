"""A branch that peers are to leave goes on if it has more samples: its state is kept until the coordinator has it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.utils import get_dht_time

from dedloc_kit.swarm.allreduce.encoding.codec import decode_all
from dedloc_kit.swarm.allreduce.parts import digest_of
from dedloc_kit.swarm.averaging.entries import new_entry
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.records import Commit, Epoch, Voter
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.rounds.finished_step import receipt_of
from dedloc_kit.swarm.transfer.contents import RecentAverage
from tests.identities import an_identity
from tests.swarm.harness import progress
from tests.swarm.rounds.chained import BATCH, Chains, Follower, a_contribution, chains
from tests.tiny import tiny_run

RUN = tiny_run(global_batch=BATCH)


class Peer(Follower):
    """Hears one other peer, and can decide on steps."""

    def __init__(self, among: Chains, signer: Signer, other: Any) -> None:
        super().__init__(among, other, signer)
        self.signer, self.kept = signer, list[RecentAverage]()
        self.others = lambda: {self.coordinator.signer.peer: self.there()}

    def kept_average(self, after: str) -> RecentAverage | None:
        return next((average for average in self.kept if average.after == after), None)

    @property
    def voter(self) -> Voter:
        return Voter(self.signer.peer, self.branch.incarnation)

    def step(self, counted: "Peer") -> None:
        """Decide on the next step, with a batch of this peer, by its own vote alone."""
        assert self.branch.head is not None
        instance, signer = self.branch.head.instance, KeySigner(self.signer)
        gradient = torch.randn(self.state.layout.size, generator=torch.Generator().manual_seed(instance.step))
        parts = (serialize_torch_tensor(gradient).SerializeToString(),)
        entry = new_entry(instance, counted.voter, a_contribution(RUN, instance.step, name=self.signer.peer))
        entry = entry.signed(KeySigner(counted.signer))
        value = instance.value((entry,), (entry.samples,), digest_of(parts))
        accepted = instance.accepted(self.voter, Epoch(1, self.signer.peer, "0" * 64), value).signed(signer)
        commit = Commit(value=value, accepted=(accepted,))
        self.kept.append(RecentAverage(commit.previous, commit.link, instance.step, files.encode(commit), parts))
        head = self.branch.take(commit)
        self.state.apply(decode_all(parts, gradient.numel()), receipt_of(commit, get_dht_time()), 0)
        self.branch.moved(head)


@pytest.mark.parametrize(("left", "beyond"), [(3, 1), (1, 2)])
def test_the_branch_with_more_samples_goes_on(tmp_path: Path, left: int, beyond: int) -> None:
    """A coordinator that heard nobody has signed a reset, and has taken steps with a newcomer."""
    organizer, other = (Signer(an_identity(tmp_path / name)) for name in ("organizer", "other"))
    with chains(organizer) as among:
        nobody = SimpleNamespace(run=RUN, signer=organizer, kept_average=None, header=lambda: None)
        lead = Peer(among, organizer, nobody)
        lead.branch.begin()
        far = Peer(among, other, lead)
        assert far.catch_up.load()
        lead.step(counted=far)
        far.catch_up.follow()
        for _ in range(left):
            far.step(counted=far)
        samples = progress(step=lead.state.step, round=lead.state.round, samples=BATCH)
        while not lead.branch.look({"newcomer": samples}):
            among.sleep(1.0)
        for _ in range(beyond):
            lead.step(counted=lead)
        signed, kept = lead.branch.term, far.state.position

        def lead_looks() -> None:
            among.sleep(2.0)
            lead.coordinator = cast(Any, far)
            if not lead.catch_up.behind():
                lead.branch.look({other.peer: progress(step=far.state.step, round=far.state.round, samples=BATCH)})
            lead.catch_up.follow()

        far.stop.meanwhile = lead_looks
        far.asked.clear()
        assert far.catch_up.behind()
        far.catch_up.follow()
        if left > beyond:
            assert lead.branch.term[0] == signed[0] + 1
            assert far.state.step == kept[0]
        else:
            assert lead.branch.term == signed
        assert "state" not in (far if left > beyond else lead).asked
        assert far.is_there()
        lead.step(counted=far)
        far.catch_up.follow()
        assert far.is_there()
