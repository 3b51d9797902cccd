"""What lies in a run's bucket: files named by their SHA-256, and an index of them whose hash the organizer signs."""

from typing import Annotated

from pydantic import Field, ValidationError

from dedloc_kit.records.record import Count, Digest, Record, RunId
from dedloc_kit.validation import describe

CHUNK_BYTES = 2**23
"""Of a file at most: enough that few requests are made, and what is fetched anew after a failure is little."""
MAX_INDEX_BYTES = 4_000_000
MAX_STATES, MAX_AVERAGES = 2, 200


class Chunk(Record):
    """A file."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Its SHA-256, and its name."""
    size: Annotated[int, Field(ge=1, le=CHUNK_BYTES)]


Chunks = Annotated[tuple[Chunk, ...], Field(min_length=1, max_length=20_000)]


class Stored(Record):
    """A training state, or the average of a round."""

    step: Count
    """The global step whose state it is, or that it led to."""
    round: Digest
    """That led there."""
    after: Digest = ""
    """Of an average: the round before it."""
    metadata: Chunks
    content: Chunks

    @property
    def files(self) -> tuple[Chunk, ...]:
        return (*self.metadata, *self.content)


class Index(Record):
    """All that lies there: the newest states, and the averages of the rounds since the older of them."""

    run_id: RunId
    states: Annotated[tuple[Stored, ...], Field(max_length=MAX_STATES)] = ()
    averages: Annotated[tuple[Stored, ...], Field(max_length=MAX_AVERAGES)] = ()

    @classmethod
    def read(cls, text: bytes) -> "Index":
        """Raises ValueError if it is none."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(f"no index: {describe(error, cls)}") from None

    def write(self) -> bytes:
        return self.model_dump_json().encode()

    @property
    def names(self) -> set[str]:
        """Of all files that it names."""
        return {file.digest for stored in (*self.states, *self.averages) for file in stored.files}

    def average_after(self, round: str) -> Stored | None:
        return next((average for average in self.averages if average.after == round), None)

    def reaches(self, state: Stored) -> int:
        """The step to which the averages lead from this state on."""
        step, round = state.step, state.round
        while (average := self.average_after(round)) is not None and average.step == step + 1:
            step, round = average.step, average.round
        return step


def size_of(chunks: tuple[Chunk, ...]) -> int:
    """In bytes, together."""
    return sum(chunk.size for chunk in chunks)
