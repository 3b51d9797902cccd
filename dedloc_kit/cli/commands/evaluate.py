"""`dedloc evaluate`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.options import add_device, positive, run_of
from dedloc_kit.config.section import Section
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.report import Report
from dedloc_kit.learning.evaluate.settings import (
    DATASETS,
    LikelihoodSettings,
    ProbeSettings,
    Settings,
    SuiteSettings,
)
from dedloc_kit.validation import describe

if TYPE_CHECKING:
    from dedloc_kit.learning.evaluate.session import Session

SectionKind = TypeVar("SectionKind", bound=Section)


def add(parser: argparse.ArgumentParser) -> None:
    defaults, likelihood = Settings(), LikelihoodSettings()
    parser.description = (
        "Score a trained language model, also beside published ones, in one table: fine-tuned on a labelled dataset "
        "with several seeds, by the bits per byte of held-out text (of masked models: of hidden words), or by how "
        "often the right one of two sentences is the likelier one; the mean and the spread (the standard deviation "
        "over the seeds, or over ten parts of the samples). Of a run on pictures: tell the classes of its "
        "held-out pictures by nearest neighbours and by linear classifiers, which learn from its training pictures. "
        "With --suite: by standard suites of questions, as lm-evaluation-harness scores them."
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a model's folder, OWNER/NAME on the Hub, or *.safetensors; with --suite also a run's folder",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        action="extend",
        metavar="MODEL",
        help="score these in the same way beside it",
    )
    parser.add_argument(
        "--suite",
        action="append",
        metavar="NAME",
        help="score it by this suite: belebele, multiblimp, global_mmlu, or a task of your own, FILE.yaml; may be "
        "given several times; needs lm-evaluation-harness, pip install 'dedloc_kit[suites]'",
    )
    parser.add_argument("--language", metavar="CODE", help="of the suites, by ISO 639: uk, ukr or ukr_Cyrl")
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="the run that a *.safetensors file is of")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="with --run: as it was launched")
    parser.add_argument(
        "--task",
        choices=["ner", "classification", "text", "pairs"],
        help="named entities, scored by F1; the class of a text, by accuracy; held-out text, by bits per byte; which "
        "of two sentences is right; default: text with --against, else ner",
    )
    parser.add_argument(
        "--dataset",
        metavar="WHERE",
        help="on the Hub or a folder; default: the held-out text of --run for text, "
        + ", ".join(f"{where.dataset} for {task}" for task, where in DATASETS.items()),
    )
    parser.add_argument("--subset", metavar="NAME", help="of the dataset: bn in WikiANN, hin in MultiBLiMP")
    parser.add_argument("--column", metavar="NAME", help="of the words, the text or the right sentence")
    parser.add_argument("--label-column", metavar="NAME", help="of the tags, the classes or the wrong sentence")
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="documents, pairs or questions; default: 200, 1,000, all"
    )
    parser.add_argument(
        "--words", type=positive, metavar="N", help=f"of the text, for masked models; default: {likelihood.words:,}"
    )
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help=f"fine-tunings, or classifiers; default: {defaults.seeds}"
    )
    parser.add_argument("--epochs", type=positive, metavar="N", help=f"default: {_defaults('epochs')}")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help=f"default: {_defaults('learning_rate')}")
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help=f"default: {_defaults('batch')}, of suites {SuiteSettings(suite=('',)).batch}",
    )
    parser.add_argument(
        "--max-length",
        type=positive,
        metavar="TOKENS",
        help=f"default: {defaults.max_length}, of text {likelihood.max_length}",
    )
    parser.add_argument("--train-samples", type=positive, metavar="N", help="train on so many; default: on all")
    parser.add_argument(
        "--baseline", action="store_true", help="the same from random weights, of pictures also from bare pixels"
    )
    add_json(parser, Report)
    add_device(parser)


def _defaults(key: str) -> str:
    """Of an option that both kinds of evaluations have."""
    return f"{getattr(Settings(), key):g}, of pictures {getattr(ProbeSettings(), key):g}"


def run(options: argparse.Namespace) -> None:
    kinds: list[type[Section]] = [Settings, LikelihoodSettings, ProbeSettings, SuiteSettings]
    known = {key for kind in kinds for key in kind.model_fields}
    given = {key: value for key, value in vars(options).items() if key in known and value is not None}
    trained = run_of(options) if options.run else None
    if options.suite is not None:
        from dedloc_kit.export.suites import evaluate_suites

        if options.baseline:
            given["baseline"] = True
        asking = _valid(SuiteSettings, {**given, "suite": tuple(options.suite)}, "is not for --suite; leave it out")
        evaluate_suites([options.checkpoint, *options.against], asking, _session(options), trained)
        return
    if options.language is not None:
        raise UserError("--language is for --suite; name a suite as well, such as --suite belebele")
    if trained is not None:
        from dedloc_kit.learning.task import create_task

        task = create_task(trained)
        if not task.unsupported("probe"):
            from dedloc_kit.learning.evaluate import probe

            if options.against:
                given["against"] = options.against
            reason = "is for language models; leave it out, the run's own data tells what its model knows"
            settings = _valid(ProbeSettings, given, reason)
            probe.evaluate(options.checkpoint, settings, _session(options), trained, task, options.baseline)
            return

    if options.task in ("text", "pairs") or (options.task is None and options.against):
        from dedloc_kit.learning.evaluate import likelihood

        if options.baseline:
            given["baseline"] = True
        fitting = _valid(LikelihoodSettings, given, "is for fine-tuning; leave it out, or choose another --task")
        likelihood.evaluate(options.checkpoint, fitting, _session(options), trained, options.against)
        return

    from dedloc_kit.learning.evaluate import finetune

    tuning = _valid(Settings, given, "is for --task text or pairs; leave it out, or choose one of these")
    finetune.evaluate(options.checkpoint, tuning, _session(options), trained, options.against, options.baseline)


def _session(options: argparse.Namespace) -> "Session":
    from dedloc_kit.learning.evaluate.session import Session

    return Session(options.device, options.threads, options.json)


def _valid(kind: type[SectionKind], given: dict[str, Any], otherwise: str) -> SectionKind:
    """The settings; an option that they do not have is refused with the reason."""
    for key in sorted(given.keys() - kind.model_fields.keys()):
        raise UserError(f"--{key.replace('_', '-')} {otherwise}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(describe(error, kind)) from None
