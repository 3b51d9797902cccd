"""What one machine decides for itself."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, Field, ValidationError

from dedloc_kit.errors import UserError
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.parts import MAX_STAGES
from dedloc_kit.run.section import HUB_REPOSITORY, PLAIN_TEXT, PositiveInt, Section
from dedloc_kit.validation import describe

DEVICES = r"^(auto|cuda|(cpu|mps|cuda:\d{1,2})(,(cpu|mps|cuda:\d{1,2}))*)$"
"""The pattern of what a peer may train on; see `PeerConfig.devices`."""


class PeerConfig(Section):
    """What one machine decides for itself; it never changes what is learned."""

    folder: Path
    """Where this peer keeps its identity, its logs and, for a coordinator, checkpoints and the ledger."""
    name: str = Field(default="anonymous", min_length=1, max_length=64, pattern=PLAIN_TEXT)
    """The name shown on the dashboard."""
    team: str = Field(default="", max_length=64, pattern=PLAIN_TEXT)
    """The team that this volunteer gives for, shown on the dashboard; none by default."""
    devices: str = Field(default="auto", pattern=DEVICES, validation_alias=AliasChoices("devices", "device"))
    """What to train on: `auto` (all CUDA GPUs, else Apple's GPU, else the CPU), `cuda` (all CUDA GPUs), or names such
    as `cuda:0,cuda:1`. The name of before there were several, `device`, is taken too."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of torch; 0 takes what the machine has."""
    microbatch: Annotated[int, Field(ge=0)] = 0
    """Samples that go through the model at once; 0 tries what suits the device."""
    compile: bool = False
    """Whether to compile the model's layers for the device, which is tried first."""
    task_module: str | None = None
    """A Python module on this machine with a `TASKS` dictionary of further tasks; never taken from the network."""
    data: dict[str, Path] = Field(default={})
    """Copies that this machine has of the run's data, tokenizer or start, by the last part of their names. Nothing else
    of this machine is read, whatever the run names."""
    stage: Annotated[int, Field(ge=0, lt=MAX_STAGES)] | None = None
    """Of a run in stages: the one to hold, from 0 on; without a value the one that lacks peers most."""
    drive_only: bool = False
    """In a run in stages: to hold none, and only send batches of its own data through those of others."""
    hosts_experts: bool = False
    """In a run with experts: to hold some of them for all, beside training."""
    lends: bool = False
    """To lend a line: to average for others and to give them averages, and train nothing."""
    gives_state: bool = False
    """Of who lends a line: to hold the training state as well, and give it to newcomers."""
    client_mode: bool | None = None
    """Only outgoing connections, for machines that nobody can reach; without a value a test decides."""
    host: str = "0.0.0.0"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The swarm's TCP port; 0 takes a free one."""
    announce_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$")] | None = None
    """The address or name under which others reach this machine, if it differs from what it sees itself."""
    listed: bool = False
    """Whether this peer's addresses may stand in the public invitation. Coordinator: whether those of volunteers who
    agree do."""
    checks: bool = True
    """Where the run has its work checked: whether this machine computes now and then what others have computed. It
    accounts for its own work in any case."""
    until_step: PositiveInt | None = None
    """Leave as soon as this global step is done."""
    export: Path | None = None
    """A safetensors file that receives the parameters when this peer leaves."""

    @property
    def last_push_seconds(self) -> float:
        """How long a last push may hold up this peer when it leaves."""
        return 0.0

    def last_step(self, run: RunConfig) -> int:
        """The global step after which this peer has nothing more to do."""
        return min(run.optimizer.total_steps, self.until_step or run.optimizer.total_steps)


class CoordinatorConfig(PeerConfig):
    """What the organizer's machine decides besides."""

    evaluate_every: PositiveInt = 10
    """Global steps between two evaluations."""
    checkpoint_every: PositiveInt = 1
    """Global steps between two checkpoints."""
    keep_checkpoints: PositiveInt = 3
    """How many of the newest checkpoints stay; the best one always does."""
    resume: Path | None = None
    """The training state to start from, unless the folder has a newer one; see `checkpoint.find`."""
    hub: Annotated[str, Field(pattern=f"^{HUB_REPOSITORY}$")] | None = None
    """The Hub repository `OWNER/NAME` that the model and the training state are pushed to."""
    private: bool = False
    """Whether that repository is to be made private."""
    push_every: PositiveInt = 50
    """Global steps between two pushes."""
    serve_every: Annotated[int, Field(ge=0)] = 50
    """Global steps between two versions of the model that are handed out to servers; 0 for none."""
    stages_memory: Annotated[float, Field(ge=0)] | None = None
    """With a pipeline: how many GB of the stages' states are held in memory, the rest in the folder; half of what is
    free at the start if not said."""
    regions: Path | None = None
    """A database of countries; with it the live page shows how many volunteers there are in which."""
    downloads_folder: Path | None = None
    """The folder of this machine that a web server shows as the run's `averaging.downloads`."""

    @property
    def last_push_seconds(self) -> float:
        return 120.0 if self.hub else 0.0

    def check(self, run: RunConfig) -> None:
        """Raise UserError for what is not made for such a run yet, or lacks something."""
        if (run.averaging.downloads or "").startswith("https://") and self.downloads_folder is None:
            raise UserError(
                f"averaging.downloads is {run.averaging.downloads}; say which folder of this machine is shown there, "
                "with --downloads-folder FOLDER"
            )
        if run.experts is None:
            return
        if run.data.evaluation is None:
            raise UserError("a run with [experts] is measured on held-out data alone; add [data.evaluation]")


P = TypeVar("P", bound=PeerConfig)


def parse_peer(values: dict[str, Any]) -> PeerConfig:
    """Validate what one machine has decided; raises UserError with the key and the fix."""
    return _parsed(PeerConfig, values)


def parse_coordinator(values: dict[str, Any]) -> CoordinatorConfig:
    """The same for the organizer's machine."""
    return _parsed(CoordinatorConfig, values)


def _parsed(kind: type[P], values: dict[str, Any]) -> P:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(describe(error, kind)) from None
