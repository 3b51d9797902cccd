"""The `dedloc` command: demo, launch, join, status, evaluate, tokenizer, corpus."""

import argparse
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from dedloc_kit import __version__
from dedloc_kit.errors import UserError
from dedloc_kit.evaluation.settings import DATASETS, Settings
from dedloc_kit.records import Invitation
from dedloc_kit.run import HUB_REPOSITORY, PeerConfig, load_run
from dedloc_kit.validation import describe


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 a bug, 2 something that the person at the keyboard can put right."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(options.command(options) or 0)
    except UserError as error:
        sys.stderr.write(f"dedloc: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Being asked to end is the same as Ctrl-C: leave cleanly."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dedloc", description="A community trains one model together.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="a whole collaboration on this machine")
    demo.add_argument("--volunteers", type=_positive, default=3, metavar="N")
    demo.add_argument("--steps", type=_positive, default=20, metavar="N", help="global steps, then everyone leaves")
    demo.add_argument("--recipe", default="albert-demo", metavar="NAME")
    demo.add_argument("--report", type=Path, metavar="FILE.json", help="write what happened to this file")
    demo.add_argument("--no-browser", action="store_true", help="do not open the dashboard")
    demo.set_defaults(command=_demo)

    launch = commands.add_parser("launch", help="start or resume a run as its coordinator")
    launch.add_argument("run", type=Path, metavar="RUN.toml")
    launch.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")
    launch.add_argument("--dashboard-host", default="0.0.0.0", metavar="ADDRESS")
    launch.add_argument("--port", type=int, default=8000, help="of the dashboard; 0 takes a free one")
    launch.add_argument("--evaluate-every", type=_positive, default=10, metavar="STEPS")
    launch.add_argument("--checkpoint-every", type=_positive, default=1, metavar="STEPS")
    launch.add_argument(
        "--keep-checkpoints", type=_positive, default=3, metavar="N", help="the newest ones; the best one always stays"
    )
    launch.add_argument(
        "--resume", metavar="WHERE", help="start from this folder, file or OWNER/NAME[@REVISION] of the Hub"
    )
    launch.add_argument("--hub", type=_repository, metavar="OWNER/NAME", help="push model and training state there")
    launch.add_argument("--private", action="store_true", help="make that repository a private one")
    launch.add_argument("--push-every", type=_positive, default=50, metavar="STEPS")
    _machine_options(launch, folder_help="default: runs/RUN-ID; a folder of an earlier start resumes it")
    launch.set_defaults(command=_launch)

    join = commands.add_parser("join", help="volunteer this machine")
    join.add_argument("invitation", metavar="INVITATION", help="the coordinator's URL or an invitation file")
    join.add_argument("--name", default="anonymous", help="shown on the dashboard")
    join.add_argument(
        "--microbatch", type=_positive, default=0, metavar="N", help="samples at once; default: tried out"
    )
    reach = join.add_mutually_exclusive_group()
    reach.add_argument(
        "--client-mode",
        action="store_const",
        const=True,
        help="make outgoing connections only; default: do so if a test finds that others cannot reach this machine",
    )
    reach.add_argument(
        "--reachable",
        action="store_const",
        const=False,
        dest="client_mode",
        help="do not test: others can reach this machine, at --swarm-port and, if need be, --announce-host",
    )
    _machine_options(join, folder_help="keeps your identity; default: one in your home folder")
    join.set_defaults(command=_join)

    status = commands.add_parser("status", help="how a run is doing")
    status.add_argument("invitation", metavar="INVITATION", help="the coordinator's URL or an invitation file")
    status.set_defaults(command=_status)

    _evaluate_options(commands.add_parser("evaluate", help="fine-tune a trained model and score it"))

    tokenizer = commands.add_parser("tokenizer", help="train the tokenizer that a run names")
    tokenizer.add_argument("run", type=Path, metavar="RUN.toml")
    tokenizer.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")
    tokenizer.add_argument("--characters", type=_positive, metavar="N", help="of text to train on; default: 50 million")
    tokenizer.add_argument(
        "--push", metavar="OWNER/NAME", help="upload it to the Hub; one that is there is not trained"
    )
    tokenizer.add_argument(
        "--shards",
        action="store_true",
        help="also write the training data as token ids, to the folder 'tokens' beside RUN.toml: volunteers then need "
        "not tokenize; with --push they become a dataset of the same name",
    )
    tokenizer.add_argument("--private", action="store_true", help="with --push: make private repositories")
    tokenizer.set_defaults(command=_tokenizer)

    corpus = commands.add_parser("corpus", help="write this machine's documentation strings as a dataset")
    corpus.add_argument("folder", type=Path)
    corpus.set_defaults(command=_corpus)
    return parser


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
    defaults = Settings()
    parser.description = (
        "Fine-tune a trained model on a labelled dataset with several seeds; tell the scores on the test split, their "
        "mean and their spread (the standard deviation)."
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a model's folder, OWNER/NAME on the Hub, or *.safetensors"
    )
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="the run that a *.safetensors file is of")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="with --run: as it was launched")
    parser.add_argument(
        "--task",
        choices=list(DATASETS),
        default=defaults.task,
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
    parser.add_argument("--seeds", type=_positive, metavar="N", help=f"fine-tunings; default: {defaults.seeds}")
    parser.add_argument("--epochs", type=_positive, metavar="N", help=f"default: {defaults.epochs}")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help=f"default: {defaults.learning_rate:g}")
    parser.add_argument("--batch", type=_positive, metavar="N", help=f"default: {defaults.batch}")
    parser.add_argument("--max-length", type=_positive, metavar="TOKENS", help=f"default: {defaults.max_length}")
    parser.add_argument("--train-samples", type=_positive, metavar="N", help="train on so many; default: on all")
    parser.add_argument("--baseline", action="store_true", help="also start from random weights, and tell the margin")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="write the result to this file")
    _device_options(parser)
    parser.set_defaults(command=_evaluate)


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=_positive, default=0, metavar="N", help="CPU threads; default: all cores")


def _machine_options(parser: argparse.ArgumentParser, folder_help: str) -> None:
    parser.add_argument("--folder", type=Path, metavar="DIR", help=folder_help)
    _device_options(parser)
    parser.add_argument("--host", default="0.0.0.0", metavar="ADDRESS", help="where the swarm listens")
    parser.add_argument("--swarm-port", type=int, default=0, metavar="PORT", help="default: a free one")
    parser.add_argument("--announce-host", metavar="HOST", help="the public address, if this machine has another one")
    parser.add_argument("--task-module", metavar="MODULE", help="a module of yours with further tasks")
    parser.add_argument("--until-step", type=_positive, metavar="N", help="leave after this global step")


def _peer(options: argparse.Namespace, folder: Path, **values: object) -> PeerConfig:
    return PeerConfig.model_validate(
        {
            "folder": folder.resolve(),
            "device": options.device,
            "threads": options.threads,
            "host": options.host,
            "port": options.swarm_port,
            "announce_host": options.announce_host,
            "task_module": options.task_module,
            "until_step": options.until_step,
            **values,
        }
    )


def _demo(options: argparse.Namespace) -> None:
    from dedloc_kit.demo import demo

    demo(
        recipe_name=options.recipe,
        volunteers=options.volunteers,
        steps=options.steps,
        report=options.report,
        browser=not options.no_browser,
    )


def _launch(options: argparse.Namespace) -> int:
    from dedloc_kit.launch import launch

    run = load_run(options.run, options.overrides)
    peer = _peer(
        options,
        options.folder or Path("runs") / run.run_id,
        name="coordinator",
        evaluate_every=options.evaluate_every,
        checkpoint_every=options.checkpoint_every,
        keep_checkpoints=options.keep_checkpoints,
        hub=options.hub,
        private=options.private,
        push_every=options.push_every,
    )
    return launch(run, peer, host=options.dashboard_host, port=options.port, resume=options.resume)


def _join(options: argparse.Namespace) -> int:
    from dedloc_kit.events import AnyEvent, Failed, Left
    from dedloc_kit.home import peer_folder
    from dedloc_kit.terminal import RunDisplay
    from dedloc_kit.worker import Worker, volunteer_job

    ended = threading.Event()
    with peer_folder(options.folder) as folder:
        invitation = _invitation(options.invitation, folder)
        with RunDisplay(invitation.run_config().global_batch) as display:
            peer = _peer(
                options, folder, name=options.name, microbatch=options.microbatch, client_mode=options.client_mode
            )

            def on_event(event: AnyEvent) -> None:
                display.show(event)
                if isinstance(event, Failed | Left):
                    ended.set()

            worker = Worker("volunteer", volunteer_job(invitation, peer), folder=folder, on_event=on_event)
            try:
                ended.wait()
            except KeyboardInterrupt:
                display.line("leaving; thank you")
            code = worker.stop()
    if worker.failure:
        sys.stderr.write(f"dedloc: {worker.failure}\n")
    return code


def _invitation(where: str, folder: Path) -> Invitation:
    """The invitation from there; while its coordinator is down, the one that was fetched the last time."""
    from dedloc_kit.client import NoAnswer, fetch_invitation, keep_invitation, kept_invitation

    try:
        invitation = fetch_invitation(where)
    except NoAnswer:
        kept = kept_invitation(folder, where)
        if kept is None:
            raise
        Console(highlight=False).print(f"no coordinator answers at {where}; trying the peers known from the last time")
        return kept
    keep_invitation(folder, where, invitation)
    return invitation


def _status(options: argparse.Namespace) -> None:
    from dedloc_kit.client import fetch_state

    state = fetch_state(options.invitation)
    console = Console(highlight=False, markup=False)
    console.print(f"{state['run_id']}: {state['status']}, step {state['step']} of {state['total_steps']}")
    console.print(f"{state['samples_total']} samples in all, training loss {_number(state['loss'])}")
    table = Table("volunteer", "samples", "steps")
    for contributor in state["contributors"]:
        table.add_row(str(contributor["name"]), str(contributor["samples"]), str(contributor["steps"]))
    console.print(table)


def _evaluate(options: argparse.Namespace) -> None:
    given = {key: value for key, value in vars(options).items() if key in Settings.model_fields and value is not None}
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        raise UserError(describe(error, Settings)) from None

    from dedloc_kit.evaluation.evaluate import evaluate

    evaluate(
        options.checkpoint,
        settings,
        run=load_run(options.run, options.overrides) if options.run else None,
        baseline=options.baseline,
        device=options.device,
        threads=options.threads,
        report=options.json,
    )


def _tokenizer(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.prepare import prepare_tokenizer, push_tokenizer, tokenizer_folder

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    if options.push:
        check_login(options.push)  # before the minutes that training takes
    if not ((options.push or options.shards) and tokenizer_folder(run).exists()):
        prepare_tokenizer(run, options.characters)
    console.print(f"the tokenizer is in {tokenizer_folder(run)}", soft_wrap=True)
    if options.push:
        pushed = push_tokenizer(tokenizer_folder(run), options.push, options.private)
        console.print(f'it is on the Hub; in {options.run}, for every peer:  tokenizer = "{pushed}"', soft_wrap=True)
    if options.shards:
        from dedloc_kit.pretokenize import prepare_shards, push_shards, sources_toml

        folder = options.run.resolve().parent / "tokens"
        if not (options.push and folder.exists()):
            prepare_shards(run, folder)
        console.print(f"the token ids are in {folder}", soft_wrap=True)
        revision = push_shards(folder, options.push, options.private) if options.push else None
        dataset = options.push or "tokens"
        console.print(f"in {options.run}, in place of data.train:\n\n{sources_toml(run, dataset, revision)}")


def _corpus(options: argparse.Namespace) -> None:
    from dedloc_kit.data.docstrings import write_corpus

    Console(highlight=False).print(f"the corpus is in {write_corpus(options.folder)}")


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"


def _repository(text: str) -> str:
    if re.fullmatch(HUB_REPOSITORY, text) is None:
        raise argparse.ArgumentTypeError("must be OWNER/NAME")
    return text


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
