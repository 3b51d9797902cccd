"""Contributions as they stand in the signed entries of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import ValidationError

from dedloc_kit.config.run import RunConfig
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Entry, Piece, Voter
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.trust.pledge import Pledged, contribution_kind
from dedloc_kit.swarm.trust.standing import check_standing
from dedloc_kit.swarm.trust.weight import Weigh, claims_in, weight_of


def piece_of(about: str) -> str:
    """The name of the gradients of a contribution: a failed round offers other ones under another name."""
    return sha256(about.encode()).hexdigest()


def new_entry(instance: Instance, voter: Voter, contribution: Contribution) -> Entry:
    """What a peer brings to a group, not signed yet."""
    about, samples = contribution.model_dump_json(), contribution.samples
    pieces = (Piece(hash=piece_of(about), samples=samples, weight=weight_of(contribution)),) if samples else ()
    return Entry(
        run_id=instance.run_id,
        part=instance.part,
        previous=instance.previous,
        voter=voter,
        pieces=pieces,
        about=about,
    )


@dataclass(frozen=True)
class EntryReader:
    """Reads the contributions of one run.

    :ivar organizer: who signs what is confirmed of a peer
    :ivar weigh: how much of what members claim counts
    """

    run: RunConfig
    organizer: str
    signer: Signer
    weigh: Weigh

    def read(self, entry: Entry, step: int | None = None) -> Contribution:
        """Raises ValueError unless an honest peer can have made it, for this step if one is given.

        Its signature is checked elsewhere.
        """
        kind = contribution_kind(self.run.trust)
        try:
            found = kind.model_validate_json(entry.about)
        except ValidationError as error:
            raise ValueError(f"the contribution of {entry.peer} cannot be read ({error.errors()[0]['msg']})") from None
        if found.model_dump_json() != entry.about:
            raise ValueError(f"the contribution of {entry.peer} is not in its canonical spelling")
        possible(found, self.run.run_id, self.run.global_batch)
        names = (piece_of(entry.about),) if found.samples else ()
        weight = weight_of(found) if found.samples else 0
        brought = tuple(piece.hash for piece in entry.pieces), entry.samples, entry.weight
        if brought != (names, found.samples, weight):
            raise ValueError(f"{entry.peer} brings other gradients than it describes")
        if step is not None and found.step != step:
            raise ValueError(f"{entry.peer} brings a contribution to another step")
        if isinstance(found, Pledged) and bool(found.samples) != bool(found.microbatches):
            raise ValueError(f"{entry.peer} brings samples without work")
        check_standing(self.signer, self.organizer, entry.peer, found)
        return found

    def all_of(self, entries: Sequence[Entry], step: int | None = None) -> dict[str, Contribution]:
        """By peer; raises ValueError."""
        return {entry.peer: self.read(entry, step) for entry in entries}

    def weights(self, entries: Sequence[Entry]) -> tuple[int, ...]:
        """How many samples of each of these entries count, if these are counted."""
        weights: Mapping[str, int] = self.weigh(claims_in(self.all_of(entries)))
        return tuple(weights[entry.peer] for entry in entries)

    def in_commit(self, commit: Commit) -> dict[str, Contribution]:
        """By peer, of a commit; raises ValueError."""
        return self.all_of(commit.value.counted, commit.value.step)
