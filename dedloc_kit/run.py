"""The two configurations: what all peers of a run share, and what one machine decides for itself."""

import hashlib
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from dedloc_kit.errors import UserError
from dedloc_kit.validation import describe

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e38)]
"""What a tensor in single precision can be multiplied by."""
Decay = Annotated[float, Field(ge=0, lt=1)]
PLAIN_TEXT = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""The pattern of a text without control characters, in what regular expressions have in common: others read it too."""
DEVICES = r"^(auto|cuda|(cpu|mps|cuda:\d{1,2})(,(cpu|mps|cuda:\d{1,2}))*)$"
"""The pattern of what a peer may train on; see `PeerConfig.devices`."""
HUB_REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
"""The pattern of a repository's name on the Hub, `OWNER/NAME`."""
DOWNLOADS = rf"{HUB_REPOSITORY}|https://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~%/-]*)?"
"""The pattern of a bucket's name on the Hub or of a folder's address."""
NAMES_OF_FILES = ("tokenizer", "start")
"""Keys of `task` that name a folder or what is on the Hub; so does the key `model` of its table `pictures`."""
IMAGES = "images"
"""The section of a run's file that only `dedloc images` reads: how codes of pictures come to be. It is no part of the
run: volunteers have the codes."""

HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}$")]
"""Of an account or an organization on the Hub."""

MAX_BATCHES = 64
"""Global batches that one peer may have gathered: what rounds fail to average piles up, but not for ever. A record
that claims more is not believed, and a volunteer waits before it comes to that."""
SEQUENCE_LENGTH = 512
"""Tokens of a text task's samples, if `task.sequence_length` does not say otherwise."""


LATER = "later"
"""Marks a key that came when there were runs already: while it has its default it is left out of what is written, so
that those runs keep their fingerprint."""


class Section(BaseModel):
    """A part of a configuration: immutable, unknown keys rejected, no silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        for name, field in type(self).model_fields.items():
            if LATER in field.metadata and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def canonical(self) -> str:
        """The configuration as JSON with sorted keys and every default written out, but for keys that came `LATER`."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class Source(Section):
    """One stream of documents or pictures."""

    dataset: str = Field(min_length=1)
    """A dataset on the Hub (`owner/name`) or a local folder or file of Parquet, JSON lines or text."""
    subset: str | None = None
    """The Hub dataset's configuration, such as `20231101.bn`."""
    revision: str | None = None
    """A commit of the Hub dataset, so that every volunteer reads the same data."""
    split: str = "train"
    column: str = "text"
    """The column that holds the text (or the picture)."""
    tokenized: bool = False
    """The dataset holds token ids instead of text, as `dedloc tokenizer RUN.toml --shards` writes them."""
    weight: PositiveFloat = 1.0
    """The share of this source in the mixture, relative to the other weights."""


class DataConfig(Section):
    train: tuple[Source, ...] = Field(min_length=1)
    evaluation: Source | None = None
    """Held-out data for the coordinator's evaluation loss."""
    decay: Annotated[tuple[Source, ...], LATER] = ()
    """With the schedule `warmup-stable-decay`: what is read in place of `train` while the rate falls."""
    shuffle_buffer: PositiveInt = 10_000
    """Documents from which the next one is drawn at random; more shuffles better and takes more memory."""


class TaskConfig(Section):
    """What is learned. The keys beside `name` belong to the task, which checks them itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A module of `dedloc_kit.tasks`, such as `albert`."""

    @property
    def options(self) -> dict[str, Any]:
        """The task's own keys, as written in the file."""
        return dict(self.model_extra or {})


class OptimizerConfig(Section):
    """The optimizer and its schedule; the defaults are DeDLOC's for ALBERT (section 4.2)."""

    name: Literal["lamb", "lars", "adamw", "muon"] = "lamb"
    """`lamb` (You et al. 2020), `lars` with momentum (You et al. 2017), as DeDLOC trains SwAV with, or `adamw`
    (Loshchilov and Hutter 2019). With `local-steps` also `muon` (Jordan et al. 2024), which takes matrices and leaves
    words and all else to AdamW, at the rate and weight decay that suit AdamW."""
    learning_rate: PositiveFloat = 1.76e-3
    start_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Where the linear warm-up begins."""
    end_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """What the rate falls to after the warm-up."""
    schedule: Literal["linear", "cosine", "warmup-stable-decay"] = "linear"
    """How it falls. `warmup-stable-decay`: not before the organizer says so (`dedloc decay`), and the run ends with
    that."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5_000
    total_steps: PositiveInt = 125_000
    """Global steps after which the run is finished; with `warmup-stable-decay` at the latest."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """With `lamb`, `adamw` and `muon`."""
    epsilon: PositiveFloat = 1e-6
    """With `lamb`, `adamw` and `muon`."""
    max_weight_norm: PositiveFloat = 10_000.0
    """With `lamb`: upper bound on the norm of a layer's weights in the trust ratio."""
    momentum: Decay = 0.9
    """With `lars` and `muon`."""
    trust_coefficient: PositiveFloat = 0.001
    """With `lars`: the step of a layer at the rate 1, relative to the norm of its weights."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Which parameters do not decay (biases, say) is the task's choice."""
    max_gradient_norm: PositiveFloat = 1.0
    """The averaged gradient is scaled down to at most this norm."""
    state: Annotated[Literal["float32", "8bit"], LATER] = "float32"
    """With `lamb`: how each peer keeps what the optimizer remembers. `8bit` takes a quarter of the memory, and half as
    much has to be downloaded by who joins; a step of the optimizer takes two to four times as long, on every peer."""


class AveragingConfig(Section):
    mode: Literal["global-batch", "local-steps"] = "global-batch"
    """What is averaged. `global-batch`: gradients; the result is that of one machine with the global batch.
    `local-steps`: every peer takes steps of its own (`local_batch` samples each) with the optimizer below, and once
    the swarm has gone through a global batch the peers average what they have learned and take an outer step
    (DiLoCo, Douillard et al. 2023): for slow lines, with a global batch that is many times larger."""
    overlap: bool = True
    """Average while the next batch accumulates (gradients are then up to one global step old). With `local-steps` each
    peer's own steps go on meanwhile, and from the average on when it comes.
    With `false` every peer waits for the average: exact large-batch training."""
    overfull: Annotated[bool, LATER] = False
    """What is computed after the batch is full, until its round begins, belongs to the next one, and where rounds take
    longer than a batch the devices wait (a larger `global_batch` would use them). With `true` it all counts at once:
    nobody waits for that, and a batch may hold several times as many samples as it says."""
    compression: Literal["none", "float16", "8bit", "4bit", "sparse"] = "4bit"
    """How gradients travel. What rounding loses is added to the next gradient (error feedback). On Bengali text 4
    bits did no worse than 8: after 400 overlapped steps at a rate of 0.005 both were 0.6 to 0.7 % above one plain large
    batch, and so was overlap alone; at twice the rate both were about 5 % above (`benchmarks/convergence.py`, two
    seeds). Few runs: measure your own. `sparse` is for `local-steps`: of each 4,096 values the largest 64 alone, the
    others later (SparseLoCo, Sarfi et al. 2025), so that 0.03 bytes for each parameter go up; averages travel in 4
    bits. What is still to be sent stands in for the outer momentum, which is then 0 and `outer_learning_rate` 1, unless
    they are said. What it costs in loss has not been measured here yet."""
    local_batch: PositiveInt = 64
    """With `local-steps`: samples of each peer's own steps."""
    outer_learning_rate: PositiveFloat = 0.7
    """With `local-steps`: of the outer step, SGD with Nesterov momentum."""
    outer_momentum: Decay = 0.9
    """With `local-steps`: the outer step's."""
    downloads: Annotated[str | None, Field(max_length=300), LATER] = None
    """A public Storage Bucket of the Hub, `OWNER/BUCKET`, or the address of a folder that a web server shows
    (`https://...`): the coordinator puts the state for newcomers and the averages for latecomers there, and its own
    line is free of them. Whoever gets nothing from there asks peers, as without it."""

    @model_validator(mode="before")
    @classmethod
    def _sparse_without_momentum(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("compression") == "sparse":
            return {"outer_learning_rate": 1.0, "outer_momentum": 0.0, **given}
        return given

    @field_validator("downloads")
    @classmethod
    def _downloads_have_a_place(cls, downloads: str | None) -> str | None:
        if downloads is not None and not re.fullmatch(DOWNLOADS, downloads):
            raise ValueError(
                'averaging.downloads must be a bucket of the Hub, "OWNER/BUCKET", or the address of a folder, '
                '"https://..."'
            )
        return downloads

    @model_validator(mode="after")
    def _sparse_is_for_local_steps(self) -> "AveragingConfig":
        if self.compression == "sparse" and self.mode != "local-steps":
            raise ValueError(
                'averaging.compression = "sparse" needs averaging.mode = "local-steps"; add that, or choose "4bit"'
            )
        return self


class AccessConfig(Section):
    """Who may join. Every peer of the run holds the others to it."""

    who: Literal["open", "invite", "hub"] = "open"
    """`open`: whoever has the invitation. `invite`: whoever the organizer has given a personal code (`dedloc invite`).
    `hub`: the accounts of the Hugging Face Hub below and the members of the organizations below."""
    accounts: tuple[HubName, ...] = Field(default=(), max_length=1000, strict=False)  # not strict: a list will do
    """With `hub`."""
    organizations: tuple[HubName, ...] = Field(default=(), max_length=100, strict=False)
    """With `hub`."""

    @model_validator(mode="after")
    def _lists_belong_to_hub(self) -> "AccessConfig":
        if (self.who == "hub") != bool(self.accounts or self.organizations):
            raise ValueError(
                'access.accounts or access.organizations say whom access.who = "hub" admits, and only then'
            )
        return self


class TrustConfig(Section):
    """What members of a round are believed."""

    aggregate: Literal["mean", "clip"] = "mean"
    """What becomes of their gradients. `mean`: each counts for the samples that it claims, whatever it sends. `clip`:
    nobody counts for more samples, or with a longer gradient, than is usual among the members of the round, so that
    a few of them cannot carry a step away. It bounds what strangers can do and does not find out who lies.
    What machines bring that are faster than most is left out, unless checks have confirmed it."""
    checks: Annotated[Literal["off", "on"], LATER] = "off"
    """Whether members commit to what they send and what they have computed, and some of it is computed again by others,
    so that who cheats is found and sent away."""
    share: Annotated[float, Field(gt=0.0, le=1.0), LATER] = 0.02
    """Of all contributions are checked, as long as nobody cheats."""
    alarm_share: Annotated[float, Field(gt=0.0, le=1.0), LATER] = 0.3
    """The same for 50 global steps after somebody was found to cheat."""
    probation: Annotated[int | None, Field(ge=0, le=100), LATER] = None
    """Checks that a newcomer has to pass before it counts in full; all newcomers together count for a quarter of the
    others. If it is not set 3 where `access` is open, 0 elsewhere."""


MAX_STAGES = 64


class PipelineConfig(Section):
    """The model is cut into stages, each volunteer holds one of them, and microbatches go through all (Ryabinin et al.
    2023): for models that no volunteer could hold."""

    stages: (
        Annotated[int, Field(ge=2, le=MAX_STAGES)]
        | Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=MAX_STAGES)]
    ) = 4
    """How many, or how many layers each has."""
    activations: Literal["8bit", "float16", "none"] = "8bit"
    """How hidden states and their gradients travel from stage to stage."""
    microbatch_tokens: PositiveInt = 4096
    """That go through the stages together."""

    @property
    def count(self) -> int:
        """The number of stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)


MAX_SIDE = 64
"""Of a layer's grid of experts."""


class ExpertsConfig(Section):
    """Layers whose feed-forward network is a mixture of experts, which volunteers host (Ryabinin and Gusev 2020, arXiv
    2002.04013): for models that no volunteer could hold. The rest of the model, the trunk, is trained as without."""

    layers: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(min_length=1, max_length=1024)]
    """Which ones, from 0 on."""
    grid: tuple[int, int] = Field(strict=False)  # the validator below sees to it
    """Rows and columns: as many experts as these are cells, in each of the layers."""
    chosen: Annotated[int, Field(ge=2)] = 2
    """Experts that a token goes to in each of the layers. With a single one the gate would learn nothing."""
    width: PositiveInt
    """Channels that go to an expert and come back: those of the trunk."""
    hidden: PositiveInt
    """Channels inside an expert."""
    balance: Annotated[float, Field(ge=0, le=1e3)] = 0.01
    """How much weight the loss gives to all experts being used alike."""

    @property
    def count(self) -> int:
        """Of all layers."""
        return len(self.layers) * self.grid[0] * self.grid[1]

    @field_validator("grid", mode="before")
    @classmethod
    def _grid_has_cells(cls, value: Any) -> Any:
        sides = value if isinstance(value, list | tuple) else ()
        if len(sides) != 2 or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
            raise ValueError(
                f"experts.grid must be two whole numbers from 1 to {MAX_SIDE}, its rows and columns, such as [4, 4]"
            )
        return value

    @field_validator("layers")
    @classmethod
    def _each_layer_once(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if list(layers) != sorted(set(layers)):
            raise ValueError("experts.layers must name each layer once, in their order, such as [1, 3]")
        return layers

    @model_validator(mode="after")
    def _as_many_are_there(self) -> "ExpertsConfig":
        rows, columns = self.grid
        if self.chosen > rows * columns:
            raise ValueError(
                f"experts.chosen is {self.chosen}, and a grid of {rows} x {columns} has {rows * columns} cells; set it "
                "to at most that"
            )
        return self


_WITHOUT_8_BITS = {
    "lars": "has one of them only, and goes along it as it is",
    "adamw": "is not made for it yet",
    "muon": "shares none",
}


class SwarmConfig(Section):
    """What all peers of one swarm share, whatever they do together. It is immutable: its hash names the swarm."""

    name: Name
    """Lower-case letters, digits and dashes."""
    about: str = Field(default="", max_length=500, pattern=PLAIN_TEXT)
    """A sentence or two for volunteers: what this is, and for whom."""
    access: AccessConfig = AccessConfig()

    @field_validator("access", mode="before")
    @classmethod
    def _who_alone(cls, value: object) -> object:
        """`access = "invite"` is short for the section with this."""
        return {"who": value} if isinstance(value, str) else value

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    @property
    def run_id(self) -> str:
        """`NAME-FINGERPRINT`: peers with different configurations can never meet."""
        return f"{self.name}-{self.fingerprint}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The ids of what is averaged apart; none of a whole model, which goes by the id above."""
        return ()


class RunConfig(SwarmConfig):
    """Everything that the peers of one run share."""

    global_batch: PositiveInt
    """Samples over all peers that lead to one optimizer step."""
    microbatch: PositiveInt | None = None
    """For a loss that looks at several samples together (batch normalisation, contrasts, assignments): so many go
    through the model at once, on every peer that has the memory. Without it each peer takes what suits its device."""
    seed: int = 0
    task: TaskConfig
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    averaging: AveragingConfig = AveragingConfig()
    trust: Annotated[TrustConfig, LATER] = TrustConfig()
    pipeline: Annotated[PipelineConfig | None, LATER] = None
    experts: Annotated[ExpertsConfig | None, LATER] = None
    _stage: int | None = PrivateAttr(default=None)

    @property
    def stage(self) -> int | None:
        """Which part of the run this is; none: the whole."""
        return self._stage

    def of_stage(self, number: int) -> "RunConfig":
        """A part of this run, which is averaged for itself: the same but for its id.

        Gate, tokens and notices go by that of the whole.
        """
        part = self.model_copy()
        part._stage = number
        return part

    @property
    def run_id(self) -> str:
        whole = super().run_id
        return whole if self._stage is None else f"{whole}.stage{self._stage}"

    @property
    def parts(self) -> tuple[str, ...]:
        return () if self.pipeline is None else tuple(self.of_stage(k).run_id for k in range(self.pipeline.count))

    @field_validator("averaging", mode="before")
    @classmethod
    def _mode_alone(cls, value: object) -> object:
        """`averaging = "local-steps"` is short for the section with this mode."""
        return {"mode": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _warm_up_fits(self) -> "RunConfig":
        if self.optimizer.warmup_steps >= self.optimizer.total_steps:
            raise ValueError("optimizer.warmup_steps must be smaller than optimizer.total_steps")
        return self

    @model_validator(mode="after")
    def _muon_works_alone(self) -> "RunConfig":
        if self.optimizer.name == "muon" and self.averaging.mode != "local-steps":
            raise ValueError(
                'optimizer.name = "muon" is for the steps that each volunteer takes by itself: add averaging = '
                '"local-steps", or set the name to "adamw" or "lamb"'
            )
        return self

    @model_validator(mode="after")
    def _state_in_8_bits_is_for_lamb(self) -> "RunConfig":
        if self.optimizer.state == "float32":
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                'optimizer.state = "8bit" is for what all volunteers share, which with averaging = "local-steps" is no '
                "state of this optimizer; remove it"
            )
        if self.optimizer.name != "lamb":
            raise ValueError(
                'optimizer.state = "8bit" keeps the two averages of optimizer.name = "lamb"; '
                f'"{self.optimizer.name}" {_WITHOUT_8_BITS[self.optimizer.name]}: remove it'
            )
        return self

    @property
    def probation(self) -> int:
        """Checks that a newcomer has to pass before it counts in full."""
        if self.trust.checks == "off":
            return 0
        usual = 3 if self.access.who == "open" else 0
        return usual if self.trust.probation is None else self.trust.probation

    @model_validator(mode="after")
    def _checks_are_of_gradients(self) -> "RunConfig":
        if self.trust.checks == "on" and self.averaging.mode == "local-steps":
            raise ValueError(
                'trust.checks = "on" is for gradients, and with averaging = "local-steps" volunteers send none; remove '
                "one of them"
            )
        return self

    @model_validator(mode="after")
    def _stages_are_averaged_exactly(self) -> "RunConfig":
        if self.pipeline is None:
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                'in a [pipeline] nobody can take steps by itself; remove averaging = "local-steps" or the pipeline'
            )
        if self.averaging.overlap:
            raise ValueError("[pipeline] needs averaging.overlap = false: every stage takes each step with the others")
        if self.trust.checks == "on":
            raise ValueError('trust.checks = "on" is not made for stages of a [pipeline] yet; remove one of them')
        return self

    @model_validator(mode="after")
    def _experts_take_the_steps_of_all(self) -> "RunConfig":
        if self.experts is None:
            return self
        if self.averaging.mode == "local-steps":
            raise ValueError(
                '[experts] take the steps that all volunteers take together; remove averaging = "local-steps" or the '
                "experts"
            )
        if self.averaging.overlap:
            raise ValueError("[experts] need averaging.overlap = false: every expert takes each step with the trunk")
        if self.pipeline is not None:
            raise ValueError("[experts] are not made for the stages of a [pipeline] yet; remove one of them")
        if self.trust.checks == "on":
            raise ValueError(
                'trust.checks = "on" computes gradients again, and which experts a token goes to hangs on rounding; '
                "remove it or the [experts]"
            )
        return self

    @model_validator(mode="after")
    def _what_is_downloaded_is_whole(self) -> "RunConfig":
        parts = "pipeline" if self.pipeline else "experts" if self.experts else None
        if self.averaging.downloads is not None and parts is not None:
            raise ValueError(f"averaging.downloads is not made for a run with [{parts}] yet; remove one of them")
        return self

    @model_validator(mode="after")
    def _decay_is_ordered(self) -> "RunConfig":
        if self.data.decay and self.optimizer.schedule != "warmup-stable-decay":
            raise ValueError('data.decay needs optimizer.schedule = "warmup-stable-decay"; add that or remove it')
        return self

    @model_validator(mode="after")
    def _microbatch_fits(self) -> "RunConfig":
        if self.microbatch is not None and self.microbatch > self.peer_batch:
            raise ValueError(f"microbatch must be at most {self.peer_batch}, what one step of a peer takes")
        return self

    @property
    def answers_of_a_sample(self) -> int:
        """Tokens of a sample at most, once for each expert that they go to; 0 if the run has no experts."""
        if self.experts is None:
            return 0
        length = self.task.options.get("sequence_length")
        tokens = length if isinstance(length, int) else SEQUENCE_LENGTH
        return tokens * len(self.experts.layers) * self.experts.chosen

    @property
    def peer_batch(self) -> int:
        """Samples of one step, over all peers or, with `local-steps`, of one of them."""
        return self.averaging.local_batch if self.averaging.mode == "local-steps" else self.global_batch


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
    task_module: str | None = None
    """A Python module on this machine with a `TASKS` dictionary of further tasks; never taken from the network."""
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


def load_run(path: Path, overrides: Path | None = None) -> RunConfig:
    """Read a run configuration from TOML; relative local paths in it are taken from the file's folder.

    `overrides` is a second file whose keys replace those of the first (a recipe's `smoke.toml`).
    Raises UserError with the file, the key and the fix.
    """
    values = read_values(path, overrides)
    values.pop(IMAGES, None)
    try:
        run = parse_run(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return run.model_copy(
        update={
            "task": _with_absolute_names(run.task, path.parent),
            "data": _with_absolute_data(run.data, path.parent),
        }
    )


def read_values(path: Path, overrides: Path | None = None) -> dict[str, Any]:
    """All that a run's file says, as it stands there; otherwise as `load_run`."""
    values = _read_toml(path)
    return values if overrides is None else _merged(values, _read_toml(overrides))


def parse_run(values: dict[str, Any]) -> RunConfig:
    """Validate a run configuration that came as plain values, from a file or from the network."""
    try:
        # JSON mode is strict about types yet takes a list for a tuple, which is all TOML and JSON have.
        return RunConfig.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(describe(error, RunConfig)) from None
    except TypeError as error:  # TOML dates have no JSON form
        raise UserError(f"a value has a type that no key takes ({error})") from None


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


def seed_of(*names: object) -> int:
    """A 63-bit seed from stable names, the same in every process and on every machine."""
    digest = hashlib.sha256("\x00".join(str(name) for name in names).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a run configuration (run.toml)") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both_tables else value
    return merged


def local(name: str, folder: Path) -> str:
    """An absolute path if the name means something local, else the name (an id on the Hub) itself."""
    candidate = folder / os.path.expanduser(name)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1 or candidate.exists()
    return str(candidate.resolve()) if looks_local else name


def _with_absolute_data(data: DataConfig, folder: Path) -> DataConfig:
    def absolute(source: Source) -> Source:
        return source.model_copy(update={"dataset": local(source.dataset, folder)})

    return data.model_copy(
        update={
            "train": tuple(absolute(source) for source in data.train),
            "decay": tuple(absolute(source) for source in data.decay),
            "evaluation": absolute(data.evaluation) if data.evaluation else None,
        }
    )


def _with_absolute_names(task: TaskConfig, folder: Path) -> TaskConfig:
    named = {key: name for key in NAMES_OF_FILES if isinstance(name := task.options.get(key), str)}
    absolute: dict[str, Any] = {key: local(name, folder) for key, name in named.items()}
    match task.options.get("pictures"):
        case {"model": str(name), **others}:
            absolute["pictures"] = {"model": local(name, folder), **others}
    return task.model_copy(update=absolute)
