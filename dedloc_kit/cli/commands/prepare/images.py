"""`dedloc prepare images`."""

import argparse

from dedloc_kit.cli.options import add_device, add_run
from dedloc_kit.config.loading import load_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--shards",
        action="store_true",
        help="also write captions and codes of the pictures, where the run's file says that they are: volunteers need "
        "nothing else; the tokenizer is trained on the captions if there is none",
    )
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="upload the picture model and the tokenizer to the Hub, and the codes as a dataset of the same name; what "
        "is there is not made again",
    )
    parser.add_argument("--private", action="store_true", help="with --push: make private repositories")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.learning.models.picture_model.settings import load_images
    from dedloc_kit.organizer import images

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    section, beside = load_images(options.run, options.overrides), options.run.resolve().parent
    if options.push:
        check_login(options.push)  # before the minutes that encoding takes
    device, folder = images.device_for(options.device, options.threads), images.shards_folder(run, beside)
    run = images.measure_pictures(run, section, device)
    if options.shards:
        images.prepare_caption_tokenizer(run, section)
        if not (options.push and folder.exists()):
            train, held_out = images.prepare_code_shards(run, section, folder, device)
            console.print(f"{train} pictures to train on and {held_out} held out")
        console.print(f"the codes are in {folder}", soft_wrap=True)
    changes = images.push_pictures(run, options.push, options.private) if options.push else []
    if options.shards and (options.push or str(folder) != run.data.train[0].dataset):
        revision = images.push_code_shards(folder, options.push, options.private) if options.push else None
        sources = images.code_sources_toml(options.push or folder.name, revision)
        changes.append(f"in place of [[data.train]] and [data.evaluation]:\n\n{sources}")
    for change in changes:
        console.print(f"\nput into {options.run}, {change}", soft_wrap=True)
