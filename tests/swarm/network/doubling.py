"""A toy service."""

from dedloc_kit.records.record import Count, Record
from dedloc_kit.swarm.network.service import RecordService


class Number(Record):
    value: Count


class Doubling(RecordService[Number, Number]):
    """A record in, a record out."""

    name = "doubling"
    question = reply = Number

    async def answer(self, peer: str, question: Number) -> Number:
        if question.value > 1000:
            raise ValueError("too large")
        return Number(value=2 * question.value)
