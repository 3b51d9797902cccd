"""A toy service."""

from typing import ClassVar

from dedloc_kit.records.record import Count, SignedRecord
from dedloc_kit.swarm.network.service import RecordService


class Number(SignedRecord):
    wire: ClassVar[str] = "test/number"

    value: Count


class Doubling(RecordService[Number, Number]):
    """A record in, a record out."""

    name = "doubling"
    question = reply = Number

    async def answer(self, peer: str, question: Number) -> Number:
        if question.value > 1000:
            raise ValueError("too large")
        return Number(value=2 * question.value)
