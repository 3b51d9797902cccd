"""Where a chain begins for a peer that takes a state in place of its history."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import NO_VOTE, Commit, PartName, Reset, Voter
from dedloc_kit.swarm.consensus.signing import WireRecord
from dedloc_kit.swarm.p2p.seams import Verifier


class Anchor(WireRecord):
    """An instance without the records before it: the newest reset, and beside it the newest commit, if any follows.

    A newcomer trusts it because the witnesses of its state named the link. The link proves the commit, and with it the
    electorate; the organizer's signature proves the reset. Unproven stays: that no newer reset came before the commit,
    and which incarnation the coordinator has if the commit does not count it. A wrong claim about these makes valid
    records look invalid until the next reset or the next commit that counts the coordinator.

    :ivar coordinator: the voter that breaks ties after the commit
    """

    wire: ClassVar[str] = "chain/anchor"

    part: PartName
    reset: Reset
    coordinator: Voter

    def link(self, commit: Commit | None) -> str:
        return self.reset.link if commit is None else commit.link

    def instance(self, commit: Commit | None, organizer: PeerId, verifier: Verifier) -> Instance:
        """The instance that follows. Raises ValueError if the reset is not signed or they do not belong together."""
        reset, place = self.reset, self.reset.of(self.part)
        reset.check_signature(organizer, verifier)
        after_reset = Instance(
            run_id=reset.run_id,
            part=self.part,
            step=reset.step,
            previous=reset.link,
            term=(reset.term, reset.link),
            organizer=organizer,
            coordinator=reset.coordinator.peer,
            electorate=Electorate.of_reset(place, reset.coordinator),
        )
        if commit is None:
            return after_reset
        value = commit.value
        if (value.run_id, value.part) != (reset.run_id, self.part) or value.step < reset.step:
            raise ValueError("the commit does not follow the reset")
        claimed = [
            e.voter for e in value.counted if e.peer == reset.coordinator.peer and e.voter.incarnation != NO_VOTE
        ]
        if self.coordinator.peer != reset.coordinator.peer or claimed not in ([], [self.coordinator]):
            raise ValueError("another coordinator than the reset and the commit name")
        return replace(
            after_reset,
            step=commit.after,
            previous=commit.link,
            electorate=Electorate.of_value(value, self.coordinator),
        )


def anchor_at(chain: Chain, link: str, before: Reset) -> Anchor:
    """The anchor after a link of this chain; raises KeyError.

    :param before: the newest reset before the chain's records
    """
    instance = chain.at(link)
    newest = before
    for record in _until(link, chain.records):
        newest = record if isinstance(record, Reset) else newest
    assert instance.electorate.coordinator is not None
    return Anchor(part=instance.part, reset=newest, coordinator=instance.electorate.coordinator)


def _until(link: str, records: Iterable[ChainRecord]) -> Iterable[ChainRecord]:
    """Records up to the one with this link; none if the link is older."""
    found = list(records)
    places = [place for place, record in enumerate(found) if record.link == link]
    return found[: places[0] + 1] if places else []
