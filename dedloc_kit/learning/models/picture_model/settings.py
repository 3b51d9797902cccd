"""What the organizer decides about codes of pictures: the section `images` of a run's file, which is not of the run."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from dedloc_kit.config.loading import IMAGES, local, read_values
from dedloc_kit.config.section import TOKENS
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import MAX_CAPTION
from dedloc_kit.learning.models.picture_model.captioned import PictureSource, Wanted
from dedloc_kit.validation import describe


class Images(Wanted):
    """The section `images`."""

    sources: Annotated[tuple[PictureSource, ...], Field(min_length=1)]
    """The datasets of pictures with captions, as tables `[[images.sources]]`."""
    caption_tokens: Annotated[int, Field(ge=1, le=MAX_CAPTION), TOKENS] = 256
    """The longest caption in the shards; longer ones are cut."""


def load_images(path: Path, overrides: Path | None = None) -> Images:
    """The section of a run's file; local paths in it are taken from the file's folder. UserError with key and fix."""
    values = read_values(path, overrides).get(IMAGES)
    if values is None:
        raise UserError(f"{path} has no section [{IMAGES}]; add one with [[{IMAGES}.sources]], where the pictures are")
    try:
        images = Images.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(f"{path}: {IMAGES}.{describe(error, Images)}") from None
    except TypeError as error:  # TOML dates have no JSON form
        raise UserError(f"{path}: {IMAGES}: a value has a type that no key takes ({error})") from None
    absolute = tuple(
        source.model_copy(update={"dataset": local(source.dataset, path.parent)}) for source in images.sources
    )
    return images.model_copy(update={"sources": absolute})
