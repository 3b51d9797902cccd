import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.dataset import Dataset, Example, load_dataset
from dedloc_kit.learning.evaluate.problems import Classification, Ner
from dedloc_kit.learning.evaluate.settings import Settings
from tests.learning.evaluate.language import write, write_ner, write_news


def load(folder: Path | str, task: Any = "ner", **settings: Any) -> Dataset:
    check = Ner.check if task == "ner" else Classification.check

    def fail(text: str) -> None:
        raise AssertionError(text)

    return load_dataset(Settings(task=task, dataset=str(folder), **settings), check, fail)


def test_the_names_of_the_tags_come_from_a_file_beside_the_data(entities: Path) -> None:
    data = load(entities)
    assert (len(data.train), len(data.validation), len(data.test)) == (96, 16, 32)
    assert data.train[0].label == ["O", "B-PER", "O", "O", "O", "B-LOC", "I-LOC", "O"]


def test_the_names_of_the_tags_come_from_the_features_as_the_hub_stores_them(tmp_path: Path) -> None:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    for split, words in (("train", ["mirna"]), ("dev", ["osgar"]), ("test", ["tolve"])):
        rows = {"tokens": [words], "ner_tags": [[1]]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    data = load(tmp_path)
    assert data.test == [Example(["tolve"], ["B-PER"])]
    assert data.validation == [Example(["osgar"], ["B-PER"])]


def test_a_training_sample_that_is_also_in_another_split_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "train", {"text": ["a b", "c", "d", "c"], "label": [0, 1, 0, 1]})
    write(tmp_path, "validation", {"text": ["d"], "label": [0]})
    write(tmp_path, "test", {"text": ["c", " "], "label": [1, 1]})
    data = load(tmp_path, "classification")
    assert data.train == [Example("a b", "0")]
    assert data.test == [Example("c", "1")]
    assert data.repeated == 3


def test_a_part_of_the_training_samples_is_the_same_each_time(entities: Path) -> None:
    part = load(entities, train_samples=10).train
    assert len(part) == 10
    assert part == load(entities, train_samples=10).train
    assert part != load(entities).train[:10]
    assert len(load(entities, train_samples=1000).train) == 96


def test_a_dataset_without_what_is_needed_names_the_fix(tmp_path: Path) -> None:
    numbers = write_ner(tmp_path / "numbers", {"train": 2, "test": 2}, labels_file=False)
    with pytest.raises(UserError, match=r"row 1 .*ner_tags.*the tag 0 is no name.*labels\.json"):
        load(numbers)
    (numbers / "labels.json").write_text(json.dumps({"tags": ["O"]}), encoding="utf-8")
    with pytest.raises(UserError, match=r'labels\.json does not name the classes of ner_tags; write \{"ner_tags"'):
        load(numbers)
    (numbers / "labels.json").write_text(json.dumps({"ner_tags": ["O"]}), encoding="utf-8")
    with pytest.raises(UserError, match="the class 1 has no name; 1 classes have one"):
        load(numbers)
    with pytest.raises(UserError, match="no column 'words'; set the column to one of: ner_tags, tokens"):
        load(numbers, column="words")
    with pytest.raises(UserError, match="no split 'test', only train"):
        load(write_news(tmp_path / "news", {"train": 4}), "classification")
    write(tmp_path / "news", "test", {"text": ["  "], "label": ["people"]})
    with pytest.raises(UserError, match=r"the split 'test' of .* is empty"):
        load(tmp_path / "news", "classification")
    with pytest.raises(UserError, match="does not exist; correct the path"):
        load(tmp_path / "nowhere")


def test_the_default_dataset_has_to_be_given_its_language() -> None:
    with pytest.raises(UserError, match="name the part of unimelb-nlp/wikiann with --subset, such as bn"):
        load_dataset(Settings(), Ner.check, print)
