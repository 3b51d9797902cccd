"""Options that several commands have, and kinds of values."""

import argparse
import re
import sys
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from dedloc_kit.records.invitation import Url
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.loading import load_run
from dedloc_kit.run.peer import DEVICES
from dedloc_kit.run.section import HUB_REPOSITORY

LAST_PORT = 65535

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DEVICES_HELP = (
    "what to train on: auto (all GPUs of this machine, else its processor), cpu, or names such as cuda:0,cuda:1"
)
INVITATION = "the coordinator's URL, an invitation file, or the run's repository OWNER/NAME on the Hub"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN.toml")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")


def run_of(options: argparse.Namespace) -> RunConfig:
    """The run that the options of `add_run` name, with the hash of its picture model if it has one."""
    run = load_run(options.run, options.overrides)
    if "pictures" in run.task.options:
        from dedloc_kit.learning.models.picture_model.files import completed

        run = completed(run)
    return run


def add_folder_of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, runs/RUN-ID")


def add_person(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("person", metavar="NAME", help="a name of your choice for them, or their account")


def add_microbatch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--microbatch", type=positive, default=0, metavar="N", help="samples at once; default: tried out"
    )


def add_task_module(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task-module", metavar="MODULE", help="a module of yours with further tasks")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        action="append",
        type=copy,
        default=[],
        metavar="NAME=PATH",
        help="read this file or folder of yours in place of the run's data, tokenizer or start of this name (its last "
        "part); may be given several times. Nothing else of this machine is read",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """One device, and threads."""
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    _add_threads(parser)


def add_devices(parser: argparse.ArgumentParser, help: str = DEVICES_HELP) -> None:
    """What a peer computes on, and threads."""
    parser.add_argument(
        "--devices",
        "--device",
        type=devices,
        default="auto",
        metavar="NAMES",
        help=f"{help}; default: auto",
    )
    _add_threads(parser)


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="CPU threads; default: all cores")


def add_code(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--code-file",
        type=Path,
        metavar="FILE",
        help="holds your personal code, for a run that is not open to all; default: the variable DEDLOC_CODE, else you "
        "are asked for it",
    )


def code_for(options: argparse.Namespace) -> str:
    """The personal code for the run of `options.invitation`, as `--code-file` says; empty if none is needed."""
    from dedloc_kit.access.personal_code import personal_code

    return personal_code(options.invitation, file=options.code_file, ask=sys.stdin.isatty())


def add_reach(parser: argparse.ArgumentParser) -> None:
    """Whether others can connect to this machine, as `client_mode`."""
    reach = parser.add_mutually_exclusive_group()
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


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where the swarm listens."""
    parser.add_argument("--host", default="0.0.0.0", metavar="ADDRESS", help="where the swarm listens")
    parser.add_argument("--swarm-port", type=port, default=0, metavar="PORT", help="default: a free one")
    parser.add_argument("--announce-host", metavar="HOST", help="the public address, if this machine has another one")


def add_peer(parser: argparse.ArgumentParser, folder_help: str) -> None:
    """What every peer has; `peer_settings` reads it."""
    parser.add_argument("--folder", type=Path, metavar="DIR", help=folder_help)
    add_devices(parser)
    add_place(parser)
    add_task_module(parser)
    parser.add_argument("--until-step", type=positive, metavar="N", help="leave after this global step")


def peer_settings(options: argparse.Namespace) -> dict[str, object]:
    """What the options of `add_peer` say, as keys of PeerConfig; the folder is left to the command."""
    return {
        "devices": options.devices,
        "threads": options.threads,
        "host": options.host,
        "port": options.swarm_port,
        "announce_host": options.announce_host,
        "task_module": options.task_module,
        "until_step": options.until_step,
    }


def devices(text: str) -> str:
    if re.fullmatch(DEVICES, text) is None:
        raise argparse.ArgumentTypeError("must be auto, cpu, cuda, mps, or names such as cuda:0,cuda:1")
    return text


def repository(text: str) -> str:
    if re.fullmatch(HUB_REPOSITORY, text) is None:
        raise argparse.ArgumentTypeError("must be OWNER/NAME")
    return text


def url(text: str) -> str:
    try:
        return TypeAdapter(Url).validate_python(text.rstrip("/"))
    except ValidationError:
        raise argparse.ArgumentTypeError("must be an address such as https://run.example.org") from None


def copy(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path) or "/" in name:
        raise argparse.ArgumentTypeError("must be NAME=PATH, with the last part of the run's name of it")
    return name, Path(path).expanduser().absolute()


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be a TCP port, from 0 to {LAST_PORT}")
    return int(text)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
