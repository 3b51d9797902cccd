"""What a worker process tells whoever started it: one JSON line per event on its standard output."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from dedloc_kit.config.parts import MAX_STAGES
from dedloc_kit.experts_state import ExpertHost, ExpertLayer, held
from dedloc_kit.fetching import arrived
from dedloc_kit.pipeline_state import MAX_TOLD, DriverSeen, Offered, StageSeen, bottleneck, drivers_seen, stages_seen
from dedloc_kit.records.experts import MAX_ASSIGNED_HOSTS
from dedloc_kit.records.orders import Announcement, Checks, Decay
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.serving.offer import Serving

RATE_SECONDS = 3.0
"""Over which the rate of a download is taken."""


class Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class State(Event):
    """What the worker is doing now, in words: checking the machine, connecting, loading, training, waiting, leaving."""

    event: Literal["state"] = "state"
    text: str
    then: str = ""
    """What comes next, likewise; empty if nothing is worth saying."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """How much of it is done; None if nobody can tell."""


class Loading(Event):
    """The training state is on its way from another peer."""

    event: Literal["loading"] = "loading"
    received_bytes: int
    total_bytes: int
    bytes_per_second: float = 0.0

    @property
    def text(self) -> str:
        """`23.0 of 72.1 MB, 1.5 MB/s`."""
        return arrived(self.received_bytes, self.total_bytes, self.bytes_per_second)


def telling_loaded(
    emit: "Callable[[AnyEvent], None]", clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int], None]:
    """What emits the progress of a download, of how many bytes have arrived and of how many.

    :param clock: seconds
    """
    mark, rate = (clock(), 0), 0.0

    def tell(received: int, total: int) -> None:
        nonlocal mark, rate
        now = clock()
        if received < mark[1]:  # another download
            mark, rate = (now, received), 0.0
        elif now > mark[0]:
            if now - mark[0] >= RATE_SECONDS or not rate:
                rate = (received - mark[1]) / (now - mark[0])
            if now - mark[0] >= RATE_SECONDS:
                mark = now, received
        emit(Loading(received_bytes=received, total_bytes=total, bytes_per_second=rate))

    return tell


class Hosted(Event):
    """What this machine has of the experts of the run, when that has changed."""

    event: Literal["hosted"] = "hosted"
    kept: int
    """Those that it computes and whose steps it takes."""
    copies: int
    """Those that it stands in for."""


class Joined(Event):
    """The peer is part of the swarm and holds the current state."""

    event: Literal["joined"] = "joined"
    run_id: str
    peer: str
    session: str
    """Names this session; with the run and the peer it seeds the order of the data."""
    addresses: tuple[str, ...]
    """Where others reach this peer; empty in client mode."""
    step: int
    device: str
    parameters: int


class LocalProgress(Event):
    """A microbatch is done."""

    event: Literal["progress"] = "progress"
    step: int
    samples: int
    """Mine, toward the next global step."""
    swarm_samples: int
    """Everyone's, as far as known."""
    global_batch: int
    averaging: bool = False
    """Is what this peer gives to a round on its way?"""
    session_samples: int
    loss: float | None
    samples_per_second: float
    decay: Decay | None = None
    """Of the learning rate, once it has begun."""
    driven: int | None = None
    """Samples that went through all stages, of who only drives; they count for those who computed them."""
    carried: int | None = None
    """Bytes that went over a lent line in this session, of who lends one; see records.GlobalStep."""
    answered: int | None = None
    """Tokens that experts here have answered for others in this session, of who hosts some, by its own count."""


class StepDone(Event):
    """A global step is done and this peer has taken it."""

    event: Literal["step"] = "step"
    step: GlobalStep
    contributions: dict[str, int]
    """Peer to samples."""


class PeerSeen(BaseModel):
    peer: str
    name: str
    team: str = ""
    device: str
    step: int
    samples: int
    samples_per_second: float
    upload: float | None = None
    """Bytes per second."""
    files: int = 0
    unreadable_files: int = 0
    bad_rows: int = 0
    """What it could not read of the training data; see records.Progress."""
    restarted: str = ""
    """Why its training stopped the last time; for the organizer alone."""
    skipped: int = 0
    """Microbatches in a row without a finite loss; see records.Progress."""
    follower: bool
    client_mode: bool

    @classmethod
    def of(cls, peer: str, progress: Progress) -> Self:
        """As this peer says of itself."""
        return cls(peer=peer, **progress.model_dump(include=cls.model_fields.keys() - {"peer"}))


class Peers(Event):
    """Who is in the swarm now, as the coordinator sees it."""

    event: Literal["peers"] = "peers"
    peers: tuple[PeerSeen, ...]
    paused: bool = False
    """The organizer has paused the run."""
    last_step: int | None = None
    """The global step with which the organizer lets the run end, if it is not to go on to its last one."""
    decay: Decay | None = None
    """Of the learning rate, by the organizer's order, once it has begun."""
    announcement: Announcement | None = None
    checks: Checks | None = None
    """None where nothing is checked."""
    problem: str = ""
    """What the organizer has to put right, such as that the training has diverged; empty while nothing is wrong."""
    listed: tuple[str, ...] = ()
    """Addresses of volunteers that may stand in the public invitation, by their own word and the organizer's."""
    countries: dict[str, int] | None = None
    """How many volunteers are in which country (ISO 3166), as far as it is known, if the organizer wants it shown."""
    countries_title: str = ""
    """The title of the database that says so."""


class PipelineState(Event):
    """How the stages of the model stand, as the coordinator sees them."""

    event: Literal["pipeline"] = "pipeline"
    stages: Annotated[tuple[StageSeen, ...], Field(min_length=2, max_length=MAX_STAGES)]
    """All of them, first stage first."""
    drivers: Annotated[tuple[DriverSeen, ...], Field(max_length=MAX_TOLD)] = ()

    @classmethod
    def of(cls, offers: Mapping[str, Offered], stages: int) -> Self:
        """As the peers of a pipeline of so many stages say of themselves."""
        return cls(stages=stages_seen(offers, stages), drivers=drivers_seen(offers))

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[StageSeen, ...]) -> tuple[StageSeen, ...]:
        if [stage.number for stage in stages] != list(range(len(stages))):
            raise ValueError("the stages are not numbered from 0")
        return stages

    @property
    def bottleneck(self) -> str:
        """What limits the run, in a sentence."""
        return bottleneck(self.stages)


class ExpertsState(Event):
    """How the experts of the run stand, as the coordinator sees them."""

    event: Literal["experts"] = "experts"
    grid: Annotated[tuple[int, int], Field(strict=False)]
    """Rows and columns."""
    layers: tuple[ExpertLayer, ...]
    """None where there are too many to tell of each: then the coordinator's machine has them all."""
    hosts: Annotated[tuple[ExpertHost, ...], Field(max_length=MAX_ASSIGNED_HOSTS + 1)]
    """Who has any, in the order in which `layers` counts them."""

    @property
    def held(self) -> str:
        """How well they are held, in a sentence."""
        return held(self.layers, self.grid[1])


class Announced(Event):
    """The organizer has a message for the volunteers, or no longer any."""

    event: Literal["announced"] = "announced"
    text: str


class Evaluated(Event):
    """The coordinator measured at a global step what the model can do with held-out data; see records.Evaluation."""

    event: Literal["evaluated"] = "evaluated"
    step: int
    loss: float
    metrics: dict[str, float] = {}


class Pushed(Event):
    """The model and the training state of a global step are on the Hub."""

    event: Literal["pushed"] = "pushed"
    step: int
    url: str
    """Of the commit."""


class PushFailed(Event):
    """A push to the Hub did not succeed; it will be tried again."""

    event: Literal["push_failed"] = "push_failed"
    text: str


class SampleCost(BaseModel):
    """What one sample takes, the mean of some."""

    flops: float
    """Floating point operations of a forward and backward pass."""
    kept_bytes: int
    """Memory that the longest sample's forward pass keeps for the backward pass, in float32."""
    microbatch: int
    """Samples that this machine takes at once."""
    samples_per_second: float
    """On this machine, while nobody else uses it."""


class StageCost(BaseModel):
    """What one stage of a pipeline takes."""

    parameters: int
    gradient_bytes: int
    """Of all its gradients as they travel once."""
    average_bytes: int
    """Of their average."""
    width: int
    """Channels of what travels from stage to stage."""
    tokens: int
    """Of a microbatch."""
    flops: float
    """Floating point operations of a microbatch's forward and backward call; the latter computes forward again."""
    kept_bytes: int
    """Memory that a microbatch's forward pass keeps for the backward pass, in float32."""
    seconds: float
    """Of a microbatch's forward and backward call on this machine, while nobody else uses it."""


class GoingOn(BaseModel):
    """How a run begins that goes on from a model that exists."""

    copied: int
    """Tokens of the vocabulary that the old one has too; the others are the mean of old ones, or drawn at random."""
    averaged: int
    drawn: int
    held_out: dict[str, float] | None
    """What the first evaluation measures; none if there is nothing to measure on."""
    held_out_before: dict[str, float] | None
    """The same with the model's own vocabulary, if the run has another one."""


class Rehearsed(Event):
    """What a run takes, found out on one machine before it begins."""

    event: Literal["rehearsed"] = "rehearsed"
    parameters: int
    gradient_bytes: int
    """Of all gradients as they travel once."""
    average_bytes: int
    """Of their average."""
    device: str
    cost: SampleCost | None
    """None where no data could be read."""
    going_on: GoingOn | None = None
    """None if the run begins untrained."""
    stages: tuple[StageCost, ...] = ()
    """Of a run with [pipeline] whose data could be read; then `cost` is of them together."""


class Reached(Event):
    """Whether others can connect to this machine."""

    event: Literal["reached"] = "reached"
    reachable: bool | None
    """None if nobody could tell."""
    text: str


class ServerSeen(BaseModel):
    """A server, as it says itself; see serving.offer.Serving."""

    peer: str
    name: str
    team: str
    device: str
    begin: int
    end: int
    form: str
    version: str
    older: str = ""
    state: str
    decoding: float
    prompts: float
    passes: float
    cache_tokens: int
    free_tokens: int
    sessions: int
    served: int
    client_mode: bool
    addresses: tuple[str, ...] = ()
    """Where others reach it."""

    @classmethod
    def of(cls, peer: str, serving: Serving) -> Self:
        return cls(peer=peer, **serving.model_dump(include=cls.model_fields.keys() - {"peer"}))


class Began(Event):
    """A serving swarm has been described and begins."""

    event: Literal["began"] = "began"
    serving: dict[str, Any]
    """Its configuration; see serving.config.ServingConfig."""


class Served(Event):
    """How a server stands, and what it sees of the others."""

    event: Literal["served"] = "served"
    layers: int
    """Of the model."""
    mine: ServerSeen | None
    servers: tuple[ServerSeen, ...]
    """All of them, this one included."""
    refused: dict[str, int] = {}
    """Requests of users that were wrong, by kind, since it began."""
    version: str = ""
    """The newest one with which all layers are served; see serving.offer.Serving."""


class Warned(Event):
    """Something a person may want to know; the worker goes on."""

    event: Literal["warning"] = "warning"
    text: str
    alert: bool = False
    """Whether the organizer is to be told at once, wherever they are."""


class Failed(Event):
    """The worker cannot go on: one line with what is wrong and what to do."""

    event: Literal["failed"] = "failed"
    text: str


class Left(Event):
    """The worker left cleanly."""

    event: Literal["left"] = "left"
    step: int
    session_samples: int


AnyEvent = Annotated[
    State
    | Loading
    | Hosted
    | Joined
    | LocalProgress
    | StepDone
    | Peers
    | PipelineState
    | ExpertsState
    | Announced
    | Evaluated
    | Pushed
    | PushFailed
    | Rehearsed
    | Began
    | Served
    | Reached
    | Warned
    | Failed
    | Left,
    Field(discriminator="event"),
]
_adapter: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def parse_event(line: str | bytes) -> AnyEvent:
    """Read one line; raises ValueError if it is no event."""
    return _adapter.validate_json(line)
