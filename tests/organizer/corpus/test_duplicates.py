from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dedloc_kit.organizer.corpus import duplicates
from dedloc_kit.organizer.corpus.duplicates import Duplicates, SketchFiles, find_duplicates, write_sketches
from dedloc_kit.organizer.corpus.sketch import BANDS, KEYS, ROWS, SHINGLE, Sketches, similarity, sketches_of
from dedloc_kit.organizer.corpus.words import words_of
from tests.organizer.corpus.prose import changed, prose


def jaccard(one: list[str], other: list[str]) -> float:
    """From the words themselves."""
    sets = [
        {
            tuple(word.strip(".\n").lower() for word in words[at : at + SHINGLE])
            for at in range(len(words) - SHINGLE + 1)
        }
        for words in (one, other)
    ]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def found_among(texts: list[str], folder: Path, files: int = 3, at_once: int = 2**22) -> Duplicates:
    """The copies among texts whose sketches lie in so many files."""
    paths = [folder / f"{number}.parquet" for number in range(files)]
    borders = np.linspace(0, len(texts), files + 1).astype(int)
    for path, (begin, end) in zip(paths, pairwise(borders), strict=True):
        middle = (begin + end) // 2
        write_sketches(path, [sketches_of(part, words_of(part)) for part in (texts[begin:middle], texts[middle:end])])
    found, sketches = Duplicates.none(len(texts)), SketchFiles(paths)
    for number in range(KEYS):
        find_duplicates(sketches, found, number, at_once)
    return found


def test_planted_copies_are_found_and_nothing_else(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    first = [prose(generator, 200) for _ in range(500)]
    copies = [changed(words, int(generator.integers(1, 14)), generator) for words in first]
    known = np.array([jaccard(*pair) for pair in zip(first, copies, strict=True)])
    found = found_among([" ".join(words) for words in [*first, *copies]], tmp_path)
    assert found.stay[:500].all(), "the first one stays"
    away = ~found.stay[500:]
    assert (found.of[500:][away] == np.flatnonzero(away)).all(), "a copy is one of its own original"
    similar, unlike = known >= 0.8, known < 0.6
    assert (similar.sum() > 100, unlike.sum() > 100) == (True, True)
    assert away[similar].mean() >= 0.95
    assert not away[unlike].any()
    assert 1 - (1 - 0.8**ROWS) ** BANDS >= 0.95


def test_equal_documents_go_by_the_first_key_and_the_earliest_one_stays(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    one, two = " ".join(prose(generator)), " ".join(prose(generator))
    found = found_among([two, one, one, two, one, one.upper()], tmp_path, files=2)
    assert found.of.tolist() == [duplicates.UNIQUE, duplicates.UNIQUE, 1, 0, 1, 1]
    assert (found.key == 0).tolist() == [True] * 5 + [False]


def test_what_is_looked_at_twice_is_found_once(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    texts = [" ".join(prose(generator)) for _ in range(20)] * 2
    found = found_among(texts, tmp_path)
    before = found.values.copy()
    find_duplicates(SketchFiles([tmp_path / f"{number}.parquet" for number in range(3)]), found, 5)
    assert (found.values == before).all()


def test_keys_that_do_not_fit_the_memory_are_compared_part_by_part(tmp_path: Path) -> None:
    generator = np.random.default_rng(8)
    first = [prose(generator) for _ in range(60)]
    texts = [
        " ".join(words) for words in [*first, *first[:20], *(changed(words, 1, generator) for words in first[20:])]
    ]
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, parts = found_among(texts, tmp_path / "whole"), found_among(texts, tmp_path / "parts", at_once=7)
    assert (whole.values == parts.values).all()
    assert whole.stay.sum() == 60


def test_many_documents_that_share_a_key_and_are_unlike_cost_a_bounded_time(tmp_path: Path) -> None:
    number = 3 * duplicates.MOST_COMPARED
    shingles = np.arange(10 * number, dtype=np.uint32)
    same = np.zeros((KEYS, number + 2), dtype=np.uint64)
    copies = np.concatenate([shingles, shingles[:10], shingles[-10:]])
    write_sketches(tmp_path / "0.parquet", [Sketches(same, copies, np.arange(10, len(copies) + 1, 10))])
    found = Duplicates.none(number + 2)
    find_duplicates(SketchFiles([tmp_path / "0.parquet"]), found, 0)
    assert np.flatnonzero(~found.stay).tolist() == [number], "a copy of the first one; one of the last one stays"


def test_short_texts_and_texts_without_words_are_compared_too(tmp_path: Path) -> None:
    found = found_among(["Yes.", "", "No.", "yes", "...", "漢字", "漢字"], tmp_path)
    assert found.of.tolist() == [duplicates.UNIQUE] * 3 + [0, 1, duplicates.UNIQUE, 5]


def test_similarity_is_that_of_the_sets() -> None:
    sets = [np.array(sorted(values), dtype=np.uint32) for values in ({1, 2, 3, 2**32 - 1}, {2, 3, 9}, set[int]())]
    assert [similarity(sets[0], each) for each in sets] == [1.0, 2 / 5, 0.0]
    assert similarity(sets[2], sets[2]) == 1.0


@pytest.mark.parametrize("words", [30, 2000])
def test_sketches_of_a_batch_are_those_of_each_alone(words: int) -> None:
    generator = np.random.default_rng(6)
    texts = [" ".join(prose(generator, words)) for _ in range(3)]
    together = sketches_of(texts, words_of(texts))
    each = [sketches_of([text], words_of([text])) for text in texts]
    assert (together.keys == np.concatenate([one.keys for one in each], axis=1)).all()
    assert (together.shingles == np.concatenate([one.shingles for one in each])).all()
    assert together.ends.tolist() == np.cumsum([len(one.shingles) for one in each]).tolist()
