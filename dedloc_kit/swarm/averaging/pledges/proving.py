"""Does what a member shows of a round bear out what it has signed? The other side of `pledges`."""

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce.encoding.codec import Codec, check, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.compression import ChunkCompression
from dedloc_kit.swarm.audits.projections import compressed_honestly, implied
from dedloc_kit.swarm.audits.proofs import Contradiction, Proven, Shown
from dedloc_kit.swarm.audits.questions import Prove
from dedloc_kit.swarm.trust.commitments import Commitment, Opening
from dedloc_kit.swarm.trust.pledge import Pledged, Window, Work, lines, overlap, part_content, pieces, window


def proven(pledged: Pledged, question: Prove, shown: Shown, layout: FlatLayout, codec: Codec) -> Proven:
    """Raises Contradiction for what convicts its author, and another ValueError for what proves nothing either way: it
    is not what was committed to, and may have been altered or made up by anybody."""
    proof = shown.proof
    if pledged.group != question.group or not pledged.samples:
        raise ValueError("there is nothing to prove")
    _open(proof.part, question.part % proof.part.count, part_content(proof.begin, proof.end, shown.part), pledged.parts)
    if not _is_chunk(proof.begin, proof.end, layout):
        raise Contradiction(f"it has sent values {proof.begin} to {proof.end} as a part")
    place = window(proof.begin, proof.end)
    before = _residual(proof.before, place, shown.before, pledged.before, layout.size)
    after = _residual(proof.after, place, shown.after, pledged.after, layout.size)
    work = work_of(pledged, shown.work)
    way = codec.small if proof.begin >= layout.large else codec.gradients
    sent = _sent(shown.part, proof.begin, proof.end)[place.begin - proof.begin : place.end - proof.begin]
    gradient = implied(sent, before, after, float(pledged.samples))
    if not torch.isfinite(gradient).all():
        raise Contradiction("its gradient is not finite")
    if len(sent) and not compressed_honestly(sent, after, float(pledged.samples), lambda values: _coded(way, values)):
        raise Contradiction("its residual is not what compression has lost")
    return Proven(place, gradient, work)


def part_of(pledged: Pledged, number: int, chunk: tuple[int, int], shown: Shown) -> Tensor:
    """What a member has sent of a chunk, float32 [numel]; raises ValueError unless it is what was committed to."""
    _open(shown.proof.part, number, part_content(*chunk, shown.part), pledged.parts)
    return _sent(shown.part, *chunk)


def _open(opening: Opening, number: int, content: bytes, root: bytes) -> None:
    if opening.number != number or not opening.shows(content, root):
        raise ValueError("it is not what was committed to")


def _is_chunk(begin: int, end: int, layout: FlatLayout) -> bool:
    """A plan's chunks have values of large tensors or of small ones."""
    return begin < end <= layout.size and end - begin <= CHUNK and (end <= layout.large or begin >= layout.large)


def _residual(opening: Opening, place: Window, content: bytes, root: bytes, size: int) -> Tensor:
    """In the window, float32."""
    _open(opening, place.piece, content, root)
    begin, end = pieces(size)[place.piece]
    if opening.count != len(pieces(size)) or len(content) != 4 * (end - begin):
        raise Contradiction("its residuals are not of this model")
    values = np.frombuffer(content, "<f4")[place.begin - begin : place.end - begin]
    return torch.from_numpy(values.astype(np.float32))


def work_of(pledged: Pledged, shown: bytes) -> list[Work]:
    """The work that a member has committed to; raises as `proven`."""
    each = lines(shown)
    if Commitment(each).root != pledged.work:
        raise ValueError("it is not the work that was committed to")
    try:
        work = [Work.read(line) for line in each]
    except ValueError as error:
        raise Contradiction(f"of its work: {error}") from None
    if len(work) != pledged.microbatches or sum(line.samples for line in work) != pledged.samples:
        raise Contradiction("its work is not as much as it has signed")
    if overlap(work):
        raise Contradiction("it has counted samples twice")
    return work


def _sent(encoded: bytes, begin: int, end: int) -> Tensor:
    """The whole part, as all reducers decode it."""
    try:
        part = read_part(encoded)
        check(part, end - begin)
        return decode(part, end - begin)
    except ValueError as error:
        raise Contradiction(f"its part cannot be decoded: {error}") from None


def _coded(way: ChunkCompression, values: Tensor) -> Tensor:
    return way.extract(way.compress(values))
