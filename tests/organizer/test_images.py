"""`dedloc prepare images`: from pictures with captions to codes, whole or not at all."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from dedloc_kit.cli.main import main
from dedloc_kit.cli.options import run_of
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.data.pictures.codes import Captioned, read_code_shard
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.text.tokens import vocabulary_hash
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.files import pictures_of
from dedloc_kit.learning.models.picture_model.loading import load_picture_model, save
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.pictures import draw, encoded

KINDS = ("level", "rising", "upright", "falling")
RUN = """
name = "stripes"
global_batch = 8

[task]
name = "text-to-image"
tokenizer = "tokenizer"
vocab_size = 300

[task.pictures]
model = "pictures"
codes = 16
side = 4
size = 16

[images]
held_out = 0.2
caption_tokens = 12

[[images.sources]]
dataset = "stripes"

[[data.train]]
dataset = "codes"
tokenized = true

[data.evaluation]
dataset = "codes"
split = "test"
tokenized = true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    numbers = range(120)
    table: dict[str, list[Any]] = {
        "image": [encoded(draw(each, 16)) for each in numbers],
        "caption": [f"{KINDS[each % 4]} stripes, number {each // 2}" for each in numbers],
    }
    table["caption"][0] = "x"
    table["caption"][1] += " indeed" * 20_000
    (tmp_path / "stripes").mkdir()
    parquet.write_table(pyarrow.table(table), tmp_path / "stripes" / "train-00000-of-00001.parquet")
    architecture = Architecture(codes=16, scale=4, width=8, code_width=4)
    torch.manual_seed(0)
    (tmp_path / "pictures").mkdir()
    save(Autoencoder(architecture), architecture, tmp_path / "pictures")
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def make(*options: str) -> int:
    return main(["prepare", "images", "run.toml", "--device", "cpu", "--threads", "1", *options])


def completed(folder: Path) -> RunConfig:
    return run_of(type("Options", (), {"run": folder / "run.toml", "overrides": None})())


def samples(run: RunConfig, source: Any) -> list[Captioned]:
    tokenizer = load_tokenizer(run.task.options["tokenizer"])
    shards = find_shards(source, print)
    read = (pictures_of(run), vocabulary_hash(tokenizer), len(tokenizer), print)
    return [sample for shard in shards for sample in read_code_shard(shard, *read)]


def change(folder: Path, old: str, new: str) -> None:
    text = (folder / "run.toml").read_text()
    assert text.count(old) == 1
    (folder / "run.toml").write_text(text.replace(old, new))


def left(folder: Path) -> set[str]:
    """What has been made."""
    return {path.name for path in folder.iterdir()} - {"stripes", "pictures", "run.toml", "cache"}


def test_from_pictures_with_captions_to_what_a_volunteer_reads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--shards") == 0
    told = capsys.readouterr()
    assert "put into" not in told.out  # the run's file names all of it
    assert "left out: 1 captions of under 3 characters" in told.err
    run = completed(folder)
    train, held_out = (samples(run, source) for source in (run.data.train[0], run.data.evaluation))
    assert f"{len(train)} pictures to train on and {len(held_out)} held out" in told.out
    assert len(train) + len(held_out) == 119
    words = [{tuple(sample.caption) for sample in part} for part in (train, held_out)]
    assert words[1]
    assert not words[0] & words[1]
    # Each sample has the codes of its picture and the first words of its caption.
    tokenizer, model = load_tokenizer(str(folder / "tokenizer")), load_picture_model(pictures_of(run))
    first = train[5]
    text = tokenizer.decode(first.caption.tolist())
    number = next(each for each in range(2, 120) if f"{KINDS[each % 4]} stripes, number {each // 2}" == text)
    pixels = torch.from_numpy(np.asarray(draw(number, 16)).copy()).permute(2, 0, 1)[None]
    assert first.codes.tolist() == model.encode(pixels).flatten().tolist()
    assert max(len(sample.caption) for sample in [*train, *held_out]) == 12
    # Nothing of it is made twice.
    assert make() == 0
    assert make("--shards") == 2
    assert "codes exists already; remove it or choose another folder" in capsys.readouterr().err


def test_the_section_images_is_no_part_of_the_run(folder: Path) -> None:
    before = load_run(folder / "run.toml")
    change(folder, "held_out = 0.2", "held_out = 0.3")
    assert load_run(folder / "run.toml") == before
    assert make() == 0
    # What the picture model is, is a part of it.
    assert completed(folder).fingerprint != before.fingerprint


def test_whoever_interrupts_it_finds_nothing_half_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dedloc_kit.display import counting

    def interrupt(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(counting.CountDisplay, "each", interrupt)
    assert make("--shards") == 130
    assert left(folder) == {"tokenizer"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'dataset = "stripes"',
            'dataset = "stripes"\ncolumn = "caption"',
            "holds str, not pictures, in column 'caption'",
        ),
        ('dataset = "stripes"', 'dataset = "nowhere"', "nowhere does not exist; correct the path"),
        (
            'dataset = "stripes"',
            'dataset = "stripes"\ncaptoin = "text"',
            "images.sources[0].captoin is not a known key; did you mean 'caption'?",
        ),
        (
            "held_out = 0.2",
            "held_out = 0.2\nmin_caracters = 2",
            "images.min_caracters is not a known key; did you mean 'min_characters'?",
        ),
        ("side = 4", "side = 4\ncode = 16", "task.pictures.code is not a known key; did you mean 'codes'?"),
        ("held_out = 0.2", "held_out = 0.7", "images.held_out: input should be less than or equal to 0.5"),
        (
            "held_out = 0.2",
            "held_out = 1e-9",
            "held out that can be used (there are too few captions); set images.held_out to a larger",
        ),
        ("side = 4", "side = 3", "pictures.size must be a multiple of pictures.side: 16 pixels are not 3 codes"),
        ("side = 4", "side = 8", "set task.pictures.size to 32, or task.pictures.side"),
        ('model = "pictures"', 'model = "nowhere"', "nowhere; name a published one, OWNER/NAME@COMMIT"),
        ("codes = 16", "codes = 32", "pictures has 16 codes; set task.pictures.codes to 16"),
        ("codes = 16", "codes = 1", "task.pictures.codes: input should be greater than or equal to 2"),
        ('model = "pictures"', 'model = "me/pictures"', "task.pictures.model must name a commit"),
        (
            "held_out = 0.2",
            "held_out = 0.2\nmin_characters = 100",
            "left out: 24 captions of under 100 characters); set",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line_and_nothing_is_made(
    old: str, new: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, old, new)
    assert make("--shards") == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1]
    assert left(folder) == set()


def test_all_of_it_goes_to_the_hub_and_the_run_names_it_by_commits(
    folder: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--shards", "--push", "me/stripes") == 0
    said = capsys.readouterr().out.replace("[task.pictures]:\n", "[task.pictures]\n")
    model, tokenizer = (f"me/stripes@{hub.revision('me/stripes', number)}" for number in (1, 2))
    assert f'model = "{model}"' in said
    assert f'tokenizer = "{tokenizer}"' in said
    pushed = hub.files("datasets/me/stripes")
    assert {"train-00000.parquet", "test-00000.parquet", "README.md"} <= pushed.keys()
    sources = tomllib.loads(said[said.index("[[data.train]]\ndataset") :])
    commit = hub.revision("datasets/me/stripes")
    assert sources["data"]["train"] == [{"dataset": "me/stripes", "revision": commit, "tokenized": True}]
    assert sources["data"]["evaluation"] == sources["data"]["train"][0] | {"split": "test"}
    # The run reads from there what it read from the folders.
    before = completed(folder)
    change(folder, 'model = "pictures"', f'model = "{model}"')
    after = completed(folder)
    assert pictures_of(after).sha256 == pictures_of(before).sha256
    # What is there is only uploaded.
    assert make("--shards", "--push", "me/stripes") == 0
