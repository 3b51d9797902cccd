"""The picture model of a run, and its pictures as codes: the organizer encodes once what nobody else then needs to."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.counting import CountDisplay
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, upload
from dedloc_kit.learning.data.folder import new_folder
from dedloc_kit.learning.data.pictures.codes import PictureCodes, write_code_shards
from dedloc_kit.learning.data.pictures.images import Pixels, each_decoded
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.models.picture_model.captioned import CaptionedFile, captioned
from dedloc_kit.learning.models.picture_model.files import OWN_CONFIG, OWN_WEIGHTS, completed, pictures_of
from dedloc_kit.learning.models.picture_model.settings import Images
from dedloc_kit.organizer.prepare import prepare_tokenizer, push_tokenizer, tokenizer_folder

HELD_OUT = "test"
"""The split of the shards with the pictures that are held out."""
_MEASURED_PIXELS, _FEWEST, _MOST = 2**21, 32, 512
"""Of the pictures that a picture model is measured on, and how many these are at least and at most."""


def device_for(choice: Literal["auto", "cpu", "cuda"], threads: int) -> str:
    """What the picture model is to compute with; raises UserError if that is not there."""
    from dedloc_kit.learning.train.computing.device import pick_device, set_threads

    set_threads(threads)
    return str(pick_device(choice))


def measure_pictures(run: RunConfig, images: Images, device: str = "cpu") -> RunConfig:
    """Say what the picture model that the run names makes of held-out pictures.

    Returns the run with the SHA-256 of the model. Raises UserError if that cannot be.
    """
    from dedloc_kit.learning.models.picture_model.encoding import quality
    from dedloc_kit.learning.models.picture_model.loading import load_picture_model

    run = completed(run)
    pictures, left_out = pictures_of(run), Counter[str]()
    with CountDisplay("pictures") as display:
        measured = min(_MOST, max(_FEWEST, _MEASURED_PIXELS // pictures.size**2))
        held_out = list(islice(_once(images, pictures, True, left_out, display.line), measured))
        if not held_out:
            reasons = "; ".join(_reasons(left_out)) or "there are too few captions"
            raise UserError(
                f"no picture is held out that can be used ({reasons}); set images.held_out to a larger share"
            )
        found = quality(load_picture_model(pictures, device), [pixels for pixels, _ in held_out])
        display.line(
            f"{pictures.size} x {pictures.size} pixels become {pictures.side} x {pictures.side} codes: "
            f"{found.decibels:.1f} dB on {len(held_out)} held-out pictures, which have {found.used} of "
            f"{pictures.codes} codes"
        )
    return run


def prepare_code_shards(run: RunConfig, images: Images, folder: Path, device: str = "cpu") -> tuple[int, int]:
    """Write the run's pictures as codes with their captions; returns how many to train on, and how many held out.

    Each source is read in the order of its files, once for either. Raises UserError, and leaves nothing behind, if the
    folder exists or a shard cannot be read: what is left out here would be missing for all.
    """
    from dedloc_kit.learning.data.text.tokens import vocabulary_hash
    from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
    from dedloc_kit.learning.models.picture_model.encoding import Encoder
    from dedloc_kit.learning.models.picture_model.loading import load_picture_model

    pictures, left_out = pictures_of(run), Counter[str]()
    tokenizer = load_tokenizer(str(run.task.options.get("tokenizer")))
    encoder = Encoder(load_picture_model(pictures, device), tokenizer, images.caption_tokens, left_out)
    name, size, written = vocabulary_hash(tokenizer), len(tokenizer), []
    with new_folder(folder) as temporary, CountDisplay("pictures") as display:
        for split in ("train", HELD_OUT):
            found = _once(images, pictures, split == HELD_OUT, left_out, display.line)
            samples = display.each(split, encoder.samples(found))
            written.append(write_code_shards(samples, temporary, pictures, name, size, split))
        for reason in _reasons(left_out):
            display.line(reason)
        for split, number in zip(("train", HELD_OUT), written, strict=True):
            if not number:
                raise UserError(f"no picture is left for '{split}'; change images.sources, or what is left out")
        (temporary / "README.md").write_text(_card(run), encoding="utf-8")
    return written[0], written[1]


def prepare_caption_tokenizer(run: RunConfig, images: Images) -> None:
    """Train the tokenizer that the run names on the captions, if there is none yet."""
    tokenizer = run.task.options.get("tokenizer")
    if isinstance(tokenizer, str) and Path(tokenizer).is_absolute() and not Path(tokenizer).exists():
        captions = tuple(each.source.model_copy(update={"column": each.caption}) for each in images.sources)
        prepare_tokenizer(run.model_copy(update={"data": run.data.model_copy(update={"train": captions})}))


def shards_folder(run: RunConfig, beside: Path) -> Path:
    """Where the run's own codes are or are to be: where its file says, else in the folder `codes` beside it."""
    first = run.data.train[0]
    own = first.tokenized and Path(first.dataset).is_absolute()
    return Path(first.dataset) if own else beside / "codes"


def push_pictures(run: RunConfig, repository: str, private: bool = False) -> list[str]:
    """Upload a picture model and a tokenizer of this machine to a model repository; returns what to put into the file.

    Raises UserError if there is no token of the Hub, or it refuses or cannot be reached; the folders stay as they are.
    """
    lines, folder = [], Path(pictures_of(run).model)
    if folder.is_absolute():
        commit = _pushed(folder, repository, [OWN_CONFIG, OWN_WEIGHTS], "model", private)
        lines.append(f'in [task.pictures]:\n\nmodel = "{repository}@{commit}"')
    if Path(str(run.task.options.get("tokenizer"))).is_absolute():
        lines.append(f'in [task]:\n\ntokenizer = "{push_tokenizer(tokenizer_folder(run), repository, private)}"')
    return lines


def push_code_shards(folder: Path, repository: str, private: bool = False) -> str:
    """Upload what `prepare_code_shards` wrote to a dataset repository; returns the commit. UserError as above."""
    return _pushed(folder, repository, ["*.parquet", "README.md"], "dataset", private)


def code_sources_toml(dataset: str, revision: str | None = None) -> str:
    """The sections of the run's file that take its data from there."""
    lines = [f'dataset = "{dataset}"', *([f'revision = "{revision}"'] if revision else []), "tokenized = true"]
    return "\n".join(["[[data.train]]", *lines, "", "[data.evaluation]", *lines, f'split = "{HELD_OUT}"'])


def _once(
    images: Images, pictures: PictureCodes, held_out: bool, left_out: Counter[str], warn: Warn
) -> Iterator[tuple[Pixels, CaptionedFile]]:
    read = captioned(images.sources, images, held_out, left_out)
    files = (file for each in images.sources for file in in_order(each.source, read, warn=warn))
    return each_decoded(files, pictures.size, on_white=True)


def _reasons(left_out: Counter[str]) -> list[str]:
    return [f"left out: {number} {reason}" for reason, number in left_out.most_common()]


def _pushed(
    folder: Path, repository: str, patterns: list[str], kind: Literal["model", "dataset"], private: bool
) -> str:
    try:
        return upload(folder, repository, patterns, kind=kind, private=private)
    except HubUnavailable as error:
        raise UserError(
            f"{folder} is made, but not on the Hub ({error}); check the Internet connection, then give the same "
            "command again: it only uploads"
        ) from None


def _card(run: RunConfig) -> str:
    files = [{"split": split, "path": f"{split}-*.parquet"} for split in ("train", HELD_OUT)]
    configs = [{"config_name": "default", "data_files": files}]
    return f"---\nconfigs: {json.dumps(configs)}\n---\n\nCaptions and codes of pictures for the run `{run.name}`.\n"
