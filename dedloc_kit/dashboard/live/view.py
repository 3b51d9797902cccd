"""What is known of a run at this moment, from the coordinator's events and the ledger."""

import math
import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard import schemas
from dedloc_kit.dashboard.experts.schemas import Experts, experts
from dedloc_kit.dashboard.live.ledger_cache import Recorded
from dedloc_kit.dashboard.live.milestones import Milestone, milestones
from dedloc_kit.dashboard.live.planned import planned
from dedloc_kit.dashboard.live.unreadable_data import left_out
from dedloc_kit.dashboard.live.waiting import advice
from dedloc_kit.dashboard.pipeline.schemas import Pipeline, pipeline
from dedloc_kit.display.human import without_hosts
from dedloc_kit.errors import UserError
from dedloc_kit.events import (
    AnyEvent,
    ExpertsState,
    Failed,
    Joined,
    Left,
    Peers,
    PeerSeen,
    PipelineState,
    Pushed,
    State,
    Warned,
)
from dedloc_kit.ledger import Ledger, Person, Visit
from dedloc_kit.ledger.schema import DAY_SECONDS, MAX_SAMPLES
from dedloc_kit.machine.ports import only_this_machine
from dedloc_kit.records.contributors import Standing
from dedloc_kit.records.evaluation import Drawing, Neighbours, Picture
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.plan import read_plan
from dedloc_kit.records.steps import GlobalStep, LeftOut

SILENCE_SECONDS = 60.0
"""A coordinator that has joined and then says nothing for so long is taken for lost."""
REVISION_SECONDS = 3.0
"""Viewers are told at most so often that lists have news: each of them then fetches one."""
SHARES = 24
MAX_PEERS = 1_000
STEP_POINTS, EVALUATION_POINTS = 1_500, 500
"""A curve with more points than a screen has pixels is thinned to these."""
LOSS_POINTS, ROUND_POINTS = 300, 300
"""For small charts."""
PERSON_VISITS = 100
LENDERS, HOSTS = 100, 100
MOMENTS = 5
LEFT_OUT_STEPS = 20
SENT_AWAY = 50
NOTICES, NOTICE_LENGTH = 5, 300


_NO_ROUNDS = schemas.Rounds(
    rounds=[],
    left_out=[],
    left_out_count=0,
    failed=[],
    failed_count=0,
    rejected_count=0,
    rejected=[],
    sent_away=[],
    sent_away_count=0,
    sent_away_now=0,
)


class RunView:
    """Takes events from one thread and answers questions from any other."""

    def __init__(self, run: RunConfig, ledger: Path) -> None:
        self._run = run
        self._total_steps = run.optimizer.total_steps
        self._recorded = Recorded(ledger)
        self._plan = read_plan(ledger.parent, run.run_id)
        self._lock = threading.Lock()  # guards what events change; the ledger has its own
        self._peers: tuple[PeerSeen, ...] = ()
        self._pipeline: PipelineState | None = None
        self._experts: ExpertsState | None = None
        self._joined = False
        self._here_alone = False  # nobody else can join
        self._gone = False
        self._wanted = Peers(peers=())  # what the organizer wants, as the coordinator said last
        self._heard = 0.0  # monotonic time of the last event
        self._events = 0
        self._message = ""
        self._standing: dict[str, schemas.LogLine] = {}  # notices that hold as long as what they tell of
        self._notices: deque[schemas.LogLine] = deque(maxlen=NOTICES)
        self._checkpoint: schemas.Checkpoint | None = None
        self._revision = 0
        self._revised: tuple[tuple[int, int] | None, float] = (
            None,
            -math.inf,
        )  # the ledger's version then, and the monotonic time
        self._peers_changed = False
        self._listed: tuple[list[Person], set[str], list[schemas.PersonRow], int] = ([], set(), [], 0)

    def hear(self, event: AnyEvent) -> None:
        """Learn from one event of the coordinator."""
        with self._lock:
            self._heard = time.monotonic()
            self._events += 1
            before = self._peers, self._wanted.countries, self._pipeline, self._experts
            match event:
                case State(text=text):
                    if self._gone:  # a new coordinator has been started
                        self._joined = self._gone = False
                    self._message = without_hosts(text)
                case Joined(addresses=addresses):
                    self._joined, self._gone = True, False
                    self._here_alone = bool(addresses) and only_this_machine(addresses)
                case Peers(peers=peers):
                    self._joined, self._gone, self._peers, self._wanted = True, False, peers, event
                    self._tell("data", left_out(peers))
                case PipelineState():
                    self._pipeline = event
                case ExpertsState():
                    self._experts = event
                case Pushed(step=step, url=url):
                    self._checkpoint = schemas.Checkpoint(step=step, url=url)
                case Warned(text=text):
                    self._notices.append(schemas.LogLine(time=time.time(), text=without_hosts(text)[:NOTICE_LENGTH]))
                case Failed(text=text):
                    self._gone, self._peers, self._message = True, (), text
                case Left(step=step):
                    self._gone, self._peers, self._message = True, (), f"the coordinator left at global step {step}"
            self._peers_changed |= (self._peers, self._wanted.countries, self._pipeline, self._experts) != before

    def _tell(self, subject: str, text: str) -> None:
        """It stays one notice of this subject, of the time when its words changed; none if there is nothing to say."""
        if not text:
            self._standing.pop(subject, None)
        elif subject not in self._standing or text != self._standing[subject].text:
            self._standing[subject] = schemas.LogLine(time=time.time(), text=text)

    def version(self) -> Hashable:
        """Something else than before as soon as an answer may differ."""
        recorded = self._recorded.version()
        with self._lock:
            now = time.monotonic()
            news = self._peers_changed or recorded != self._revised[0]
            if news and now - self._revised[1] >= REVISION_SECONDS:
                # It grows over a restart of the dashboard too.
                self._revision = max(self._revision + 1, int(time.time()))
                self._revised, self._peers_changed = (recorded, now), False
            return recorded, self._events, self._revision, self._lost(), self._recorded.problem

    def state(self) -> schemas.RunState:
        """The run in a glance."""
        known, recent = self._recorded.summary(), self._recorded.recent()
        self.version()  # brings the revision up to date
        with self._lock:
            # On one machine no line is slow, whatever takes its time.
            self._tell("lines", "" if self._here_alone else advice(self._run, recent, self._peers))
            problem = self._recorded.problem or (None if self._lost() else self._wanted.problem) or None
            return schemas.RunState(
                **known, **self._now(known), **_checked(self._wanted.checks), problem=problem, revision=self._revision
            )

    def volunteers(self, without: str = "") -> int:
        """How many train now, besides the one with this peer id."""
        with self._lock:
            return sum(not peer.follower and peer.peer != without for peer in self._peers)

    def history(self, after: int = 0, evaluations_after: int | None = None) -> schemas.History:
        """The curves after a global step, thinned to what a chart can show; the newest point is always there."""

        def curves(ledger: Ledger) -> schemas.History:
            last = ledger.last_step()
            steps = ledger.steps(after, every=max(1, math.ceil((last - after) / (STEP_POINTS - 1))))
            since = (after or -1) if evaluations_after is None else evaluations_after
            return schemas.History(
                after=after,
                last_step=last,
                steps=[schemas.StepPoint(**dict(step)) for step in steps],
                evaluations=[
                    schemas.EvaluationPoint(**vars(point))
                    for point in ledger.evaluations(since, most=EVALUATION_POINTS)
                ],
            )

        nothing = schemas.History(after=after, last_step=0, steps=[], evaluations=[])
        return self._recorded.read(curves) or nothing

    def samples(self) -> schemas.Samples:
        """What the model did with a few held-out samples on its way."""
        done = self._recorded.read(lambda ledger: ledger.samples_on_the_way(MOMENTS)) or []
        named = {
            picture
            for _, samples in done
            for sample in samples
            if isinstance(sample, Drawing | Neighbours)
            for picture in sample.pictures
        }
        here = self._recorded.read(Ledger.pictures) or set()
        return schemas.Samples(
            moments=[schemas.Moment(step=step, samples=samples) for step, samples in done],
            pictures=sorted(named & here),
        )

    def picture(self, digest: str) -> Picture:
        """One that samples name; raises UserError if it is not here."""
        found = self._recorded.read(lambda ledger: ledger.picture(digest))
        if found is None:
            raise UserError("there is no such picture here")
        return found

    # People

    def people(self, sort: schemas.Sort, search: str, offset: int, limit: int) -> schemas.People:
        """A part of the list of everyone who gave something."""
        rows, total = self._people()
        wanted = search.casefold()
        found = [row for row in rows if wanted in f"{row.name}\n{row.team}\n{row.peer}".casefold()]
        if sort == "recent":
            found.sort(key=lambda row: -row.recent)
        elif sort == "name":
            found.sort(key=lambda row: row.name.casefold())
        return schemas.People(total=len(found), samples_total=total, people=found[offset : offset + limit])

    def person(self, peer: str) -> schemas.PersonPage:
        """Everything about one of them; raises UserError if this peer has given nothing."""
        person = next((row for row in self._people()[0] if row.peer == peer), None) or self._giver(peer)
        if person is None:
            raise UserError("nobody with this peer id has given anything to this run yet")
        return schemas.PersonPage(
            person=person,
            days=[
                schemas.Day(day=f"{datetime.fromtimestamp(day * DAY_SECONDS, UTC):%Y-%m-%d}", samples=samples)
                for day, samples in self._recorded.read(lambda ledger: ledger.days_of(peer)) or []
            ],
            visits=[
                schemas.PersonVisit(**self._visit(visit))
                for visit in self._recorded.read(lambda ledger: ledger.visits_of(peer, PERSON_VISITS)) or []
            ],
            losses=self._recorded.read(lambda ledger: ledger.losses_of(peer, LOSS_POINTS)) or [],
        )

    def teams(self) -> schemas.Teams:
        """All teams, most samples first."""
        members: dict[str, list[Person]] = {}
        for person in self._recorded.people():
            if person.team:
                members.setdefault(person.team, []).append(person)
        teams = [
            schemas.Team(
                team=team,
                samples=min(MAX_SAMPLES, sum(person.samples for person in people)),
                recent=sum(person.recent for person in people),
                seconds=sum(person.seconds for person in people),
                members=len(people),
            )
            for team, people in members.items()
        ]
        return schemas.Teams(teams=sorted(teams, key=lambda team: (-team.samples, team.team)))

    def lenders(self) -> schemas.Lenders:
        """Who lent a line, the most bytes first."""
        found = self._recorded.read(lambda ledger: ledger.lenders(LENDERS)) or []
        with self._lock:
            here = {peer.peer for peer in self._peers if peer.follower}
        return schemas.Lenders(lenders=[schemas.Lender(**vars(each), active=each.peer in here) for each in found])

    def hosts(self) -> schemas.Hosts:
        """Who hosted experts, the most tokens first."""
        found = self._recorded.read(lambda ledger: ledger.hosts(HOSTS)) or []
        with self._lock:
            seen = self._seen_experts()
            here = set() if seen is None else {host.peer for host in seen.hosts}
        return schemas.Hosts(hosts=[schemas.Host(**vars(each), active=each.peer in here) for each in found])

    def standing(self, peer: str, after: int) -> Standing:
        """Where a peer stands, with the losses after a global step."""
        people, total = self._people()
        mine = next((person for person in people if person.peer == peer), None)

        def curve(ledger: Ledger) -> tuple[tuple[int, float], ...]:
            steps = ledger.steps(after, every=max(1, (ledger.last_step() - after) // LOSS_POINTS))
            return tuple((step.step, step.loss) for step in steps if step.loss is not None)

        return Standing(
            samples=mine.samples if mine else 0,
            samples_total=total,
            rank=mine.rank if mine else 0,
            contributors=len(people),
            volunteers=self.volunteers(),
            losses=self._recorded.read(curve) or (),
        )

    # The swarm

    def peers(self, offset: int = 0, limit: int = MAX_PEERS) -> schemas.Peers:
        """A part of who is in the swarm now: volunteers first, those with the newest parameters before the others."""
        since = self._recorded.read(Ledger.here) or {}
        last = self._recorded.summary()["step"]
        with self._lock:
            peers, step = self._peers, self._newest_step(last)
        ordered = sorted(peers, key=lambda p: (p.follower, p.step != step, p.name.casefold(), p.peer))
        return schemas.Peers(
            step=step,
            total=len(peers),
            peers=[
                schemas.Peer(
                    **peer.model_dump(exclude={"client_mode", "samples_per_second", "skipped"}),
                    mode="client" if peer.client_mode else "full",
                    lag=step - peer.step,
                    samples_per_second=_finite(peer.samples_per_second),
                    since=since.get(peer.peer),
                    current=peer.step == step,
                )
                for peer in ordered[offset : offset + min(limit, MAX_PEERS)]
            ],
        )

    def regions(self) -> schemas.Regions:
        """How many volunteers are in which country; nothing while the coordinator, which sees them, is away."""
        with self._lock:
            countries = None if self._lost() else self._wanted.countries
            title = self._wanted.countries_title
            volunteers = sum(not peer.follower for peer in self._peers)
        if countries is None:
            return schemas.Regions(on=False, regions=[], elsewhere=0, title="")
        ordered = sorted(countries.items(), key=lambda item: (-item[1], item[0]))
        return schemas.Regions(
            on=True,
            regions=[schemas.Region(country=country, volunteers=number) for country, number in ordered],
            elsewhere=volunteers - sum(countries.values()),
            title=title,
        )

    def pipeline(self) -> Pipeline:
        """The stages that the model is cut into; raises UserError if it is whole."""
        if self._run.pipeline is None:
            raise UserError("the model of this run is not cut into stages")
        with self._lock:
            return pipeline(self._run.pipeline.count, self._seen_pipeline())

    def experts(self) -> Experts:
        """The experts that volunteers host; raises UserError if the model has none."""
        if self._run.experts is None:
            raise UserError("the model of this run has no experts")
        with self._lock:
            return experts(self._run.experts, self._seen_experts())

    def rounds(self, after: int) -> schemas.Rounds:
        """The rounds after a global step, thinned, and what went wrong."""

        def found(ledger: Ledger) -> schemas.Rounds:
            steps = ledger.steps(after, every=max(1, math.ceil((ledger.last_step() - after) / (ROUND_POINTS - 1))))
            failed_count, failed = ledger.troubles("failed")
            rejected_count, rejected = ledger.troubles("rejected")
            sent_away_count, sent_away = ledger.convictions(SENT_AWAY)
            left_out_count, without = ledger.left_out(LEFT_OUT_STEPS)
            names = ledger.names({peer for step in without if step.left_out for peer in step.left_out.some})
            return schemas.Rounds(
                rounds=[_round_seen(step) for step in steps],
                left_out=[_left_out(step, step.left_out, names) for step in without if step.left_out],
                left_out_count=left_out_count,
                failed=[schemas.FailedRound(**asdict(trouble)) for trouble in failed],
                failed_count=failed_count,
                rejected_count=rejected_count,
                rejected=[schemas.LogLine(time=trouble.time, text=trouble.text) for trouble in rejected],
                sent_away=[schemas.SentAway(**asdict(conviction)) for conviction in sent_away],
                sent_away_count=sent_away_count,
                sent_away_now=len(ledger.sent_away()),
            )

        return self._recorded.read(found) or _NO_ROUNDS

    def timeline(self, limit: int) -> schemas.Timeline:
        """Who came and went, newest first."""
        visits = self._recorded.read(lambda ledger: ledger.visits(limit)) or []
        return schemas.Timeline(visits=[schemas.TimelineVisit(**self._visit(visit)) for visit in visits])

    def milestones(self) -> list[Milestone]:
        """What has been reached so far, oldest first."""
        return self._recorded.read(lambda ledger: milestones(ledger, self._total_steps)) or []

    def count_to(self, steps: int) -> None:
        """Show these as the steps that the run takes, in place of those of its configuration."""
        self._total_steps = steps

    def close(self) -> None:
        """Close the ledger."""
        self._recorded.close()

    def _people(self) -> tuple[list[schemas.PersonRow], int]:
        """Everyone with rank and share, most samples first, and the samples of all."""
        people, total = self._recorded.people(), self._recorded.summary()["samples_total"]
        with self._lock:
            active = {peer.peer for peer in self._peers if not peer.follower}
            if people is not self._listed[0] or active != self._listed[1]:
                away = self._recorded.read(Ledger.sent_away) or set()
                # Made anew only then: every volunteer asks for its standing, which is found in these.
                rows = [
                    schemas.PersonRow(
                        **vars(p),
                        share=p.samples / max(1, total),
                        rank=rank,
                        active=p.peer in active,
                        sent_away=p.peer in away,
                    )
                    for rank, p in enumerate(people, start=1)
                ]
                self._listed = people, active, rows, total
            return self._listed[2:]

    def _giver(self, peer: str) -> schemas.PersonRow | None:
        """Who has no samples to its credit, but has given something else."""
        found = self._recorded.read(lambda ledger: ledger.giver(peer))
        if found is None:
            return None
        with self._lock:
            active = any(here.peer == peer for here in self._peers)
        return schemas.PersonRow(**vars(found), share=0.0, rank=0, active=active, sent_away=False)

    def _visit(self, visit: Visit) -> dict[str, Any]:
        """Nobody knows who is still here while the coordinator is away."""
        with self._lock:
            here = visit.here and not self._lost()
        return {**vars(visit), "until": None if here else visit.until}

    def _lost(self) -> bool:
        return self._gone or (self._joined and time.monotonic() - self._heard > SILENCE_SECONDS)

    def _seen_pipeline(self) -> PipelineState | None:
        return None if self._lost() else self._pipeline

    def _seen_experts(self) -> ExpertsState | None:
        return None if self._lost() else self._experts

    def _newest_step(self, last: int) -> int:
        """The step that the swarm is at; a peer that is behind cannot give to its batch."""
        return max([last, *(peer.step for peer in self._peers)])

    def _now(self, known: dict[str, Any]) -> dict[str, Any]:
        """The part of the state that lives in events."""
        step = self._newest_step(known["step"])
        volunteers = [peer for peer in self._peers if not peer.follower]
        giving = sorted((peer for peer in volunteers if peer.step == step), key=lambda p: (-p.samples, p.peer))
        samples = sum(peer.samples for peer in giving)
        # Who is heard to be a step behind has probably just not told of the last one.
        training = [peer for peer in volunteers if peer.step >= step - 1]
        rate = sum(_finite(peer.samples_per_second) or 0.0 for peer in training)
        status = self._status(known["step"], len(volunteers))
        steps_left, pace = self._last_step() - known["step"], known["seconds_per_step"]
        return {
            "run_id": self._run.run_id,
            "name": self._run.name,
            "about": self._run.about,
            "access": self._run.access.who,
            "status": status,
            "message": self._message[:NOTICE_LENGTH],
            "notices": [*self._notices, *self._standing.values()],
            "stages": None if self._run.pipeline is None else self._run.pipeline.count,
            "bottleneck": None if (seen := self._seen_pipeline()) is None else seen.bottleneck,
            "experts": None if self._run.experts is None else self._run.experts.count,
            "experts_held": None if (held := self._seen_experts()) is None else held.held,
            "total_steps": self._total_steps,
            "decay": self._decay(known["step"]),
            "global_batch": self._run.global_batch,
            "eta_seconds": max(0, self._run.global_batch - samples) / rate if rate > 0 else None,
            "run_eta_seconds": pace * steps_left if pace is not None and status == "training" else None,
            "plan": self._plan and planned(self._plan, known["step"], pace, len(volunteers)),
            "samples_per_second": rate,
            "batch": {
                "step": step + 1,
                "samples": samples,
                "shares": [{"peer": p.peer, "name": p.name, "samples": p.samples} for p in giving[:SHARES]],
                "others": {"peers": len(giving[SHARES:]), "samples": sum(peer.samples for peer in giving[SHARES:])},
            },
            "volunteers": len(volunteers),
            "peer_count": len(self._peers),
            "announcement": self._wanted.announcement,
            "checkpoint": self._checkpoint,
        }

    def _decay(self, step: int) -> schemas.Decaying | None:
        decay = self._wanted.decay
        if decay is None:
            return None
        return schemas.Decaying(step=min(max(0, step + 1 - decay.start), decay.steps), steps=decay.steps)

    def _last_step(self) -> int:
        return self._total_steps if self._wanted.last_step is None else self._wanted.last_step

    def _status(self, step: int, volunteers: int) -> schemas.Status:
        if step >= self._last_step():
            return "finished"
        if self._lost():
            return "coordinator lost"
        if not self._joined:
            return "starting"
        if self._wanted.paused:
            return "paused"
        return "training" if volunteers else "waiting for volunteers"


def _checked(checks: Checks | None) -> dict[str, Any]:
    return {"checks": None if checks is None else checks.told(), "audits": checks}


def _round_seen(step: GlobalStep) -> schemas.RoundSeen:
    """Where the coordinator was not there it saw nobody missing, and nobody come."""
    nobody = None if step.average is None else 0
    left_out = nobody if step.left_out is None else step.left_out.count
    return schemas.RoundSeen(**dict(step) | {"left_out": left_out})


def _left_out(step: GlobalStep, left_out: LeftOut, names: Mapping[str, str]) -> schemas.LeftOut:
    some = [schemas.AbsentPeer(peer=peer, name=names.get(peer), why=why) for peer, why in left_out.some.items()]
    return schemas.LeftOut(step=step.step, time=step.time, count=left_out.count, some=some)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
