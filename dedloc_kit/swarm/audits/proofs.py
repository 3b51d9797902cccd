"""The organizer asks a member to show what it committed to, and gets the head of the answer and the contents."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.audits.questions import Proof, Prove
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream, answered, encode
from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS
from dedloc_kit.swarm.trust.pledge import LINE_BYTES, Window, Work

MAX_PART_BYTES = 4 * CHUNK + 4096
"""No encoding takes more than four bytes a value, and what stands beside them."""
MAX_PIECE_BYTES = 4 * CHUNK
MAX_WORK_BYTES = MAX_CONTENTS * LINE_BYTES
PROOF_SECONDS = 120.0
"""For all of it, on a slow line, while its author averages."""


class Shown(NamedTuple):
    """What a member answers; nothing of it is checked yet but its size."""

    proof: Proof
    part: bytes
    """As encoded."""
    before: bytes
    """The piece of its residuals that holds the part's `pledge.window`, float32."""
    after: bytes
    work: bytes
    """All its lines."""


class Proven(NamedTuple):
    """What follows from what was shown, if it is what was committed to."""

    window: Window
    implied: Tensor
    """The gradient that was compressed, float32 [window]."""
    work: list[Work]


class Contradiction(ValueError):
    """What a member shows is what it has signed, and cannot be honest."""


class ProofService(Service):
    """Shows the organizer what this peer has committed to, one question at a time, and nobody else anything; asks
    others on the organizer's side.

    :param prove: what was committed to, read from the disk; none if it is not kept
    :param work_of: all lines of a round of before, likewise
    """

    name = "proofs"

    def __init__(
        self,
        endpoint: Endpoint,
        organizer: str,
        prove: Callable[[Prove], Shown | None],
        work_of: Callable[[str], bytes | None],
    ) -> None:
        self._endpoint, self._organizer = endpoint, organizer
        self._prove, self._work_of = prove, work_of
        self._turn = asyncio.Lock()

    async def serve(self, peer: str, stream: Stream) -> None:
        if peer != self._organizer:
            raise ValueError(f"{peer} is not the organizer")
        question = await stream.receive_question(Prove)
        async with self._turn:
            for message in await self._answer(question):
                await stream.send(message)
        await stream.closed()

    async def _answer(self, question: Prove) -> Sequence[bytes]:
        """Nothing if it is not kept."""
        if question.only == "work":
            work = self._work_of(question.group)
            return [work] if work else []
        shown = await asyncio.to_thread(self._prove, question)
        if shown is None:
            return []
        return [encode(shown.proof), shown.part, *(() if question.only else shown[2:])]

    async def ask_work(self, peer: str, group: str) -> bytes:
        """The lines of work that a member shows of a round; raises NoAnswer."""
        question = encode(Prove(group=group, only="work"))
        with answered(peer):
            async with asyncio.timeout(PROOF_SECONDS), self._endpoint.open(peer, self, question) as stream:
                return await stream.receive(MAX_WORK_BYTES)

    async def ask(self, peer: str, question: Prove) -> Shown:
        """What a member shows; raises NoAnswer."""
        with answered(peer):
            async with asyncio.timeout(PROOF_SECONDS), self._endpoint.open(peer, self, encode(question)) as stream:
                proof = await stream.receive_record(Proof)
                part = await stream.receive(MAX_PART_BYTES)
                if question.only:
                    return Shown(proof, part, b"", b"", b"")
                before, after = await stream.receive(MAX_PIECE_BYTES), await stream.receive(MAX_PIECE_BYTES)
                return Shown(proof, part, before, after, await stream.receive(MAX_WORK_BYTES))
