"""What the organizer has confirmed of a peer: it brings that to every round, so that all members see it alike."""

from base64 import b64decode, b64encode
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import PeerId, RunId, SignedRecord
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.trust.pledge import Pledged


class Standing(SignedRecord):
    """What the organizer signs of a peer that has passed `NEWCOMER_CHECKS` checks."""

    wire: ClassVar[str] = "standing"

    run_id: RunId
    peer: PeerId
    confirmed: Annotated[int, Field(ge=1, le=2**53)]
    """Samples of its largest contribution that has passed one."""


def signed(signer: Signer, standing: Standing) -> str:
    """As its peer brings it: as text, for no signature may stand within another."""
    return b64encode(signer.sign(standing)).decode()


def read(signer: Signer, run_id: str, organizer: str, peer: str, text: str) -> Standing:
    """Raises ValueError unless it is the organizer's, of this peer in this run."""
    author, standing = signer.open(Standing, b64decode(text, validate=True))
    if (author, standing.run_id, standing.peer) != (organizer, run_id, peer):
        raise ValueError(f"a standing of {peer} that the organizer did not give it")
    return standing


def check_standing(signer: Signer, organizer: str, peer: str, contribution: Contribution) -> None:
    """Raises ValueError if its author says that more or less is confirmed of it than it shows."""
    if not isinstance(contribution, Pledged) or not (contribution.standing or contribution.confirmed):
        return
    shown = read(signer, contribution.run_id, organizer, peer, contribution.standing)
    if shown.confirmed != contribution.confirmed:
        raise ValueError(f"{peer} says that {contribution.confirmed} samples are confirmed of it and shows another")
