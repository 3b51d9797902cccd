"""Make a small picture model for a run that is tried with pictures of its own, where no published one suits.

    python -m benchmarks.lib.make_picture_model RUN.toml --overrides SMALL.toml

writes the folder that `task.pictures.model` names, for codes as `[task.pictures]` says, from the pictures of
`images.sources`. `dedloc prepare images RUN.toml` then tells what it makes of pictures that it has not seen. For the
small form of text-to-image it takes seven or eight minutes of one core.
"""

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.lib.picture_training import Training, architecture_of, train
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.folder import new_folder
from dedloc_kit.learning.data.pictures.images import each_decoded
from dedloc_kit.learning.data.sources.stream import shuffled
from dedloc_kit.learning.models.picture_model.captioned import captioned
from dedloc_kit.learning.models.picture_model.files import pictures_of
from dedloc_kit.learning.models.picture_model.loading import save
from dedloc_kit.learning.models.picture_model.settings import load_images


def main() -> None:
    options = _parse()
    run, images = load_run(options.run, options.overrides), load_images(options.run, options.overrides)
    pictures = pictures_of(run)
    training = Training(**{name: getattr(options, name) for name in Training.model_fields})
    architecture = architecture_of(pictures, training)
    read = captioned(images.sources, images, False, Counter())
    sources = [each.source for each in images.sources]
    seed = seed_of(run.name, "pictures")
    files = shuffled(sources, read, seed=seed, warn=print)
    pixels = (pixels for pixels, _ in each_decoded(files, pictures.size, on_white=True))
    with new_folder(Path(pictures.model)) as temporary:
        save(train(architecture, training, pixels, seed_of(run.name, "picture model")), architecture, temporary)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN.toml")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml")
    for name, field in Training.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=f"default: {field.default}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
