"""`dedloc evaluate`."""

import argparse
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dedloc_kit.cli.options import Commands, add_device, positive
from dedloc_kit.errors import UserError
from dedloc_kit.evaluation.settings import DATASETS, ProbeSettings, Settings
from dedloc_kit.run import Section, load_run
from dedloc_kit.validation import describe

SectionKind = TypeVar("SectionKind", bound=Section)


def add(commands: Commands) -> None:
    parser = commands.add_parser("evaluate", help="fine-tune a trained model and score it")
    defaults = Settings()
    parser.description = (
        "Fine-tune a trained language model on a labelled dataset with several seeds; tell the scores on the test "
        "split, their mean and their spread (the standard deviation). Of a run on pictures: tell the classes of its "
        "held-out pictures by nearest neighbours and by linear classifiers, which learn from its training pictures."
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a model's folder, OWNER/NAME on the Hub, or *.safetensors"
    )
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="the run that a *.safetensors file is of")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="with --run: as it was launched")
    parser.add_argument(
        "--task",
        choices=list(DATASETS),
        help="named entities, scored by F1 (the default), or the class of a text, scored by accuracy",
    )
    parser.add_argument(
        "--dataset",
        metavar="WHERE",
        help="on the Hub or a folder with train and test; default: "
        + ", ".join(f"{where.dataset} for {task}" for task, where in DATASETS.items()),
    )
    parser.add_argument("--subset", metavar="NAME", help="of the dataset: bn in WikiANN, sna.bn in IndicGLUE")
    parser.add_argument("--column", metavar="NAME", help="of the words or texts; default: tokens, or text")
    parser.add_argument("--label-column", metavar="NAME", help="default: ner_tags, or label")
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help=f"fine-tunings, or classifiers; default: {defaults.seeds}"
    )
    parser.add_argument("--epochs", type=positive, metavar="N", help=f"default: {_defaults('epochs')}")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help=f"default: {_defaults('learning_rate')}")
    parser.add_argument("--batch", type=positive, metavar="N", help=f"default: {_defaults('batch')}")
    parser.add_argument("--max-length", type=positive, metavar="TOKENS", help=f"default: {defaults.max_length}")
    parser.add_argument("--train-samples", type=positive, metavar="N", help="train on so many; default: on all")
    parser.add_argument(
        "--baseline", action="store_true", help="the same from random weights, of pictures also from bare pixels"
    )
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="write the result to this file")
    add_device(parser)
    parser.set_defaults(call=run)


def _defaults(key: str) -> str:
    """Of an option that both kinds of evaluations have."""
    return f"{getattr(Settings(), key):g}, of pictures {getattr(ProbeSettings(), key):g}"


def run(options: argparse.Namespace) -> None:
    given = {key: value for key, value in vars(options).items() if key in Settings.model_fields and value is not None}
    common: dict[str, Any] = {
        "baseline": options.baseline,
        "device": options.device,
        "threads": options.threads,
        "report": options.json,
    }
    trained = load_run(options.run, options.overrides) if options.run else None
    if trained is not None:
        from dedloc_kit.tasks import Probeable, create_task

        task = create_task(trained)
        if isinstance(task, Probeable):
            from dedloc_kit.evaluation.probe import probe

            for key in sorted(given.keys() - ProbeSettings.model_fields.keys()):
                option = f"--{key.replace('_', '-')}"
                raise UserError(
                    f"{option} is for language models; leave it out, the run's own data tells what its model knows"
                )
            probe(options.checkpoint, _valid(ProbeSettings, given), trained, task, **common)
            return

    from dedloc_kit.evaluation.evaluate import evaluate

    evaluate(options.checkpoint, _valid(Settings, given), trained, **common)


def _valid(kind: type[SectionKind], given: dict[str, Any]) -> SectionKind:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(describe(error, kind)) from None
