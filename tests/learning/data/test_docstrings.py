import sysconfig
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data import docstrings
from dedloc_kit.learning.data.docstrings import collect_documents, write_corpus
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.run.task import Source

PYTEST = str(Path(pytest.__file__).parents[1] / "_pytest")


def fail(text: str) -> None:
    raise AssertionError(text)


def read(corpus: Path, split: str) -> list[str]:
    return list(in_order(Source(dataset=str(corpus), split=split), texts, warn=fail))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "corpus"
    assert write_corpus(folder, 300_000) == folder
    return folder


def test_the_corpus_is_laid_out_as_on_the_hub_and_read_by_the_stream(corpus: Path) -> None:
    names = sorted(path.name for path in (corpus / "data").iterdir())
    assert names == ["test-00000-of-00001.parquet"] + [f"train-{i:05d}-of-00004.parquet" for i in range(4)]
    assert "path: data/train-*" in (corpus / "README.md").read_text(encoding="utf-8")
    train, test = read(corpus, "train"), read(corpus, "test")
    assert 300_000 <= sum(map(len, train + test)) < 500_000
    assert 0.04 < len(test) / (len(train) + len(test)) < 0.06
    assert [path.name for path in corpus.parent.iterdir()] == ["corpus"]


def test_the_corpus_is_prose_and_no_paragraph_comes_twice(corpus: Path) -> None:
    texts = read(corpus, "train") + read(corpus, "test")
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert all(len(text) >= 200 for text in texts)
    assert all(">>>" not in text and "---" not in text and "::" not in text[-2:] for text in texts)
    assert all(paragraph[0].isupper() and paragraph[-1] in ".!?" for paragraph in paragraphs)


def test_the_same_installation_gives_the_same_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sysconfig.get_paths()  # reading all that is installed takes seconds
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {**here, "purelib": PYTEST, "platlib": PYTEST})
    assert collect_documents(50_000) == collect_documents(50_000)


def test_a_written_corpus_is_kept_and_other_folders_are_not_touched(corpus: Path, tmp_path: Path) -> None:
    before = (corpus / "README.md").stat().st_mtime_ns
    assert write_corpus(corpus) == corpus
    assert (corpus / "README.md").stat().st_mtime_ns == before
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):
        write_corpus(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_code_tables_and_lists_are_dropped_and_a_parameters_text_is_kept() -> None:
    docstring = """Returns the river's `depth` in metres, as it was measured at the bridge that is given.

    >>> depth("mill")
    2.5

    =====  =====
    Place  Depth
    =====  =====

    - a list item that is quite long and has many words in it, but is still only a list item.

    bridge : str
        The name of the bridge at which the river is measured, as it is written on the map of the valley.

        A bridge may have several names; then the first one that is found on the map is taken for it.
    """
    import inspect

    assert docstrings._prose(inspect.cleandoc(docstring), set()).split("\n") == [
        "Returns the river's depth in metres, as it was measured at the bridge that is given.",
        "The name of the bridge at which the river is measured, as it is written on the map of the valley.",
        "A bridge may have several names; then the first one that is found on the map is taken for it.",
    ]
