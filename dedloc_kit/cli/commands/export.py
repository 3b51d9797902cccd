"""`dedloc export`."""

import argparse
import shlex
from pathlib import Path

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import positive
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.display.console import Console

OF_RUN = ("data", "task_module")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a trained model to a new folder: as transformers loads it, with tokenizer and model card, or as one "
        "file of GGUF for llama.cpp and ollama. A run's own folder has its newest best model in the first form "
        "already, in RUN/model. An earlier export is replaced as a whole; anything else is left alone."
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a run's folder (its best checkpoint, or the newest one if none was measured), a checkpoint in it, a "
        "folder that transformers loads, or OWNER/NAME on the Hub",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("--to", choices=["transformers", "gguf"], default="transformers", help="default: %(default)s")
    parser.add_argument(
        "--type",
        choices=["f16", "f32", "q8_0"],
        help="how numbers are stored in GGUF: in 16 bits (default), exactly, or in 8.5 bits",
    )
    parser.add_argument("--step", type=positive, metavar="N", help="of a run's folder the checkpoint of this step")
    add_options(parser, PeerConfig, *OF_RUN)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.errors import UserError
    from dedloc_kit.export.export import export
    from dedloc_kit.records.invitation import INVITATION_FILE

    if options.type and options.to != "gguf":
        raise UserError("--type is for --to gguf; leave it out")
    if (options.out / INVITATION_FILE).exists() and not Path(options.source).exists():
        line = shlex.join(["export", str(options.out), options.source])
        raise UserError(f"the run's folder comes first: dedloc {line}, with the options as they were")
    text = export(
        options.source,
        options.out,
        options.to,
        kind=options.type or "f16",
        step=options.step,
        **given(PeerConfig, options, *OF_RUN),
    )
    Console(highlight=False, markup=False, soft_wrap=True).print(text)
