"""A small world to audit: true gradients are vectors that follow from a microbatch's name, and projections are real."""

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from dedloc_kit.swarm.audits.projections import HONEST, project
from dedloc_kit.swarm.audits.proofs import Contradiction, Proven, Shown
from dedloc_kit.swarm.audits.questions import Found, Proof, Prove, Recompute
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.trust.commitments import Opening
from dedloc_kit.swarm.trust.pledge import Pledged, Window, Work

VALUES = 200
NOTHING_LOST = b"\x00" * 31 + b"\x01"
_OPENING = Opening(number=0, count=1, path=())


def pledged(author: str, step: int, *, session: str = "ab", before: bytes = NOTHING_LOST, **values: object) -> Pledged:
    """A contribution whose residuals are named by its author and step."""
    given = {
        "run_id": "toy-0123456789abcdef",
        "step": step,
        "session": session,
        "samples": 40,
        "session_samples": 40,
        "loss": 1.0,
        "name": author,
        "time": 1.0,
        "group": "cd",
        "parts": b"p" * 32,
        "before": before,
        "after": root(author, step),
        "work": b"w" * 32,
        "microbatches": 10,
    }
    return Pledged.parse(given | values)


def root(author: str, step: int) -> bytes:
    return hashlib.sha256(f"{author} {step}".encode()).digest()


def gradient(author: str, session: str, line: Work) -> Tensor:
    """The true one of a microbatch; all have something in common."""
    seed = hashlib.sha256(f"{author} {session}".encode() + line.content).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "big"))
    return 0.5 + torch.randn(VALUES, generator=generator)


def weight(line: Work) -> float:
    """What its loss is over: unlike for microbatches of as many samples."""
    return float(10 + line.position * 7 % 50)


def mean_of(gradients: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The mean over all that they are over."""
    total: Tensor = sum((each * share for each, share in zip(gradients, weights, strict=True)), torch.zeros(VALUES))
    return total / sum(weights)


@dataclass
class World:
    """Who is here, and what each does; whoever is in none of the sets is honest.

    :ivar noise: of each honest computation, relative to its gradient
    """

    peers: Mapping[str, float] = field(default_factory=lambda: {"alice": 1.0, "bob": 1.0, "carol": 1.0, "dave": 0.5})
    microbatches: int = 10
    noise: float = HONEST
    mute: frozenset[str] = frozenset()
    """They show nothing and compute nothing for others."""
    sends_other: frozenset[str] = frozenset()
    """They send what is not the gradient of their work, and account for it truly."""
    covers_up: frozenset[str] = frozenset()
    """They do the same, and account for one microbatch so that it adds up."""
    inflates: frozenset[str] = frozenset()
    """They do the same, and say that the whole gradient was so large that all of it is rounding."""
    repeats: frozenset[str] = frozenset()
    """They bring the work of the step before again, and its true gradient."""
    tilts: frozenset[str] = frozenset()
    """They say that their first microbatches are over much more than they are, and send what follows from that."""
    belittles: frozenset[str] = frozenset()
    """They say of the work of others that its first microbatches are over nothing."""
    contradicts: frozenset[str] = frozenset()
    accuses: frozenset[str] = frozenset()
    """They compute the work of others wrongly."""
    spoils: frozenset[str] = frozenset()
    """They reduce, and make something else of what was sent."""
    averages: bool = False
    """It is known who reduced, and what: alice's and bob's, with twice her weight."""
    unable: bool = False
    """Nobody has the parameters any more, the organizer neither."""
    seconds: float = 0.0
    """That a computation takes."""

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, Recompute]] = []
        self.proofs: list[str] = []
        self.made_by: list[str] = []
        self.confirmed: dict[str, int] = {}
        self._random, self._lock = Random(7), threading.Lock()

    def lines(self, step: int, author: str = "") -> list[Work]:
        block = 0 if author in self.repeats else step
        return [Work(block, None, 4 * number, 4, step - 1) for number in range(self.microbatches)]

    # As an Inquiry

    def confirm(self, peer: str, samples: int) -> None:
        self.confirmed[peer] = samples

    def here(self) -> Mapping[str, float]:
        return self.peers

    def prove(self, peer: str, question: Prove) -> Shown:
        self.proofs.append(peer)
        if peer in self.mute:
            raise NoAnswer(peer)
        return Shown(Proof(begin=0, end=VALUES, part=_OPENING, before=_OPENING, after=_OPENING), b"", b"", b"", b"")

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        author = pledged.name
        if author in self.contradicts:
            raise Contradiction("its work overlaps")
        work = self.lines(pledged.step, author)
        gradients = [self._noisy(gradient(author, pledged.session, line)) for line in work]
        implied = mean_of(gradients, [self._weight(author, author, line) for line in work])
        if author in self.sends_other | self.covers_up | self.inflates:
            implied = -implied
        return Proven(Window(0, 0, VALUES), implied, work)

    def work(self, peer: str, pledged: Pledged) -> list[Work]:
        if peer in self.mute:
            raise NoAnswer(peer)
        return self.lines(pledged.step, peer)

    def recompute(self, peer: str, question: Recompute) -> Found:
        time.sleep(self.seconds)
        with self._lock:
            self.asked.append((peer, question))
        if peer in self.mute or self.unable:
            return Found()
        found = [self._noisy(each) for each in self._true(question)]
        if peer != question.author and peer in self.accuses:
            found = [-each for each in found]
        lines = Work.read_all(question.work)
        if peer == question.author and peer in self.covers_up and lines[0].position == 0:
            work = self.lines(self.step_of(question))
            every = mean_of([gradient(peer, question.session, line) for line in work], [weight(each) for each in work])
            found[0] = found[0] - 2 * every * sum(map(weight, work)) / weight(lines[0])
        norms = [float(each.norm()) for each in found]
        if peer == question.author and peer in self.inflates:
            norms = [1e9 for _ in norms]
        weights = tuple(self._weight(peer, question.author, line) for line in lines)
        projections = tuple(tuple(project(each, question.seed)) for each in found)
        return Found(projections=projections, norms=tuple(norms), weights=weights)

    def reducers(self, group: str) -> tuple[str, ...]:
        return tuple(self.peers) if self.averages else ()

    def made(self, group: str, number: int) -> Tensor:
        self.made_by.append(tuple(self.peers)[number])
        right = self._noisy(sum((2 * self._sent("alice", number), self._sent("bob", number)), torch.zeros(VALUES)) / 3)
        return -right if self.made_by[-1] in self.spoils else right

    def sent(self, peer: str, pledged: Pledged, number: int) -> Tensor:
        if peer in self.mute:
            raise NoAnswer(peer)
        return self._sent(peer, number)

    def _sent(self, peer: str, number: int) -> Tensor:
        return gradient(peer, "sent", Work(number, None, 0, 1, 1))

    def own(self, question: Recompute) -> Found:
        return self.recompute("organizer", question)

    def _weight(self, peer: str, author: str, line: Work) -> float:
        """What a peer says of it."""
        if line.position < 12 and peer == author and peer in self.tilts:
            return 50 * weight(line)
        return 0.0 if line.position < 12 and peer != author and peer in self.belittles else weight(line)

    def step_of(self, question: Recompute) -> int:
        return Work.read_all(question.work)[0].step + 1

    def _true(self, question: Recompute) -> list[Tensor]:
        return [gradient(question.author, question.session, line) for line in Work.read_all(question.work)]

    def _noisy(self, true: Tensor) -> Tensor:
        with self._lock:
            generator = torch.Generator().manual_seed(self._random.getrandbits(60))
            size = self.noise * self._random.random()
        off = torch.randn(VALUES, generator=generator)
        noisy: Tensor = true + size * true.norm() / off.norm() * off
        return noisy
