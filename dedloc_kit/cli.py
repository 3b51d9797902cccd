"""The `dedloc` command: demo, launch, join, status, tokenizer, corpus."""

import argparse
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from dedloc_kit import __version__
from dedloc_kit.errors import UserError
from dedloc_kit.records import Invitation
from dedloc_kit.run import HUB_REPOSITORY, PeerConfig, load_run


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
    join.add_argument("--microbatch", type=_positive, default=0, metavar="N", help="samples at once")
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

    tokenizer = commands.add_parser("tokenizer", help="train the tokenizer that a run names")
    tokenizer.add_argument("run", type=Path, metavar="RUN.toml")
    tokenizer.set_defaults(command=_tokenizer)

    corpus = commands.add_parser("corpus", help="write this machine's documentation strings as a dataset")
    corpus.add_argument("folder", type=Path)
    corpus.set_defaults(command=_corpus)
    return parser


def _machine_options(parser: argparse.ArgumentParser, folder_help: str) -> None:
    parser.add_argument("--folder", type=Path, metavar="DIR", help=folder_help)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=_positive, default=0, metavar="N", help="CPU threads; default: all cores")
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


def _tokenizer(options: argparse.Namespace) -> None:
    from dedloc_kit.prepare import prepare_tokenizer

    folder = prepare_tokenizer(load_run(options.run))
    Console(highlight=False).print(f"the tokenizer is in {folder}")


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
