"""What must hold at every step of a simulated run."""

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit, Reset
from tests.simulation.data_plane import Average, add, digest_of, gradient

if TYPE_CHECKING:
    from tests.simulation.peer import Process
    from tests.simulation.simulation import Simulation


class Violation(AssertionError):
    """Something that must never happen has happened."""


class Watch:
    """Sees every record that a peer takes.

    :ivar first: when the first peer took a commit, by link
    :ivar forks: there may be some for a while: voters have lied
    :ivar sums_matter: an average is that of those who count; not if a reducer lies
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.first: dict[str, float] = {}
        self.sums_matter, self.forks = True, False
        self.made: Counter[int] = Counter()
        self.resets: list[tuple[float, Reset]] = []
        self.rounds_refused: Counter[str] = Counter()
        self._states: dict[str, tuple[Average, tuple[str, ...]]] = {}
        self._steps: dict[tuple[object, int], str] = {}
        self._next: dict[str, str] = {}

    def violation(self, text: str) -> NoReturn:
        raise Violation(f"{text} ({self._simulation.reproduction})")

    def applied(self, process: "Process", record: ChainRecord) -> None:
        """Called before the record's orders are noted."""
        state = process.states[record.link]
        if self._states.setdefault(record.link, (state, ()))[0] != state:
            self.violation(f"one link, two states: step {record.after} at {process.name}")
        if isinstance(record, Reset):
            if record.of("").state != digest_of(state):
                self.violation(f"a reset names another state than {process.name} has")
            return
        self._commit(process, record)

    def _commit(self, process: "Process", commit: Commit) -> None:
        step, name = commit.value.step, process.name
        term = process.chain.at(commit.link).term
        if self._steps.setdefault((term, step), commit.link) != commit.link and not self.forks:
            self.violation(f"fork: two averages in one term, step {step}, at {name}")
        if self._next.setdefault(commit.previous, commit.link) != commit.link and not self.forks:
            self.violation(f"fork: two averages after one link, step {step}, at {name}")
        if commit.link in self.first:
            return
        self.first[commit.link] = self._simulation.world.now
        self.made[step] += 1
        if self.sums_matter and process.averages[commit.link] != add(*map(gradient, commit.value.counted)):
            self.violation(f"half an average: step {step} at {name}")
        if commit.value.samples < self._simulation.options.minimum:
            self.violation("a step with too few samples")
        if commit.value.weights != self._simulation.options.weigh(commit.value.counted):
            self.violation("weights that are not the run's")

    def refused(self, process: "Process", reason: str) -> None:
        self.rounds_refused[reason] += 1

    def blamed(self, process: "Process", member: str, reason: str) -> None:
        self._simulation.note("blames", process.name, member, reason)
        if member not in self._simulation.liars:
            self.violation(f"{process.name} blames the honest {member}: {reason}")

    def signing(self, process: "Process", reset: Reset, when: str) -> None:
        self._simulation.note("reset", when, reset.term, reset.step)
        if when == "before":
            self.resets.append((self._simulation.world.now, reset))
        for hook in self._simulation.on_reset:
            hook(process, reset, when)
