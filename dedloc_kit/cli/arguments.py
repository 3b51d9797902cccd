"""The command line of `dedloc`: which commands and options there are, and what `--help` says of them."""

import argparse
import re
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dedloc_kit import __version__
from dedloc_kit.evaluation.settings import DATASETS, ProbeSettings, Settings
from dedloc_kit.records import Url
from dedloc_kit.run import HUB_REPOSITORY
from dedloc_kit.steering.codes import MACHINES

_INVITATION = "the coordinator's URL, an invitation file, or the run's repository OWNER/NAME on the Hub"


def parser() -> argparse.ArgumentParser:
    """The whole command line; `command` in its result is the name of the command."""
    parser = argparse.ArgumentParser(prog="dedloc", description="A community trains one model together.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND")

    demo = commands.add_parser("demo", help="a whole collaboration on this machine")
    demo.add_argument("--volunteers", type=_positive, default=3, metavar="N")
    demo.add_argument("--steps", type=_positive, default=20, metavar="N", help="global steps, then everyone leaves")
    demo.add_argument("--recipe", default="albert-demo", metavar="NAME")
    demo.add_argument("--report", type=Path, metavar="FILE.json", help="write what happened to this file")
    demo.add_argument("--no-browser", action="store_true", help="do not open the live page")
    demo.set_defaults(command="demo")

    _new_options(commands.add_parser("new", help="write the folder of a run to be, from a recipe"))

    _check_options(commands.add_parser("check", help="whether a run can work, what it takes, and how long"))

    launch = commands.add_parser("launch", help="start or resume a run as its coordinator")
    launch.add_argument("run", type=Path, metavar="RUN.toml")
    launch.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")
    launch.add_argument("--dashboard-host", default="0.0.0.0", metavar="ADDRESS")
    launch.add_argument("--port", type=int, default=8000, help="of the live page; 0 takes a free one")
    launch.add_argument(
        "--url", type=_url, help="under which others find the live page, where a proxy stands before it"
    )
    launch.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve the live page over TLS, without a proxy")
    launch.add_argument("--tls-key", type=Path, metavar="FILE", help="of that certificate")
    launch.add_argument(
        "--most-volunteers", type=_positive, metavar="N", help="ask newcomers to come later while so many train"
    )
    launch.add_argument(
        "--list-volunteers",
        action="store_true",
        help="let the public invitation name where volunteers are who agree to it: through them others can join while "
        "this machine is down",
    )
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
    launch.add_argument(
        "--stall-minutes",
        type=_positive,
        default=30,
        metavar="N",
        help="alert when no global step was done for so long",
    )
    launch.add_argument(
        "--webhook-file",
        type=Path,
        metavar="FILE",
        help="post alerts to the webhook (of Slack, Discord ...) whose secret address is in this file, or in the "
        "environment as DEDLOC_WEBHOOK",
    )
    launch.add_argument(
        "--regions",
        type=Path,
        metavar="FILE.mmdb",
        help="show on the live page how many volunteers are in which country, by this GeoIP database of countries",
    )
    _machine_options(launch, folder_help="default: runs/RUN-ID; a folder of an earlier start resumes it")
    launch.set_defaults(command="launch")

    for name, about, help_text in (
        ("pause", None, "let all volunteers of a run wait"),
        ("resume", None, "let a run go on that was paused or finished"),
        ("finish", None, "let a run end with the global step that is under way"),
        ("kick", "PEER", "send a volunteer away, by its id or name as the live page shows it"),
        ("readmit", "PEER", "let a volunteer come back that was kicked"),
        ("announce", "TEXT", "show a message to all volunteers and viewers; an empty one removes it"),
    ):
        command = commands.add_parser(name, help=help_text)
        if about is None:
            command.set_defaults(what="")
        else:
            command.add_argument("what", metavar=about)
        command.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, runs/RUN-ID")
        command.set_defaults(command=name)

    login = commands.add_parser("login", help="print the link with which you steer a run from its live page")
    login.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, runs/RUN-ID")
    login.set_defaults(command="login")

    for name, what in (
        ("invite", 'make a personal code that lets somebody into a run with access = "invite"'),
        ("revoke", "withdraw the invitations of a person, or lock an account of the Hub out"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("person", metavar="NAME", help="a name of your choice for them, or their account")
        command.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, runs/RUN-ID")
        if name == "invite":
            command.add_argument("--days", type=_positive, default=30, metavar="N", help="how long it is good for")
            command.add_argument(
                "--machines", type=_positive, default=MACHINES, metavar="N", help="how many may take part at a time"
            )
        command.set_defaults(command=name)

    join = commands.add_parser("join", help="volunteer this machine")
    join.add_argument("invitation", metavar="INVITATION", help=_INVITATION)
    join.add_argument("--name", help="shown on the live page; default: that of your Hub account if you are logged in")
    join.add_argument("--team", default="", help="what you give counts for this team too, on the live page")
    join.add_argument(
        "--microbatch", type=_positive, default=0, metavar="N", help="samples at once; default: tried out"
    )
    join.add_argument(
        "--listed",
        action="store_true",
        help="agree that the public invitation names where this machine is: others can then join through it; only if "
        "the organizer wants that too",
    )
    _code_option(join)
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
    join.set_defaults(command="join")

    notebook = commands.add_parser("notebook", help="write the notebooks in which volunteers join by running one cell")
    notebook.add_argument(
        "invitation", metavar="INVITATION", help="the coordinator's URL, as volunteers reach it, or an invitation file"
    )
    notebook.add_argument("--output", type=Path, metavar="FOLDER", help="default: runs/RUN-ID/notebooks")
    notebook.set_defaults(command="notebook")

    dashboard = commands.add_parser("dashboard", help="a mirror of a run's live page, on this machine")
    dashboard.add_argument("invitation", metavar="INVITATION", help=_INVITATION)
    dashboard.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 lets others see the page")
    dashboard.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    dashboard.add_argument(
        "--folder", type=Path, metavar="DIR", help="keeps its ledger; default: one in your home folder"
    )
    _code_option(dashboard)
    dashboard.set_defaults(command="dashboard")

    status = commands.add_parser("status", help="how a run is doing")
    status.add_argument("invitation", metavar="INVITATION", help=_INVITATION)
    status.set_defaults(command="status")

    doctor = commands.add_parser("doctor", help="what keeps this machine from taking part, and how to fix it")
    doctor.add_argument(
        "where",
        nargs="?",
        metavar="INVITATION|FOLDER",
        help="the invitation to a run; or, on the organizer's machine, the run's folder, runs/RUN-ID",
    )
    doctor.add_argument("--port", type=int, default=8000, help="of the live page; default: %(default)s")
    doctor.add_argument("--swarm-port", type=int, default=0, metavar="PORT", help="that others are to reach")
    doctor.set_defaults(command="doctor")

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
    tokenizer.set_defaults(command="tokenizer")

    corpus = commands.add_parser("corpus", help="write this machine's documentation strings as a dataset")
    corpus.add_argument("folder", type=Path)
    corpus.set_defaults(command="corpus")
    return parser


def _new_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a folder with run.toml, a page for the community and the notebooks. Without --recipe and --dataset it "
        "asks, in a terminal."
    )
    parser.add_argument("name", metavar="NAME", help="of the run and of its folder: lower-case letters, digits, dashes")
    parser.add_argument("--recipe", metavar="NAME", help="what to start from, such as sahajbert")
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        metavar="DATASET[:SUBSET[:SPLIT]][=WEIGHT]",
        help="to train on: OWNER/NAME on the Hub, or a folder; again for each further one",
    )
    parser.add_argument("--evaluation", metavar="DATASET[:SUBSET[:SPLIT]]", help="held-out data to measure on")
    parser.add_argument("--language", metavar="CODE", help="ISO 639, such as bn; default: the recipe's")
    parser.add_argument("--about", metavar="TEXT", help="a sentence or two for volunteers: what is trained, for whom")
    parser.set_defaults(command="new")


def _check_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Open a run's data, put one microbatch through its model on this machine, and predict how long a global step "
        "and the whole run take with these volunteers."
    )
    parser.add_argument("run", type=Path, metavar="RUN.toml")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")
    parser.add_argument(
        "--volunteers",
        default="20xT4@50mbit,5xCPU",
        metavar="MIX",
        help="COUNTxDEVICE@LINE and so on, with /open behind those whom others can reach; CPU is a machine like this "
        "one; default: %(default)s",
    )
    parser.add_argument("--line", default="100mbit", metavar="RATE", help="the coordinator's; default: %(default)s")
    parser.add_argument("--offline", action="store_true", help="leave alone what is on the Hub")
    parser.add_argument(
        "--microbatch", type=_positive, default=0, metavar="N", help="samples at once; default: tried out"
    )
    parser.add_argument("--task-module", metavar="MODULE", help="a module of yours with further tasks")
    _device_options(parser)
    parser.set_defaults(command="check")


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
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
        "--seeds", type=_positive, metavar="N", help=f"fine-tunings, or classifiers; default: {defaults.seeds}"
    )
    parser.add_argument("--epochs", type=_positive, metavar="N", help=f"default: {_defaults('epochs')}")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help=f"default: {_defaults('learning_rate')}")
    parser.add_argument("--batch", type=_positive, metavar="N", help=f"default: {_defaults('batch')}")
    parser.add_argument("--max-length", type=_positive, metavar="TOKENS", help=f"default: {defaults.max_length}")
    parser.add_argument("--train-samples", type=_positive, metavar="N", help="train on so many; default: on all")
    parser.add_argument(
        "--baseline", action="store_true", help="the same from random weights, of pictures also from bare pixels"
    )
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="write the result to this file")
    _device_options(parser)
    parser.set_defaults(command="evaluate")


def _defaults(key: str) -> str:
    """Of an option that both kinds of evaluations have."""
    return f"{getattr(Settings(), key):g}, of pictures {getattr(ProbeSettings(), key):g}"


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=_positive, default=0, metavar="N", help="CPU threads; default: all cores")


def _code_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--code-file",
        type=Path,
        metavar="FILE",
        help="holds your personal code, for a run that is not open to all; default: the variable DEDLOC_CODE, else you "
        "are asked for it",
    )


def _machine_options(parser: argparse.ArgumentParser, folder_help: str) -> None:
    parser.add_argument("--folder", type=Path, metavar="DIR", help=folder_help)
    _device_options(parser)
    parser.add_argument("--host", default="0.0.0.0", metavar="ADDRESS", help="where the swarm listens")
    parser.add_argument("--swarm-port", type=int, default=0, metavar="PORT", help="default: a free one")
    parser.add_argument("--announce-host", metavar="HOST", help="the public address, if this machine has another one")
    parser.add_argument("--task-module", metavar="MODULE", help="a module of yours with further tasks")
    parser.add_argument("--until-step", type=_positive, metavar="N", help="leave after this global step")


def _url(text: str) -> str:
    try:
        return TypeAdapter(Url).validate_python(text.rstrip("/"))
    except ValidationError:
        raise argparse.ArgumentTypeError("must be an address such as https://run.example.org") from None


def _repository(text: str) -> str:
    if re.fullmatch(HUB_REPOSITORY, text) is None:
        raise argparse.ArgumentTypeError("must be OWNER/NAME")
    return text


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
