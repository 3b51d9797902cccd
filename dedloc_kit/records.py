"""Every record that crosses the network or is stored. Whatever comes from a peer is parsed here first."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from dedloc_kit.errors import UserError
from dedloc_kit.keys import has_signed, public, sign
from dedloc_kit.run import PLAIN_TEXT, RunConfig, SwarmConfig, parse_run
from dedloc_kit.validation import describe
from dedloc_kit.version import __version__

Count = Annotated[int, Field(ge=0, le=2**53)]
Time = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
RunId = Annotated[str, Field(max_length=80, pattern=r"^[0-9A-Za-z._-]*$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
# Text that a peer chose: no control characters, which could take over a terminal that shows it.
PeerText = Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT)]
Address = Annotated[
    str, Field(max_length=160, pattern=r"^/(ip4|ip6|dns4|dns6|dns)/[0-9A-Za-z.:_-]+/tcp/\d{1,5}/p2p/[0-9A-Za-z]+$")
]
"""A multiaddress of a peer."""
ShownText = Annotated[str, AfterValidator(lambda text: re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text))]
"""Text for viewers that data brought in, which may hold anything: control characters become spaces."""
AnnouncementText = Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)]
MAX_REASON = 160
Reason = Annotated[str, Field(max_length=MAX_REASON, pattern=PLAIN_TEXT)]
PeerId = Annotated[str, Field(max_length=128, pattern=r"^[0-9A-Za-z]*$")]
MAX_REFUSED = 1280
"""Peers in one notice, so that it stays below 12 kB: a record of 16 in the DHT may be too much."""
_SHORT = 8
Base64 = Annotated[str, Field(max_length=1280, pattern=r"^[A-Za-z0-9+/=]*$")]
Version = Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.?[0-9a-z]+)*$")]
"""Of dedloc_kit, as it is published, such as `0.1.0` or `1.0rc1`."""
# Nothing in it means anything to a shell: people paste it into one.
Url = Annotated[str, Field(max_length=300, pattern=r"^https?://[A-Za-z0-9._~:/%\[\]-]+$")]
WheelFile = Annotated[
    str, Field(max_length=200, pattern=r"^dedloc_kit-[0-9A-Za-z.+]+-py3-none-any\.whl#sha256=[0-9a-f]{64}$")
]
"""The name of a wheel and its digest, as pip and uv check it behind a URL."""
StepLoss = Annotated[
    tuple[Count, float],
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
"""A global step and its loss; described as a list, because many readers of descriptions know no tuples."""
Signed = Annotated[str, Field(max_length=2048, pattern=r"^[0-9A-Za-z+/]*=*$")]
"""A key or a signature in base64; see `keys`."""


class Record(BaseModel):
    """A record: immutable, unknown keys rejected, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Validate plain values; raises ValueError with the field that is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{cls.__name__}: {describe(error, cls)}") from None


MAX_LOSS = 1e9
MAX_CONFIRMED = 16
"""Hosts in one contribution: so it stays small, and in the next steps there is room for others."""


class Contribution(Record):
    """The samples of one peer that went into one global step, signed by the peer.

    `session_samples` counts everything this peer gave since it started, this contribution included,
    so that a collector which missed some contributions still knows the total.
    """

    run_id: RunId
    step: Count
    """The global step that these samples led to (the first one is 1)."""
    session: Digest
    samples: Count
    session_samples: Count
    loss: Annotated[float, Field(ge=-MAX_LOSS, le=MAX_LOSS)] | None
    """Mean training loss over the samples, or the nearest of these bounds; none when there are none."""
    name: PeerText
    time: Time
    decay_order: Base64 = ""
    """The organizer's signed order that the learning rate falls from this global step on, a `DecayOrder`: whoever has
    heard of it brings it. As text, for no signature may stand within another."""
    answered: Annotated[dict[PeerId, Count], Field(max_length=MAX_CONFIRMED)] = {}
    """Tokens that hosts of experts have answered for this peer since it started, forward and backward, once for each
    expert that they went to; of some of the hosts, where there are more."""
    batch: Count | None = None
    """In a stage: how many samples the batch of this step holds in all, if this peer knows what drivers have begun."""


class DecayOrder(Record):
    """What the organizer signs to let the learning rate fall and the run end with that."""

    run_id: RunId
    steps: Annotated[int, Field(ge=1, le=2**53)]
    """Over so many global steps."""
    rewound: Count
    """The state's newest rewind then: a later one makes the order void, whoever still brings it."""


class Decay(Record):
    """The learning rate falls to its end, in these global steps; the run is over after them."""

    start: Annotated[int, Field(ge=1, le=2**53)]
    """The first of them."""
    steps: Annotated[int, Field(ge=1, le=2**53)]

    @property
    def end(self) -> int:
        """The last of them."""
        return self.start + self.steps - 1


class Announcement(Record):
    """What the organizer tells everyone."""

    text: AnnouncementText
    time: Time


class Checks(Record):
    """What has come of checking the volunteers' work since the coordinator started."""

    passed: Count = 0
    given_up: Count = 0
    """Nobody could compute it in time, or its author had left."""
    convicted: Count = 0
    share: Annotated[float, Field(gt=0.0, le=1.0)]
    """Of all contributions are checked now."""
    alarm: Count | None = None
    """So many global steps ago somebody was convicted, while more is checked because of that."""

    def told(self) -> str:
        """In one line."""
        found = f"{self.convicted} sent away" if self.convicted else "all fine"
        given_up = f", {self.given_up} could not be" if self.given_up else ""
        return f"{self._how_many()}: {self.passed} checked{given_up}, {found}"

    def _how_many(self) -> str:
        one_in = round(1 / max(self.share, 1e-9))
        if self.alarm is None:
            return f"1 in {one_in} contributions is checked"
        part = Fraction(self.share).limit_denominator(100) or Fraction(1, one_in)
        ago = f"{self.alarm} step{'' if self.alarm == 1 else 's'} ago" if self.alarm else "just now"
        are = "is" if part.numerator == 1 else "are"
        checked = f"{part.numerator} in {part.denominator} contributions {are} checked"
        return f"{checked} since somebody was sent away {ago}"


class Instructions(Record):
    """What the coordinator passes on to the volunteers from the organizer."""

    paused: bool
    last_step: Count | None
    """The global step after which the run is over, if that is not what its configuration says."""
    announcement: AnnouncementText
    """Empty if there is none."""
    decay_order: Base64 = ""
    """For all to bring to their rounds; see Contribution."""
    decay: Decay | None = None
    """That has begun; for those who look on."""
    stored: Digest = ""
    """The hash of the index of what lies in the run's bucket (`averaging.downloads`) for all."""


class FillMask(Record):
    """A held-out sentence with one word hidden, and what the model puts there, for viewers."""

    kind: Literal["fill-mask"] = "fill-mask"
    before: Annotated[ShownText, Field(max_length=256)]
    guess: Annotated[ShownText, Field(max_length=64)]
    truth: Annotated[ShownText, Field(max_length=64)]
    after: Annotated[ShownText, Field(max_length=256)]


class Continuation(Record):
    """The beginning of a held-out text, how the model goes on, and how the text does, for viewers."""

    kind: Literal["continuation"] = "continuation"
    before: Annotated[ShownText, Field(max_length=512)]
    written: Annotated[ShownText, Field(max_length=512)]
    truth: Annotated[ShownText, Field(max_length=512)]


MAX_PICTURE_SIDE = 48
PictureDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Picture(Record):
    """A small square picture for viewers, as bare pixels: somebody else's file would have to be decoded by all of them.

    :ivar pixels: rows of red, green and blue, one byte each
    """

    pixels: Annotated[bytes, Field(max_length=3 * MAX_PICTURE_SIDE**2)]

    @field_validator("pixels")
    @classmethod
    def _square(cls, pixels: bytes) -> bytes:
        if not pixels or 3 * math.isqrt(len(pixels) // 3) ** 2 != len(pixels):
            raise ValueError(f"{len(pixels)} bytes are no square picture")
        return pixels

    @property
    def side(self) -> int:
        return math.isqrt(len(self.pixels) // 3)

    @property
    def digest(self) -> str:
        """Names the picture wherever it is shown."""
        return hashlib.sha256(self.pixels).hexdigest()


ClassName = Annotated[ShownText, Field(max_length=64)]


class Neighbour(Record):
    """A held-out picture that a model takes for similar to another one."""

    picture: PictureDigest
    label: ClassName
    similarity: Annotated[float, Field(ge=-1, le=1)]
    """The cosine of their features."""


class Neighbours(Record):
    """A held-out picture and those that are nearest to it for a model, for viewers; the classes it was never told."""

    kind: Literal["neighbours"] = "neighbours"
    picture: PictureDigest
    label: ClassName
    """Empty where no class is known."""
    nearest: Annotated[tuple[Neighbour, ...], Field(max_length=8, strict=False)]
    """The most similar one first."""

    @property
    def pictures(self) -> list[str]:
        """The digests of all that it shows."""
        return [self.picture, *(neighbour.picture for neighbour in self.nearest)]


class Drawing(Record):
    """What a model drew for the caption of a held-out picture, for viewers; the same captions and seeds each time."""

    kind: Literal["drawing"] = "drawing"
    caption: Annotated[ShownText, Field(max_length=256)]
    picture: PictureDigest
    """What it drew."""
    real: PictureDigest | None = None
    """The picture that the caption came with, as the picture model gives it back: no drawing can be better."""

    @property
    def pictures(self) -> list[str]:
        """The digests of all that it shows."""
        return [self.picture] if self.real is None else [self.picture, self.real]


def _kind_of(sample: Any) -> Any:
    """Before there were others, samples were not marked."""
    return sample.get("kind", "fill-mask") if isinstance(sample, dict) else getattr(sample, "kind", None)


Sample = Annotated[
    Annotated[FillMask, Tag("fill-mask")]
    | Annotated[Continuation, Tag("continuation")]
    | Annotated[Neighbours, Tag("neighbours")]
    | Annotated[Drawing, Tag("drawing")],
    Discriminator(_kind_of),
]
"""What a model does with one held-out sample, for viewers."""


NO_SHARES = frozenset({"perplexity", "bits per byte", "code loss without caption", "code loss with another caption"})
"""Metrics that are not shares of a whole."""


class Evaluation(Record):
    """What a model can do with held-out samples."""

    loss: Annotated[float, Field(allow_inf_nan=True)]
    """The mean over the samples; a model that has diverged has none that is finite."""
    metrics: dict[PeerText, Annotated[float, Field(ge=0, le=1e9)]] = Field(default={}, max_length=8)
    """Shares of the whole by name, such as `masked accuracy`; what `NO_SHARES` names is any number."""
    samples: tuple[Sample, ...] = Field(default=(), max_length=8)
    pictures: tuple[Picture, ...] = Field(default=(), max_length=72)
    """Those that the samples name."""

    @field_validator("metrics")
    @classmethod
    def _shares(cls, metrics: dict[str, float]) -> dict[str, float]:
        if wrong := [name for name, value in metrics.items() if value > 1 and name not in NO_SHARES]:
            raise ValueError(f"{wrong[0]} is a share and cannot be more than 1")
        return metrics


class Progress(Record):
    """What a peer says of itself every few seconds, signed; it lives in the DHT for some seconds only."""

    run_id: RunId
    step: Count
    """The global step whose parameters the peer holds."""
    round: Digest
    """The all-reduce that led to this step, so that peers whose paths parted find out."""
    samples: Count
    """Samples accumulated toward the next global step."""
    samples_per_second: Annotated[float, Field(ge=0, le=1e9)]
    boundary_seconds: Annotated[float, Field(ge=0, le=3600)]
    """Its time per microbatch; 0 before the first. In exact training others may have to wait so long until this peer
    can begin a round."""
    sketch: Annotated[tuple[float, ...], Field(max_length=8, strict=False)]
    """A few random projections of the parameters: peers that hold other parameters find out. Empty if the parameters
    are not finite."""
    follower: bool
    holds_state: bool = True
    """Not of who only lends its line: nobody asks it for a state."""
    instructions: Instructions | None = None
    """Of the coordinator only: nobody else is believed."""
    client_mode: bool
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach this peer; empty in client mode."""
    reached: Base64 = ""
    """The organizer's signed word that it reached this peer, without which nobody is dialled in a run that is not open:
    a `Reached`. As text, for hivemind takes no record for valid in which there is a second signature."""
    listed: bool = False
    """Whether they may stand in the public invitation, if the organizer wants that too."""
    device: PeerText
    name: PeerText
    team: PeerText = ""
    upload: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Bytes per second at which the peer got rid of its gradients in recent rounds; none before the first."""
    files: Count = 0
    """Of the training data, where any are lost for this peer."""
    unreadable_files: Count = 0
    """How many of them this peer could not read, or not to their end."""
    bad_rows: Count = 0
    """Rows of the training data that this peer had to leave out."""
    session: Digest = ""
    """Names this session, as in its contributions: two at once under one key are seen."""
    since: Time = 0.0
    """When it began, by the clock of the directory."""
    restarted: Reason = ""
    """Why the training of this peer stopped before it was started again; for the organizer."""
    skipped: Count = 0
    """Microbatches in a row that this peer left out, since its loss or gradient was not finite."""
    fixed: bool = False
    """Whether what this peer computes from now on is for the global step after the next one."""
    computed: Time = 0.0
    """When it finished its last microbatch; 0 before the first."""
    time: Time


MAX_ROWS = 32
"""Of a swarm."""


class RowSummary(Record):
    """What one of a row's peers says of the row, signed, for those who follow only their own; it lives in the DHT for
    some seconds only."""

    run_id: RunId
    step: Count
    """The global step whose parameters the peers that are counted hold."""
    round: Digest
    """The all-reduce that led to it."""
    rows: Annotated[int, Field(ge=2, le=MAX_ROWS)]
    """Into how many rows the swarm is divided."""
    row: Annotated[int, Field(ge=0, lt=MAX_ROWS)]
    able: Annotated[tuple[PeerId, ...], Field(max_length=3, strict=False)]
    """Some of the row who can be asked who leads it."""
    peers: Annotated[int, Field(ge=1, le=2**20)]
    samples: Count
    """Toward the next global step."""
    samples_per_second: Annotated[float, Field(ge=0, le=1e12)]
    filling: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Of these, how many go into the next global step: not those of peers whose part of it is fixed."""
    boundary_seconds: Annotated[float, Field(ge=0, le=3600)]
    """The longest; see `Progress`."""
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach the author."""
    reached: Base64 = ""
    """See `Progress`."""
    time: Time


MAX_MICROBATCHES_PER_SECOND = 1e6
MAX_ACCUSED = 8
Accused = Annotated[tuple[PeerId, ...], Field(max_length=MAX_ACCUSED, strict=False)]


class Begun(Record):
    """What a driver of a pipeline has begun of the batch that leads from a global step to the next one."""

    step: Count
    """Whose parameters it wants."""
    samples: Count
    final: bool
    """It begins no more for it."""


Stage = Annotated[int, Field(ge=0, lt=64)]
MAX_IN_FLIGHT = 128
_Some = Annotated[int, Field(ge=0, le=MAX_IN_FLIGHT)]
InFlight = Annotated[tuple[_Some, _Some], Field(strict=False)]
"""Of one driver's microbatches those that are at a stage, or on their way there: forward and backward."""


class StageMove(Record):
    """A move to another stage that a stage peer has announced."""

    stage: Stage
    announced: Time
    """By the clock of the directory."""
    begun: bool = False


class StageOffer(Record):
    """What a peer of a pipeline says of itself every few seconds, signed; it lives in the DHT for some seconds only."""

    run_id: RunId
    stage: Stage | None
    """That it holds; none if it only drives."""
    state: Literal["joining", "online", "moving", "leaving"]
    """`joining`: it loads its stage; `moving`: it serves it until another is loaded."""
    step: Count = 0
    """The global step whose parameters of its stage it holds."""
    round: Digest = ""
    """The all-reduce that led to it."""
    microbatches_per_second: Annotated[float, Field(ge=0, le=MAX_MICROBATCHES_PER_SECOND)] = 0.0
    """Through its stage, forward and backward; 0 before it is measured."""
    queue: Count = 0
    """Calls that wait."""
    upload: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """See `Progress`."""
    begun: Begun | None = None
    """None if it does not drive."""
    in_flight: Annotated[tuple[InFlight, ...], Field(max_length=64, strict=False)] = ()
    """At each stage, of the moment in which this is said; empty if it does not drive."""
    driven: Count = 0
    """Samples through all stages, in this session; so is the next one."""
    served: Count = 0
    """Samples through its stage."""
    accuses: Accused = ()
    """Stage peers of which this driver has found that they answer wrongly, the latest ones. For the organizer, who
    weighs it; no other peer acts on it."""
    moving: StageMove | None = None
    moved: Time = 0.0
    """When it last began to move; 0 if it never has."""
    pinned: bool = False
    """Its owner chose the stage."""
    forwards: bool = False
    """It connects peers that cannot reach each other."""
    client_mode: bool
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach this peer; empty in client mode."""
    reached: Base64 = ""
    """See `Progress`."""
    device: PeerText
    name: PeerText
    team: PeerText = ""
    session: Digest = ""
    time: Time

    @property
    def since(self) -> float:
        """When this session began to drive; whoever has a stage comes before all who only drive."""
        return self.moved if self.stage is None else 0.0


class LayerCells(Record):
    """Cells of one layer's grid of experts."""

    layer: Count
    cells: Annotated[bytes, Field(min_length=1, max_length=512)]
    """A bit for each, row by row, the first one the highest of its byte; at most 64 x 64 cells."""


MAX_ASSIGNED_HOSTS, MAX_ASSIGNED_CELLS = 64, 2048
NOBODY = 255


class Assigned(Record):
    """Who is to hold which experts, as the organizer says; nobody else is believed."""

    hosts: Annotated[tuple[PeerId, ...], Field(max_length=MAX_ASSIGNED_HOSTS, strict=False)]
    keepers: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)]
    """Of the first experts of the run in the order of their names, one after the other: which of the hosts takes its
    steps, or `NOBODY`; then the organizer does."""
    stand_ins: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)]
    """Which of them holds an equal copy, or `NOBODY`."""

    @model_validator(mode="after")
    def _names_its_hosts(self) -> Self:
        places = {*self.keepers, *self.stand_ins} - {NOBODY}
        if len(self.keepers) != len(self.stand_ins) or any(place >= len(self.hosts) for place in places):
            raise ValueError("it does not say of each expert who has it")
        return self


class HostOffer(Record):
    """What a peer of a run with experts says of itself every few seconds, signed; it lives in the DHT for some seconds
    only."""

    run_id: RunId
    state: Literal["joining", "online", "leaving"]
    layers: Annotated[tuple[LayerCells, ...], Field(max_length=64, strict=False)] = ()
    """The experts that answer here; none if it hosts nothing."""
    copies: Annotated[tuple[LayerCells, ...], Field(max_length=64, strict=False)] = ()
    """Those that it stands in for: they answer here if their keeper does not."""
    load: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)] = b""
    """How many tokens go to those that answer here; see `swarm/experts/load.py`. For those who look on."""
    step: Count = 0
    """The global step whose parameters these have."""
    room: Count = 0
    """Bytes of memory for experts."""
    assigned: Assigned | None = None
    """The organizer's."""
    accuses: Accused = ()
    """Hosts of which this trainer has found that they answer wrongly, or unlike others; see `StageOffer`."""
    through: Annotated[tuple[PeerId, ...], Field(max_length=4, strict=False)] = ()
    """Peers that forward calls to it, if nobody can dial it."""
    forwards: bool = False
    """It connects peers that cannot reach each other."""
    client_mode: bool
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach this peer; empty in client mode."""
    reached: Base64 = ""
    """See `Progress`."""
    device: PeerText
    name: PeerText
    team: PeerText = ""
    session: Digest = ""
    time: Time

    @field_validator("layers", "copies")
    @classmethod
    def _each_layer_once(cls, layers: tuple[LayerCells, ...]) -> tuple[LayerCells, ...]:
        if len({each.layer for each in layers}) < len(layers):
            raise ValueError("a layer is named twice")
        return layers


TOKEN_SECONDS = 3600.0
"""How long a token lasts; who was sent away gets no other."""


class Token(Record):
    """What the organizer signs for a peer that may take part, as one record; it is worth nothing to any other peer."""

    run_id: RunId
    peer: PeerId
    name: PeerText
    """Whom the organizer let in with it: the invited person, or the account on the Hub."""
    time: Time
    expires: Time


class Reached(Record):
    """What the organizer signs for a peer that it could reach there, so that others look for it there."""

    run_id: str
    peer: PeerId
    host: Annotated[str, Field(max_length=15, pattern=r"^[0-9.]+$")]
    port: Annotated[int, Field(ge=1, le=65535)]
    time: Time


class Notice(Record):
    """What the organizer tells all again and again, signed: that it is there, how far it is, and whom to refuse."""

    run_id: RunId
    time: Time
    refused: Annotated[bytes, Field(max_length=_SHORT * MAX_REFUSED)] = b""
    """The beginnings of the SHA-256 digests of peer ids; may be given as the ids, as it was written before."""
    step: Count | None = None
    """The global step that it holds; none while it starts."""
    round: Digest = ""
    """The all-reduce that led to this step."""

    @field_validator("refused", mode="before")
    @classmethod
    def _digests(cls, refused: Any) -> Any:
        return shortened(refused[:MAX_REFUSED]) if isinstance(refused, tuple | list) else refused

    def refuses(self, peer: str) -> bool:
        """May this peer not take part any more?"""
        return bool(self.refused) and shortened([peer]) in self._refused

    @cached_property
    def _refused(self) -> frozenset[bytes]:
        return frozenset(self.refused[at : at + _SHORT] for at in range(0, len(self.refused), _SHORT))


def shortened(peers: Sequence[str]) -> bytes:
    """Peer ids as a notice names them. Nobody finds a key whose id is shortened to that of another peer."""
    return b"".join(hashlib.sha256(str(peer).encode()).digest()[:_SHORT] for peer in peers)


Denial = Literal[
    "no code",
    "no token",
    "unreadable",
    "forged",
    "expired",
    "revoked",
    "other run",
    "kicked",
    "not listed",
    "too many machines",
    "token refused",
    "hub down",
    "busy",
]
"""Why the organizer does not let a peer in.

`forged`: not made by this coordinator; `not listed`: not an account that may join; `busy`: too many ask at once."""


class AccessRequest(Record):
    """A peer asks the organizer to be let in, or for its next token."""

    run_id: RunId
    secret: Annotated[str, Field(max_length=1024)] = ""
    """A personal code, or a token of the Hub; whoever was let in before needs none."""


class AccessAnswer(Record):
    token: Annotated[bytes, Field(max_length=4096)] = b""
    """Signed; empty in an open run, or with a denial."""
    denial: Denial | None = None
    why: Reason = ""
    """What was found about who is kicked, if that is known; not written while it is empty, for whoever knows no such
    key."""

    @model_serializer(mode="wrap")
    def _without_empty_why(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        if not self.why:
            del values["why"]
        return values


INVITATION_FILE = "invitation.json"
"""The invitation, in the coordinator's folder and in a run's Hub repository."""


STATE_FILE = "training_state.safetensors"
"""The training state in a run's Hub repository, beside the model for its users."""


CONTRIBUTORS_FILE = "contributors.json"
"""Who gave what until then, beside it: a list of `Given`."""


LEDGER_FOLDER = "ledger"
"""The whole ledger until then, beside it: one Parquet file for each of its tables, see `ledger.copying`."""


MAX_LEDGER_BYTES = 2**31
"""Of one of these files; two million contributions take less than a tenth of it."""


class Given(Record):
    """What one peer gave to a run over all its sessions; times by the coordinator's clock."""

    peer: PeerId
    name: PeerText
    samples: Count
    steps: Count
    first_seen: Time
    last_seen: Time


class Standing(Record):
    """Where one peer stands among all who gave to a run, for the peer's own view."""

    samples: Count
    """Its own, over all its sessions."""
    samples_total: Count
    """Everyone's."""
    rank: Count
    """1 for who gave most; 0 for who has given nothing yet."""
    contributors: Count
    volunteers: Count
    """Who trains now."""
    losses: Annotated[tuple[StepLoss, ...], Field(max_length=1000, strict=False)]
    """Global steps with their training loss, thinned to what a small chart shows."""


class StateInfo(Record):
    """What accompanies the tensors that a newcomer downloads or a checkpoint holds."""

    run_id: RunId
    step: Count
    rounds: Annotated[tuple[Digest, ...], Field(max_length=64, strict=False)]  # not strict: a list will do
    """The latest all-reduces that led here, newest last: a peer in doubt learns whether its samples counted."""


RateFactor = Annotated[float, Field(gt=0, le=10)]


class Rewind(Record):
    """The organizer's order that a global step takes over the state of an earlier one."""

    run_id: RunId
    step: Count
    """The one that takes it over, and from which on the order holds."""
    round: Digest
    """Stands where other steps name their all-reduce."""
    checkpoint: Count
    """The step whose state it is."""
    rate: RateFactor
    """Of the learning rate, on top of what held at that step."""
    time: Time


class Receipt(Record):
    """The proof of one finished global step: what its members signed. Whoever missed the step learns of it by this."""

    step: Count
    round: Digest
    time: Time
    seconds: Seconds
    """From the full batch to the averaged gradient."""
    signed: Annotated[tuple[bytes, ...], Field(max_length=4096, strict=False)]
    """The contributions of all members of the all-reduce, each with its signature."""
    rewind: Annotated[bytes, Field(max_length=4096)] = b""
    """Of a step that nobody contributed to: the organizer's signed order, a `Rewind`."""


Absence = Literal["did not come", "fell silent", "left in the middle", "sent nonsense", "was not counted"]
"""Why a peer does not count in a global step, as another peer saw it itself; the last one: that saw nothing amiss, or
is in another row, but it is not on the roll."""
MAX_ABSENT = 16
MAX_MEMBERS = 2048
"""Of an all-reduce."""


class AbsentRow(Record):
    """A row of which nobody counts in a global step."""

    peers: Annotated[int, Field(ge=1, le=2**53)]
    """That gave to the step before."""
    why: Absence


class LeftOut(Record):
    """Peers that were to come to a global step and do not count in it."""

    count: Annotated[int, Field(ge=1, le=2**53)]
    some: Annotated[dict[PeerId, Absence], Field(max_length=MAX_ABSENT)]
    """The first of them, without those of whose rows nobody counts."""
    rows: Annotated[tuple[AbsentRow, ...], Field(max_length=MAX_ROWS, strict=False)] = ()

    @classmethod
    def of(cls, absent: Mapping[str, Absence], rows: Sequence[AbsentRow] = ()) -> Self | None:
        """None if there is nobody."""
        some = dict(itertools.islice(sorted(absent.items()), MAX_ABSENT))
        count = len(absent) + sum(row.peers for row in rows)
        return cls(count=count, some=some, rows=tuple(rows)) if count else None


class Carried(Record):
    """What the line of a peer has carried that gives no samples, in one global step.

    See `swarm/averaging/reduction/carried.py`.
    """

    bytes: Count
    """Of those who gave to the step, to and fro."""
    name: PeerText


class GlobalStep(Record):
    """One finished global step, as the coordinator saw it."""

    step: Count
    round: Digest
    time: Time
    samples: Count
    loss: float | None
    peers: Count
    """Members of the all-reduce, the followers included."""
    seconds: Seconds
    """From the full batch to the averaged gradient."""
    # The coordinator's time since the step before, in four parts that follow each other; none where it missed a step.
    compute: Seconds | None = None
    """Until the batch was full."""
    gather: Seconds | None = None
    """From then until the group stood."""
    average: Seconds | None = None
    apply: Seconds | None = None
    left_out: LeftOut | None = None
    """None if nobody was, as far as the coordinator was there."""
    carried: Annotated[dict[PeerId, Carried], Field(max_length=MAX_MEMBERS)] = {}
    """By whom alone lends its line; of a step that the coordinator missed nothing is known."""


class Refusal(Record):
    """Why a coordinator gives no invitation now."""

    reason: Literal["starting", "over", "full"]
    """It has not joined its own swarm yet; the last global step is done; there are as many volunteers as it wants."""


class Requirement(BaseModel):
    """The part of an invitation that every version of dedloc_kit understands: which version the run needs."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Version
    """The one that the coordinator runs."""

    def check(self) -> None:
        """Raises UserError with what to do if this is not the version that the run needs.

        It names no address to install from: whoever stands between may have written the invitation.
        """
        if self.version != __version__:
            raise UserError(
                f"this run uses dedloc_kit {self.version}, here is {__version__}; run the organizer's newest notebook, "
                "or ask the organizer for the line to install it with, and restart the kernel"
            )


class Invitation(Requirement):
    """What a volunteer needs to join. It holds no secret: a URL or a file may be passed on freely.

    The organizer's signature covers all but the addresses of peers, which may change at any time and anywhere: whoever
    answers there has to prove who it is.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["run", "serving"] = "run"
    """Whether a model is trained or served."""
    run_id: RunId
    organizer: PeerId
    """The coordinator's peer id: whose word counts. It is the hash of its key, so nobody else can speak for it."""
    url: Url | None = None
    """The coordinator's dashboard and API, if it is known; it serves the wheel of its version."""
    wheel: WheelFile | None = None
    """The file of the very dedloc_kit that the coordinator runs, below `/wheel/` of its address, with its digest."""
    peers: tuple[Address, ...] = Field(min_length=1, max_length=64)
    """Addresses of swarm members: the coordinator's, then those of volunteers who agree to that being public."""
    run: dict[str, Any]
    """The run's configuration, or that of the served model; its hash must be the fingerprint in `run_id`."""
    parameters: Count | None = None
    """Of the model, if known: a machine can tell whether it has the memory."""
    key: Signed = ""
    """The organizer's public key."""
    signature: Signed = ""

    @classmethod
    def of(
        cls,
        run: SwarmConfig,
        peers: tuple[str, ...],
        url: str | None = None,
        parameters: int | None = None,
        wheel: str | None = None,
    ) -> Self:
        """Of a coordinator that is the first of these peers; not signed yet."""
        return cls(
            version=__version__,
            kind="run" if isinstance(run, RunConfig) else "serving",
            run_id=run.run_id,
            organizer=peers[0].rpartition("/p2p/")[2],
            peers=peers,
            url=url,
            wheel=wheel,
            run=run.model_dump(mode="json"),
            parameters=parameters,
        )

    @property
    def held_parameters(self) -> int | None:
        """Of what each volunteer holds, if that is known; which stage of a model it takes is found out later."""
        return None if self.run.get("pipeline") else self.parameters

    def signed(self, key: RSAPrivateKey) -> Self:
        """The same with the signature of this key, which must be the organizer's."""
        named = self.model_copy(update={"key": public(key)})
        return named.model_copy(update={"signature": sign(key, named._signed_part())})

    def _signed_part(self) -> bytes:
        values = self.model_dump(mode="json", exclude={"peers", "signature"})
        return b"dedloc_kit invitation " + json.dumps(values, sort_keys=True).encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an invitation from JSON; raises UserError with what is wrong, such as that it was not signed."""
        try:
            # First of all: an invitation of another version may well have keys that are unknown here.
            Requirement.model_validate_json(text).check()
            read = cls.model_validate_json(text)
        except ValidationError as error:
            raise UserError(
                f"this is not an invitation ({describe(error, cls)}); ask the organizer for a new one"
            ) from None
        if not has_signed(read.organizer, read.key, read._signed_part(), read.signature):
            raise UserError(
                "this invitation is not signed by the organizer that it names, so somebody has changed it; "
                "ask the organizer for a new one"
            )
        return read

    def run_config(self) -> RunConfig:
        """The validated configuration; raises UserError if it is not the one that the run id names."""
        if self.kind != "run":
            raise UserError(
                f"{self.run_id} is a model that is served, not trained; to serve it with the others: dedloc serve; "
                "to talk to it: notebooks/chat.ipynb"
            )
        try:
            run = parse_run(self.run)
        except UserError as error:
            raise UserError(
                f"the invitation's run configuration does not fit this version of dedloc_kit ({error}); "
                "install the version that the organizer uses"
            ) from None
        self.check_fingerprint(run)
        return run

    def check_fingerprint(self, swarm: SwarmConfig) -> None:
        """Raises UserError if this configuration is not the one that the run id names."""
        if swarm.run_id != self.run_id:
            raise UserError(
                f"wrong fingerprint: the invitation says {self.run_id}, its configuration is {swarm.run_id}; "
                "ask the organizer for a new invitation and do not edit it"
            )
