"""What the organizer's auditor asks volunteers, who answer nobody else, and what newcomers ask the organizer."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dedloc_kit.learning.train.state.sketch import NUMBERS
from dedloc_kit.records.record import Count, Digest, PeerId, Record
from dedloc_kit.swarm.audits.projections import PROJECTIONS, Recomputed
from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS, Opening

MAX_ASKED = 8
"""Microbatches in one question: about as much as a volunteer computes between two looks at what the swarm has due."""

Seed = Annotated[bytes, Field(min_length=32, max_length=32)]
Projected = Annotated[tuple[float, ...], Field(min_length=PROJECTIONS, max_length=PROJECTIONS, strict=False)]

_NotNegative = Annotated[tuple[Annotated[float, Field(ge=0.0)], ...], Field(max_length=MAX_ASKED, strict=False)]


class Prove(Record):
    """Show what was committed to."""

    group: Digest
    """The round."""
    only: Literal["", "part", "work"] = ""
    """Not all of it: what was sent of the part, or the lines of work."""
    part: Annotated[int, Field(ge=0, lt=MAX_CONTENTS)] = 0
    """Which chunk of it: what remains when this is divided by their number, which who asks does not know."""


class Proof(Record):
    """The head of the answer. Behind it come, each as a message of its own: what was sent of the part (as encoded), the
    piece of the residuals before and after that holds its `pledge.window` (float32, little endian), and all lines of
    work."""

    begin: Count
    end: Count
    """The values of the part."""
    part: Opening
    before: Opening
    after: Opening


class Recompute(Record):
    """Compute some microbatches again."""

    author: PeerId
    session: Digest
    """Whose they are: with the run they make the seed of the data."""
    work: Annotated[bytes, Field(min_length=1, max_length=1024)]
    """At most `MAX_ASKED` lines."""
    begin: Count
    end: Count
    """The values whose gradient is compared; at most `CHUNK`."""
    seed: Seed
    """Of the projections."""


class Found(Record):
    """The answer: for each line its projections, the norm of the whole gradient and the weight that it is over; nothing
    from who cannot, because it lacks the parameters or the data, or does not want to."""

    projections: Annotated[tuple[Projected, ...], Field(max_length=MAX_ASKED, strict=False)] = ()
    norms: _NotNegative = ()
    weights: _NotNegative = ()

    def recomputed(self) -> list[Recomputed]:
        """Of each line; raises ValueError for what cannot be."""
        found = zip(self.weights, map(np.array, self.projections), self.norms, strict=True)
        return [Recomputed(*each) for each in found]


class AskKnown(Record):
    """What comes out with the parameters of this step (`known_answer.known_question`)?"""

    step: Count


class Known(Found):
    """The answer, of one line; nothing where it is not known."""

    sketch: Annotated[tuple[float, ...], Field(max_length=NUMBERS, strict=False)] = ()
    """Of the parameters, with the question's seed: with others there is another answer."""
