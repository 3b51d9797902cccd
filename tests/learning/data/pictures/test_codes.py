import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from dedloc_kit.learning.data.pictures.codes import Captioned, PictureCodes, read_code_shard, write_code_shards
from dedloc_kit.learning.data.sources.formats import Unusable
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.token_shards import shard_path, write_token_shard
from dedloc_kit.learning.data.text.tokens import Document

VOCABULARY = 700
PICTURES = PictureCodes(model="me/pictures@abc", codes=256, side=8, size=32, sha256="a" * 64)


def fail(text: str) -> None:
    raise AssertionError(text)


def samples(number: int, pictures: PictureCodes = PICTURES) -> list[Captioned]:
    generator = np.random.default_rng(0)
    return [
        Captioned(
            generator.integers(VOCABULARY, size=generator.integers(1, 12)).astype(np.uint16),
            generator.integers(pictures.codes, size=pictures.length).astype(np.uint16),
        )
        for each in range(number)
    ]


def read(
    path: Path, pictures: PictureCodes = PICTURES, vocabulary_hash: str = "v", vocabulary: int = VOCABULARY
) -> Any:
    return list(read_code_shard(Shard(str(path), "parquet"), pictures, vocabulary_hash, vocabulary, fail))


@pytest.mark.parametrize("codes", [256, 8192])
def test_samples_come_back_as_they_were_written_and_take_little_more_than_their_bytes(
    codes: int, tmp_path: Path
) -> None:
    pictures = PICTURES.model_copy(update={"codes": codes})
    written = samples(1201, pictures)
    assert write_code_shards(written, tmp_path, pictures, "v", VOCABULARY, "test") == 1201
    path = tmp_path / "test-00000.parquet"
    found = read(path, pictures)
    assert len(found) == 1201
    for one, other in zip(found, written, strict=True):
        assert np.array_equal(one.caption, other.caption)
        assert np.array_equal(one.codes, other.codes)
        assert one.codes.dtype == np.uint16
    part = list(read_code_shard(Shard(str(path), "parquet", (490, 1010, 1201)), pictures, "v", VOCABULARY, fail))
    assert [each.caption.tolist() for each in part] == [each.caption.tolist() for each in written[490:1010]]
    assert [each.codes.tolist() for each in part] == [each.codes.tolist() for each in written[490:1010]]
    packed = sum(2 * len(item.caption) + item.codes.size * (1 if codes <= 256 else 2) for item in written)
    assert path.stat().st_size < 1.5 * packed


def test_columns_that_nobody_asks_for_are_passed_over(tmp_path: Path) -> None:
    write_code_shards(samples(2), tmp_path, PICTURES, "v", VOCABULARY)
    path = tmp_path / "train-00000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.append_column("label", pyarrow.array(["monster", ""])), path)
    assert len(read(path)) == 2


def test_a_shard_of_another_picture_model_or_tokenizer_or_of_none_is_refused(tmp_path: Path) -> None:
    write_code_shards(samples(3), tmp_path, PICTURES, "v", VOCABULARY)
    path = tmp_path / "train-00000.parquet"
    for changed in ({"sha256": "b" * 64}, {"codes": 512}, {"side": 4}, {"size": 64}):
        with pytest.raises(Unusable, match=r"another picture model than task\.pictures says; write it again with"):
            read(path, PICTURES.model_copy(update=changed))
    # Where the model lies is no matter.
    assert len(read(path, PICTURES.model_copy(update={"model": "you/pictures@abc"}))) == 3
    with pytest.raises(Unusable, match=r"another tokenizer than task\.tokenizer; write it again with"):
        read(path, vocabulary_hash="w")
    document = Document(np.array([1], np.uint16), np.array([1], np.uint32))
    write_token_shard([document], shard_path(tmp_path, 0), "v", VOCABULARY)
    with pytest.raises(Unusable, match="holds no codes of pictures; write them with: dedloc prepare images"):
        read(path)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("codes", [[*range(63), 300]] * 2, r"the code 300, and task\.pictures\.codes is 256"),
        ("codes", [list(range(60)), list(range(68))], "not 8 x 8 codes"),
        ("codes", [[-1] * 64] * 2, r"list<.*int64.*> where"),
        ("codes", [None, list(range(64))], "empty values"),
        ("caption", [[VOCABULARY], [1]], "captions that cannot be"),
        ("caption", [[], [1]], "captions that cannot be"),
        ("caption", [[1] * 1025, [1]], "captions that cannot be"),
    ],
)
def test_what_cannot_be_is_found_where_it_is_read(column: str, values: list[Any], said: str, tmp_path: Path) -> None:
    write_code_shards(samples(2), tmp_path, PICTURES, "v", VOCABULARY)
    path = tmp_path / "train-00000.parquet"
    table = parquet.read_table(path)
    kind = None if values[0] and values[0][0] < 0 else pyarrow.list_(pyarrow.uint16())
    changed = table.set_column(table.schema.get_field_index(column), column, pyarrow.array(values, kind))
    parquet.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(Unusable, match=said):
        read(path)


def test_codes_have_to_fit_their_pictures() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": 36}, "36 pixels are not 8 codes"),
        ({"codes": 70_000}, "codes"),
        ({"sha256": "abc"}, "sha256"),
    ]
    for changed, said in wrong:
        with pytest.raises(ValidationError, match=said):
            PictureCodes.model_validate(PICTURES.model_dump() | changed)


@pytest.mark.child
def test_reading_needs_no_picture_model_and_no_pillow(tmp_path: Path) -> None:
    write_code_shards(samples(3), tmp_path, PICTURES, "v", VOCABULARY)
    code = f"""
import json, sys
from dedloc_kit.learning.data.pictures.codes import PictureCodes, read_code_shard
from dedloc_kit.learning.data.sources.shards import Shard
pictures = PictureCodes.model_validate_json({PICTURES.model_dump_json()!r})
shard = Shard({str(tmp_path / "train-00000.parquet")!r}, "parquet")
found = list(read_code_shard(shard, pictures, "v", {VOCABULARY}, print))
print(json.dumps([len(found), sorted(sys.modules)]))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    number, modules = json.loads(output.splitlines()[-1])
    assert number == 3
    assert not {"PIL", "torch", "diffusers", "transformers", "dedloc_kit.learning.models.picture_model"} & set(modules)
