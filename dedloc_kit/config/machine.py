"""What one machine decides for itself; it never changes what is learned.

Each option is declared once, as a field of these classes: the command line (`dedloc_kit.cli.generated`), the keyword
arguments of the Python functions (`dedloc_kit.notebook.keywords`) and the worker's job are made of them. The text
behind a field is its help.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from dedloc_kit.config.option import HIDDEN, Option
from dedloc_kit.config.parts import MAX_STAGES
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY, PLAIN_TEXT, STEPS, PositiveInt, Section, Unit, Url
from dedloc_kit.errors import UserError
from dedloc_kit.validation import describe

DEVICES = r"^(auto|cuda|(cpu|mps|cuda:\d{1,2})(,(cpu|mps|cuda:\d{1,2}))*)$"
"""The pattern of what a peer may train on; see `PeerConfig.devices`."""
LAST_PORT = 65535
Port = Annotated[int, Field(ge=0, le=LAST_PORT), Option("PORT", f"a TCP port, from 0 to {LAST_PORT}")]
Devices = Annotated[
    str, Field(pattern=DEVICES), Option("NAMES", "auto, cpu, cuda, mps, or names such as cuda:0,cuda:1")
]
_SHOWN = Option(expects="at most 64 letters, on one line")
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=PLAIN_TEXT), _SHOWN]
Team = Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT), _SHOWN]


def _listed(value: Any) -> Any:
    """Names of a list, or with commas between them, as on a command line."""
    return tuple(value.split(",") if isinstance(value, str) else value) if isinstance(value, str | list) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]


class PeerConfig(Section):
    """The options of every peer."""

    folder: Annotated[Path, Option(metavar="DIR", optional=True)]
    """Keeps this machine's identity; default: one in your home folder."""
    name: Annotated[Name, Option(expects=_SHOWN.expects, no_default=True)] = "anonymous"
    """Shown on the live page; default: that of your Hub account if you are logged in, else anonymous."""
    team: Team = ""
    """Shown beside it; what you give counts for the team too."""
    devices: Devices = "auto"
    """What to train on: auto (all GPUs, else the processor), cpu, or names such as cuda:0,cuda:1."""
    threads: Annotated[int, Field(ge=0), Option(metavar="N")] = 0
    """CPU threads; 0 takes all cores."""
    task_module: Annotated[str | None, Option(metavar="MODULE")] = None
    """A Python module on this machine that has the run's task, if dedloc_kit itself has not."""
    data: Annotated[dict[str, Path], Option(metavar="NAME=PATH")] = Field(default={})
    """Your copy of the run's data, tokenizer or first model, such as corpus=/data/corpus for OWNER/corpus. Nothing else
    of this machine is read, whatever the run names."""
    client_mode: Annotated[
        bool | None,
        Option(no="--reachable", no_help="do not test: others can reach this machine, at --swarm-port and, if need be, "
               "--announce-host"),
    ] = None  # fmt: skip
    """Make outgoing connections only; default: do so if a test finds that others cannot reach this machine."""
    swarm_host: Annotated[str, Option(metavar="ADDRESS")] = "0.0.0.0"
    """The address on which the swarm listens."""
    swarm_port: Port = 0
    """The swarm's TCP port; 0 takes a free one."""
    announce_host: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9._:-]+$"), Option("HOST", "a name or an address")
    ] = None
    """The public address, if this machine has another one."""
    listed: bool = False
    """Publish this machine's address in the invitation, if the organizer does so: others can then join through it while
    the coordinator is down."""
    until_step: Annotated[PositiveInt | None, STEPS, Option(metavar="N")] = None
    """Leave after this global step."""
    export: Annotated[Path | None, HIDDEN] = None
    """A safetensors file that receives the parameters when this peer leaves."""

    @property
    def holds_state(self) -> bool:
        """Whether this peer has the training state."""
        return True

    @property
    def last_push_seconds(self) -> float:
        """How long a last push may hold up this peer when it leaves."""
        return 0.0

    def last_step(self, run: RunConfig) -> int:
        """The global step after which this peer has nothing more to do."""
        return min(run.optimizer.total_steps, self.until_step or run.optimizer.total_steps)


class JoinOptions(PeerConfig):
    """The options of a volunteer."""

    microbatch: Annotated[int, Field(ge=0), Option(metavar="N")] = 0
    """Samples at once; 0: tuned automatically."""
    compile: bool = False
    """Compile the model's layers for this device, if that works and is faster; it takes a minute or more."""
    checks: Annotated[bool, Option(help="never compute again what others have computed to check it")] = True
    """Compute again now and then what others have computed, where the organizer has the work checked."""
    stage: Annotated[int | None, Field(ge=0, lt=MAX_STAGES), Option(metavar="N")] = None
    """Of a run in stages: the one to hold, from 0 on; default: the one that lacks peers most."""
    drive_only: bool = False
    """In a run in stages: hold no stage; send batches through the stages of others. It takes little memory."""
    host_experts: bool = False
    """In a run with experts: hold some of them for all, in up to half of the memory that is free, and train."""
    auxiliary: bool = False
    """Do not train, only average for others: for a machine without a GPU that they can reach."""
    give_state: bool = False
    """With --auxiliary: hold the training state as well, and give it to newcomers: that takes many times the memory."""

    @property
    def holds_state(self) -> bool:
        return self.give_state or not self.auxiliary


class CoordinatorConfig(PeerConfig):
    """The options of a coordinator, but for those of its page."""

    folder: Annotated[Path, Option(metavar="DIR", optional=True)]
    """The run's folder; default: runs/RUN-ID. A folder of an earlier start resumes it."""
    name: Annotated[Name, HIDDEN] = "coordinator"
    team: Annotated[Team, HIDDEN] = ""
    data: Annotated[dict[str, Path], HIDDEN] = Field(default={})
    client_mode: Annotated[bool | None, HIDDEN] = None
    listed: Annotated[bool, HIDDEN] = False
    list_volunteers: bool = False
    """Let the public invitation name where volunteers are who agree to it: through them others can join while this
    machine is down."""
    evaluate_every: Annotated[PositiveInt, STEPS, Option(metavar="STEPS")] = 10
    """Global steps between two evaluations."""
    checkpoint_every: Annotated[PositiveInt, STEPS, Option(metavar="STEPS")] = 1
    """Global steps between two checkpoints."""
    keep_checkpoints: Annotated[PositiveInt, Option(metavar="N")] = 3
    """How many of the newest checkpoints stay, beside the best one and the last of each of the last seven days."""
    resume: Annotated[Path | None, HIDDEN] = None
    """The training state to start from, unless the folder has a newer one; see `checkpoint.find`."""
    hub: Annotated[str | None, Field(pattern=f"^{HUB_REPOSITORY}$"), Option("OWNER/NAME", "OWNER/NAME")] = None
    """Push model and training state to this repository of the Hub."""
    private: bool = False
    """Make that repository a private one."""
    push_every: Annotated[PositiveInt, STEPS, Option(metavar="STEPS")] = 50
    """Global steps between two pushes."""
    serve_every: Annotated[int, Field(ge=0), STEPS, Option(metavar="STEPS")] = 50
    """How often a language model's newest version is handed out to those who serve it; 0: never."""
    stages_memory: Annotated[float | None, Field(ge=0), Unit("GB"), Option(metavar="GB")] = None
    """Of a run in stages: hold so much of their state in memory and the rest in the folder; default: half of what is
    free."""
    suites: Annotated[Names, Option("NAMES", "names, with commas between them")] = ()
    """Score checkpoints by these standard suites of questions, while there is time: belebele, multiblimp, global_mmlu,
    FILE.yaml; needs the extra suites; default: none."""
    suite_language: Annotated[str | None, Option("CODE")] = None
    """The language of these suites: a code of ISO 639, such as uk."""
    suite_samples: Annotated[PositiveInt | None, Option("N")] = None
    """Ask only so many questions of each task; default: all."""
    suite_against: Annotated[str | None, Field(pattern=f"^{HUB_REPOSITORY}$"), Option("OWNER/NAME", "OWNER/NAME")] = (
        None
    )
    """A published model to show beside the run's; it is scored once."""
    regions: Annotated[Path | None, Option(metavar="FILE.mmdb")] = None
    """Show on the live page how many volunteers are in which country, by this GeoIP database of countries."""
    state_bucket_folder: Annotated[Path | None, Option(metavar="FOLDER")] = None
    """The folder of this machine that a web server shows at the run's averaging.state_bucket, if that is https://."""

    @property
    def last_push_seconds(self) -> float:
        return 120.0 if self.hub else 0.0

    def check(self, run: RunConfig) -> None:
        """Raise UserError for what is not made for such a run yet, or lacks something."""
        if (run.averaging.state_bucket or "").startswith("https://") and self.state_bucket_folder is None:
            raise UserError(
                f"averaging.state_bucket is {run.averaging.state_bucket}; say which folder of this machine is shown "
                "there, with state_bucket_folder in coordinator.toml"
            )
        if run.experts is None:
            return
        if run.data.evaluation is None:
            raise UserError("a run with [experts] is measured on held-out data alone; add [data.evaluation]")


class PageOptions(Section):
    """The options of a live page, of a run or of a served model."""

    host: Annotated[str, Option(metavar="ADDRESS")] = "0.0.0.0"
    """The address on which the live page listens."""
    port: Port = 8000
    """The live page's TCP port; 0 takes a free one."""
    url: Annotated[Url | None, Option("URL", "an address such as https://run.example.org")] = None
    """The address under which others find the page, if a proxy stands before it."""
    tls_cert: Annotated[Path | None, Option(metavar="FILE")] = None
    """Serve the page over TLS, without a proxy."""
    tls_key: Annotated[Path | None, Option(metavar="FILE")] = None
    """The key of that certificate."""
    webhook_file: Annotated[Path | None, Option(metavar="FILE")] = None
    """Post alerts to the webhook (of Slack, Discord ...) whose secret address is in that file, or in the environment as
    DEDLOC_WEBHOOK."""


class LaunchOptions(PageOptions):
    """The options of a coordinator that its worker has no use for."""

    most_volunteers: Annotated[PositiveInt | None, Option(metavar="N")] = None
    """Ask newcomers to come later while so many train."""
    resume: Annotated[str | None, Option(metavar="WHERE")] = None
    """Start from this folder, file or OWNER/NAME[@REVISION] of the Hub."""
    stall_minutes: Annotated[PositiveInt, Unit("minutes"), Option(metavar="N")] = 30
    """Alert when no global step was done for so long."""


P = TypeVar("P", bound=Section)


def parsed(kind: type[P], values: dict[str, Any]) -> P:
    """Validate what one machine has decided; raises UserError with the key and the fix."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(describe(error, kind)) from None
