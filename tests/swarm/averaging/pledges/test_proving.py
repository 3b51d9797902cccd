"""Who lies in what it shows of a round proves nothing, and who has signed a lie is convicted by it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.audits.proofs import Contradiction, Proven, Shown
from dedloc_kit.swarm.audits.questions import Proof, Prove
from dedloc_kit.swarm.averaging.pledges.proving import proven
from dedloc_kit.swarm.trust.commitments import Commitment
from dedloc_kit.swarm.trust.pledge import Pledged, Work, part_content, pieces, window

LARGE = 2 * CHUNK + 5000
LAYOUT = FlatLayout.of([torch.zeros(LARGE), torch.zeros(3000)])
CHUNKS = Plan(("one", "another"), LAYOUT, (CHUNK + 2000, LAYOUT.size - CHUNK - 2000)).chunks
SAMPLES = 24
CODEC = codec_of("4bit")
STRADDLING = next(n for n, (begin, end) in enumerate(CHUNKS) if begin // CHUNK < (end - 1) // CHUNK and end <= LARGE)
GROUP = "ab" * 20


def gradient() -> Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))


@dataclass
class Author:
    """What somebody commits to and shows; what is changed in it before `signs` it has signed."""

    rounds: int = 1
    """Of which the last one is shown."""
    chunks: list[tuple[int, int]] = field(default_factory=lambda: list(CHUNKS))
    encoded: list[bytes] = field(default_factory=list)
    before: list[bytes] = field(default_factory=list)
    after: list[bytes] = field(default_factory=list)
    work: list[bytes] = field(default_factory=list)
    samples: int = SAMPLES
    microbatches: int = 3

    def __post_init__(self) -> None:
        coding = Coding(CODEC, Feedback(LAYOUT.size), Feedback(LAYOUT.size))
        for _ in range(self.rounds):
            coding.sent.commit()
            coding.sent.begin(SAMPLES)
            self.encoded = [
                coding.sent.encode(coding.of_gradients(a, LAYOUT), gradient()[a:b], a).SerializeToString()
                for a, b in CHUNKS
            ]
        self.before, self.after = residuals(coding.sent.residual), residuals(coding.sent.next_residual())
        self.work = [Work(7, None, position, 8, 3).content for position in (0, 8, 16)]

    def signs(self, part: int) -> tuple[Pledged, Shown]:
        """And what it shows of a part."""
        contents = [part_content(*chunk, each) for chunk, each in zip(self.chunks, self.encoded, strict=True)]
        parts, before, after = Commitment(contents), Commitment(self.before), Commitment(self.after)
        roots = {"parts": parts.root, "before": before.root, "after": after.root, "work": Commitment(self.work).root}
        usual = {"run_id": "tiny-0123456789abcdef", "step": 1, "session": "ab", "loss": 1.0, "name": "", "time": 9.0}
        counts = {"samples": self.samples, "session_samples": self.samples, "microbatches": self.microbatches}
        pledged = Pledged.parse({**usual, **counts, **roots, "group": GROUP})
        begin, end = self.chunks[part]
        piece = min(window(*CHUNKS[part]).piece, len(self.before) - 1)
        openings = {"part": parts.opening(part), "before": before.opening(piece), "after": after.opening(piece)}
        shown = (self.encoded[part], self.before[piece], self.after[piece], b"".join(self.work))
        return pledged, Shown(Proof(begin=begin, end=end, **openings), *shown)


def residuals(values: Tensor | None) -> list[bytes]:
    numbers = torch.zeros(LAYOUT.size) if values is None else values
    return [numbers[begin:end].numpy().tobytes() for begin, end in pieces(LAYOUT.size)]


def ask(pledged: Pledged, part: int, shown: Shown) -> Proven:
    # The number is drawn by who does not know how many parts there are.
    return proven(pledged, Prove(group=GROUP, part=part + 5 * len(CHUNKS)), shown, LAYOUT, CODEC)


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("part", range(len(CHUNKS)))
def test_an_honest_author_proves_every_part(rounds: int, part: int) -> None:
    pledged, shown = Author(rounds).signs(part)
    found = ask(pledged, part, shown)
    begin, end = CHUNKS[part]
    assert begin <= found.window.begin < found.window.end <= end
    true = gradient()[found.window.begin : found.window.end]
    assert torch.linalg.vector_norm(found.implied - true) <= 1e-6 * torch.linalg.vector_norm(true)
    assert found.work == [Work(7, None, position, 8, 3) for position in (0, 8, 16)]


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def another_piece(shown: Shown) -> Shown:
    author, piece = Author(), (shown.proof.before.number + 1) % 3
    opening = Commitment(author.before).opening(piece)
    return shown._replace(before=author.before[piece], proof=shown.proof.model_copy(update={"before": opening}))


@pytest.mark.parametrize(
    "altered",
    [
        lambda shown: shown._replace(part=flipped(shown.part)),
        lambda shown: shown._replace(before=flipped(shown.before)),
        lambda shown: shown._replace(after=flipped(shown.after)),
        lambda shown: shown._replace(work=flipped(shown.work)),
        lambda shown: shown._replace(work=shown.work[:-1]),
        lambda shown: shown._replace(work=b""),
        lambda shown: shown._replace(part=b""),
        lambda shown: shown._replace(proof=shown.proof.model_copy(update={"end": shown.proof.end - 1})),
        lambda shown: Author().signs(STRADDLING + 1)[1],
        another_piece,
    ],
)
def test_what_was_not_committed_to_proves_nothing_either_way(altered: Callable[[Shown], Shown]) -> None:
    pledged, shown = Author().signs(STRADDLING)
    ask(pledged, STRADDLING, shown)
    with pytest.raises(ValueError, match=r"not what was committed to|not the work|no lines|from 1 to") as refused:
        ask(pledged, STRADDLING, altered(shown))
    assert not isinstance(refused.value, Contradiction)


def test_of_another_round_nothing_is_proven() -> None:
    pledged, shown = Author().signs(0)
    with pytest.raises(ValueError, match="nothing to prove"):
        proven(pledged, Prove(group="cd" * 20, part=0), shown, LAYOUT, CODEC)


def outside(author: Author) -> None:
    author.chunks[STRADDLING] = (LAYOUT.size - 10, LAYOUT.size + 10)


def two_kinds(author: Author) -> None:
    author.chunks[STRADDLING] = (LARGE - 10, LARGE + 10)


def too_long(author: Author) -> None:
    author.chunks[STRADDLING] = (0, CHUNK + 1)


def none_at_all(author: Author) -> None:
    author.chunks[STRADDLING] = (10, 10)


def residual_of_a_smaller_model(author: Author) -> None:
    author.after.pop()


def short_residual(author: Author) -> None:
    author.after = [each[:-4] for each in author.after]


def residual_without_numbers(author: Author) -> None:
    author.after = residuals(torch.full((LAYOUT.size,), float("nan")))


def garbage(author: Author) -> None:
    author.encoded[STRADDLING] = b"garbage"


def too_few_values(author: Author) -> None:
    begin, end = CHUNKS[STRADDLING]
    author.encoded[STRADDLING] = CODEC.gradients.compress(gradient()[begin : end - 1]).SerializeToString()


def another_gradient(author: Author) -> None:
    """It sends the opposite, and a residual with which that looks like the gradient."""
    begin, end = CHUNKS[STRADDLING]
    opposite = CODEC.gradients.compress(-gradient()[begin:end])
    author.encoded[STRADDLING] = opposite.SerializeToString()
    lie = torch.zeros(LAYOUT.size)
    lie[begin:end] = SAMPLES * (gradient()[begin:end] - CODEC.gradients.extract(opposite))
    author.after = residuals(lie)


def counted_twice(author: Author) -> None:
    author.work[2] = Work(7, None, 15, 8, 3).content


def one_within_another(author: Author) -> None:
    author.work = [Work(7, None, position, size, 3).content for position, size in ((0, 20), (2, 1), (30, 3))]


def more_samples(author: Author) -> None:
    author.samples += 1


def more_microbatches(author: Author) -> None:
    author.microbatches += 1


def no_line(author: Author) -> None:
    author.work[1] = bytes(len(author.work[1]))


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (outside, "as a part"),
        (two_kinds, "as a part"),
        (too_long, "as a part"),
        (none_at_all, "as a part"),
        (residual_of_a_smaller_model, "not of this model"),
        (short_residual, "not of this model"),
        (residual_without_numbers, "not finite"),
        (garbage, "cannot be decoded"),
        (too_few_values, "cannot be decoded"),
        (another_gradient, "not what compression has lost"),
        (counted_twice, "counted samples twice"),
        (one_within_another, "counted samples twice"),
        (more_samples, "not as much as it has signed"),
        (more_microbatches, "not as much as it has signed"),
        (no_line, "no line of work"),
    ],
)
def test_who_has_signed_a_lie_is_convicted_by_it(lie: Callable[[Author], None], why: str) -> None:
    author = Author()
    lie(author)
    pledged, shown = author.signs(STRADDLING)
    with pytest.raises(Contradiction, match=why):
        ask(pledged, STRADDLING, shown)
