"""What the API answers, and how answers are written. Times are seconds since 1970 by the coordinator's clock."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from dedloc_kit.records.evaluation import PictureDigest, Sample
from dedloc_kit.records.orders import Announcement, Checks
from dedloc_kit.records.steps import Absence

Status = Literal["starting", "waiting for volunteers", "training", "paused", "coordinator lost", "finished"]


class Answer(BaseModel):
    # Numbers that are not finite become null: JSON has no word for them.
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="null")


class Message(Answer):
    message: str
    """What went wrong, for a person."""


class LogLine(Answer):
    time: float
    text: str


class EvaluationPoint(Answer):
    step: int
    loss: float
    time: float
    metrics: dict[str, float]
    """Shares of the whole by name, such as `masked accuracy`."""


class Evaluations(Answer):
    first: EvaluationPoint
    last: EvaluationPoint


class Start(Answer):
    """The model that the run goes on from, as it was published, on the run's held-out data."""

    model: str
    loss: float
    """In the run's tokens, as that of its evaluations."""
    better_since: int | None
    """The global step of the evaluation since which the run is below it; null while it is not."""


class SuitePoint(Answer):
    step: int
    mean: float
    spread: float | None
    """The standard error of the mean."""


class Reference(Answer):
    """A published model, by the same suite."""

    model: str
    mean: float
    spread: float | None


class Suite(Answer):
    """What the run's model scores by a standard suite of questions."""

    metric: str
    """In words, with the task: `accuracy of belebele_ukr_Cyrl` is a share of one, as all but `bits per byte ...` and
    `perplexity ...`, of which less is better."""
    questions: int
    first: SuitePoint | None
    """The earliest score that is known; null until there is one."""
    last: SuitePoint | None
    references: list[Reference]


class Share(Answer):
    peer: str
    name: str
    samples: int


class Others(Answer):
    peers: int
    samples: int


class Batch(Answer):
    """The global batch that is being filled."""

    step: int
    """The global step that it will lead to."""
    samples: int
    shares: list[Share]
    """The largest ones, largest first."""
    others: Others
    """Those that are not among them."""


class Checkpoint(Answer):
    """The newest training state that others can get."""

    step: int
    url: str | None


class Decaying(Answer):
    """The learning rate falls to its end, by the organizer's order; then the run is over."""

    step: int
    """How many of its global steps are done."""
    steps: int


class Planned(Answer):
    """What `dedloc check` predicted, beside what is."""

    text: str
    """The comparison in a sentence."""
    step_seconds: float
    days: float
    volunteers: int
    loss: tuple[float, float] | None
    """Lowest and highest training loss to expect at the end."""


class RunState(Answer):
    """The run in a glance; small, whatever the number of peers."""

    run_id: str
    name: str
    about: str
    access: Literal["open", "invite", "hub"]
    """Who may join: all, whoever has a personal code, or accounts of the Hugging Face Hub."""
    status: Status
    message: str
    """What the coordinator does, in words."""
    notices: list[LogLine]
    problem: str | None
    """What is wrong: why what was recorded is not shown, or that the training has diverged; null if nothing is."""
    checks: str | None = None
    """What has come of checking the volunteers' work, in one line; null where nothing is checked."""
    audits: Checks | None = None
    """The same in numbers."""
    refusal: Literal["starting", "over", "full"] | None = None
    """Why nobody can join now."""
    organizer: str | None = None
    """The organizer's peer id, with which an invitation is checked; null until somebody can join."""
    wheel: str | None = None
    """The file of the kit to install, below `/wheel/`, with its digest; null if it is not to be had here."""
    stages: int | None = None
    """That the model is cut into; null where it is whole."""
    bottleneck: str | None = None
    """Which stage limits the run, in a sentence; null while that is not known."""
    experts: int | None = None
    """Of all layers; null where the model has none."""
    experts_held: str | None = None
    """How well they are held, in a sentence; null while that is not known."""
    total_steps: int
    decay: Decaying | None = None
    """Once the learning rate falls."""
    global_batch: int
    step: int
    samples_total: int
    loss: float | None
    evaluation: Evaluations | None
    start: Start | None = None
    """Of a run that goes on from a model, once that was measured."""
    suites: list[Suite] = []
    """By name; empty where the coordinator runs none."""
    seconds_per_step: float | None
    last_step_time: float | None
    eta_seconds: float | None
    """Until the next global step."""
    run_eta_seconds: float | None
    """Until the last one, if the run goes on at its usual pace."""
    plan: Planned | None = None
    """How the run stands against the organizer's prediction, after its first hundred steps; null before, or without."""
    samples_per_second: float
    device_seconds: float
    """The time that all volunteers together were here."""
    volunteers: int
    """Who train now."""
    peer_count: int
    """Volunteers and followers."""
    contributor_count: int
    batch: Batch
    announcement: Announcement | None
    checkpoint: Checkpoint | None
    revision: int
    """Grows when the lists of people, peers or rounds have news, at most every few seconds."""


class Run(Answer):
    run_id: str
    fingerprint: str
    run: dict[str, Any]
    """The run configuration."""


class StepPoint(Answer):
    step: int
    time: float
    samples: int
    loss: float | None
    peers: int
    seconds: float


class History(Answer):
    """The curves after a global step, thinned to what a chart can show."""

    after: int
    last_step: int
    steps: list[StepPoint]
    evaluations: list[EvaluationPoint]


class Moment(Answer):
    """What the model of one global step did with a few held-out samples."""

    step: int
    samples: list[Sample]


class Samples(Answer):
    moments: list[Moment]
    """The first, the newest and some in between, oldest first."""
    pictures: list[PictureDigest]
    """Those of the samples' pictures that are here, at `/api/pictures/{digest}.webp`. A mirror lacks some."""


class PersonRow(Answer):
    peer: str
    name: str
    team: str
    """Empty for who belongs to none."""
    samples: int
    recent: float
    """Samples a day, weighted exponentially with a half-life of a week (BOINC's recent average credit)."""
    share: float
    """Of all samples, 0 to 1."""
    rank: int
    """By samples, 1 for who gave most."""
    steps: int
    """Global steps that it gave to."""
    seconds: float
    """How long it was here."""
    devices: list[str]
    sessions: int
    first_seen: float
    last_seen: float
    active: bool
    """Trains now."""
    sent_away: bool
    """Was found to cheat, and is away."""
    carried: int
    """Bytes over a line that it lent; no samples, and never added to any, nor are the tokens."""
    answered: int
    """Tokens by experts that it hosted, as those who train confirm them."""


class People(Answer):
    total: int
    """How many there are that fit the search."""
    samples_total: int
    people: list[PersonRow]


class Day(Answer):
    day: str
    """Such as `2026-11-22`, UTC."""
    samples: int


class PersonVisit(Answer):
    since: float
    until: float | None
    """Null while it is here."""
    device: str
    samples: int


class PersonPage(Answer):
    person: PersonRow
    days: list[Day]
    """Days on which it gave something, oldest first."""
    visits: list[PersonVisit]
    """The newest ones, newest first."""
    losses: list[tuple[int, float]]
    """Global steps and the loss on what this peer gave to them, thinned."""


class Team(Answer):
    team: str
    samples: int
    recent: float
    seconds: float
    members: int


class Teams(Answer):
    teams: list[Team]


class Lender(Answer):
    """Who lent a line: a gift of its own kind, which is never added to samples."""

    peer: str
    name: str
    bytes: int
    """Carried for those who gave samples, to and fro."""
    seconds: float
    steps: int
    first_seen: float
    last_seen: float
    active: bool


class Lenders(Answer):
    lenders: list[Lender]


class Host(Answer):
    """Who hosted experts: a gift of its own kind, which is never added to samples."""

    peer: str
    name: str
    tokens: int
    """That its experts answered, once for each of them, as those who train confirm."""
    first_seen: float
    last_seen: float
    active: bool


class Hosts(Answer):
    hosts: list[Host]


class Peer(Answer):
    peer: str
    name: str
    team: str
    device: str
    mode: Literal["full", "client"]
    """`client`: it makes outgoing connections only."""
    follower: bool
    """It trains nothing and lends its line."""
    step: int
    lag: int
    """Global steps that it is behind."""
    samples: int
    """Toward the next global step."""
    samples_per_second: float | None
    upload: float | None
    """Bytes per second, as recent rounds showed it."""
    since: float | None
    current: bool
    """It holds the newest parameters, so its samples fill the current batch."""


class Peers(Answer):
    step: int
    total: int
    """How many there are."""
    peers: list[Peer]


class Region(Answer):
    country: str
    """Its ISO 3166 code of two letters."""
    volunteers: int


class Regions(Answer):
    """From which countries volunteers take part now, if the organizer wants it shown."""

    on: bool
    regions: list[Region]
    """Most volunteers first."""
    elsewhere: int
    """Volunteers whose country is not known."""
    title: str
    """What the database of countries is called by its makers."""


class RoundSeen(Answer):
    """A global step as the coordinator saw it; seconds, null where it was not there."""

    step: int
    time: float
    samples: int
    peers: int
    """Members of the all-reduce, followers included."""
    seconds: float
    """From the full batch to the averaged gradient."""
    compute: float | None
    """From the step before until the batch was full."""
    gather: float | None
    """From then until the group stood."""
    average: float | None
    apply: float | None
    left_out: int | None
    """Peers that were to come and do not count in it."""


class AbsentPeer(Answer):
    peer: str
    name: str | None
    """Null where it is not known any more."""
    why: Absence
    """As the coordinator saw it."""


class LeftOut(Answer):
    """A global step that was taken without some who were to come."""

    step: int
    time: float
    count: int
    some: list[AbsentPeer]
    """Not all where there are many."""


class FailedRound(Answer):
    time: float
    step: int | None
    text: str


class SentAway(Answer):
    """Somebody was found to cheat, by computing its work again."""

    peer: str
    name: str
    time: float
    why: str
    lifted: float | None
    """When the organizer let it in again; null while it is away."""
    last_passed: int | None
    """The global step up to which its work was found to be right, 0 if none of it was: what it gave later is not to its
    credit while it is away. Null if that is not known; then all of it is."""


class Rounds(Answer):
    rounds: list[RoundSeen]
    left_out: list[LeftOut]
    """The newest ones, newest first."""
    left_out_count: int
    """How often a peer was left out of a global step."""
    failed: list[FailedRound]
    """The newest ones, newest first."""
    failed_count: int
    rejected_count: int
    rejected: list[LogLine]
    """Records from the network that were not taken; the newest ones, newest first."""
    sent_away: list[SentAway]
    """The newest ones, newest first."""
    sent_away_count: int
    sent_away_now: int
    """Whose conviction holds."""


class TimelineVisit(Answer):
    peer: str
    name: str
    device: str
    since: float
    until: float | None
    """Null while it is here."""


class Timeline(Answer):
    visits: list[TimelineVisit]
    """Newest first."""


Sort = Literal["total", "recent", "name"]
Text = Annotated[str, Field(max_length=64)]


def json_answer(values: Any, status: int = 200) -> Response:
    """Plain values as JSON; nothing that JSON has no word for, such as infinity."""
    return Response(json.dumps(values, allow_nan=False), status, media_type="application/json")


def message(text: str, status: int) -> Response:
    """Why there is no other answer, in one sentence."""
    return json_answer({"message": text}, status)
