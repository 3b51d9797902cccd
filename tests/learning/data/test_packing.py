from collections.abc import Iterator

import numpy as np
import pytest

from dedloc_kit.learning.data.packing import Packer
from dedloc_kit.learning.data.text.tokens import Document

BEGIN, END = 1000, 1001


def made(seed: int) -> list[Document]:
    """Short and long ones, and empty ones; each token stands once."""
    generator = np.random.default_rng(seed)
    lengths = generator.choice([0, 1, 2, 5, 9, 40], size=60)
    cuts = np.split(np.arange(lengths.sum(), dtype=np.uint16), lengths.cumsum()[:-1])
    return [Document(ids, np.array([len(ids)], dtype=np.uint32)) for ids in cuts]


def stream(documents: list[Document], begin: int, end: int) -> Iterator[tuple[int, bool]]:
    """Every token with whether it begins a document."""
    for document in documents:
        if len(document.ids):
            yield begin, True
            yield from ((int(token), False) for token in document.ids)
            if end != begin:
                yield end, False


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("begin", "end"), [(BEGIN, END), (BEGIN, BEGIN)])
@pytest.mark.parametrize(("rows", "length", "lookahead"), [(1, 8, 0), (3, 7, 1), (2, 16, 1)])
def test_the_packs_are_the_documents_one_after_the_other_and_positions_begin_again_with_each(
    seed: int, begin: int, end: int, rows: int, length: int, lookahead: int
) -> None:
    documents = made(seed)
    packs = list(Packer(begin, end, length, lookahead).packs(iter(documents), rows))
    ids = np.concatenate([pack.ids for pack in packs])
    assert all(len(pack.ids) == rows for pack in packs[:-1])
    assert ids.shape[1] == length + lookahead

    expected = list(stream(documents, begin, end))
    tokens = ids[:, :length].ravel().tolist()
    assert tokens == [token for token, _ in expected[: len(tokens)]]
    assert len(expected) - len(tokens) < length + lookahead, "only what is less than a sequence is left"
    if lookahead:
        following = [token for token, _ in expected[1 : len(tokens) + 1]]
        assert ids[:, 1:].ravel().tolist() == following

    position = -1
    for index, found in enumerate(np.concatenate([pack.positions for pack in packs]).ravel().tolist()):
        position = 0 if expected[index][1] or index % length == 0 else position + 1
        assert found == position, index


def test_less_than_one_sequence_makes_no_pack() -> None:
    assert not list(Packer(BEGIN, BEGIN, 1000, 1).packs(made(0)[:5], 1))
