"""Where the training state stands in the chain: the training's side of `chain.branch.Branch`."""

import hashlib
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.entries import EntryReader
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.branch import PART, Anchored, Branch, Head
from dedloc_kit.swarm.chain.messages import RecordsAfter
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance, Term
from dedloc_kit.swarm.consensus.records import Commit, Reset, Voter
from dedloc_kit.swarm.consensus.resets import Branch as End
from dedloc_kit.swarm.consensus.resets import Position, samples_gained
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeyVerifier
from dedloc_kit.swarm.rounds.finished_step import decay_in
from dedloc_kit.swarm.trust.weight import Weigh

LINK_LENGTH = 64
REMEMBERED = 100
"""Records in the memory of the training's process: a peer whose branch was left goes back so far by itself."""
QUIET_SECONDS = 5.0
"""So long a peer waits for others before it says so."""

_log = logging.getLogger(__name__)


class StateBranch:
    """Of one peer. The state and the head move together.

    :param host: where the Branch lives
    :ivar end: the newest records of this branch; before this peer takes part it ends where nobody is
    :ivar anew: this peer, the organizer's, had lost its chain, and nobody has decided on a step with it since
    """

    def __init__(self, host: Host, state: TrainingState, tracker: Tracker, signer: Signer, weigh: Weigh) -> None:
        organizer = tracker.belief.organizer
        self._host, self._state, self._organizer, self.peer = host, state, organizer, signer.peer
        self._others = tracker.others
        self._signer = signer
        self.reader = EntryReader(state.run, organizer, signer, weigh)
        self._belief = tracker.belief
        self._head: Head | None = None
        nowhere = Instance(state.run_id, PART, 0, "nowhere", (0, ""), organizer, organizer, Electorate({}, None))
        self.end = Chain(nowhere, KeyVerifier())
        self.anew = False
        self._taken: tuple[ChainRecord, ...] = ()
        self._told = ""
        self._waits_since = math.inf
        self._better: End | None = None

    @property
    def head(self) -> Head | None:
        """None before this peer takes part."""
        return self._head

    @property
    def incarnation(self) -> int:
        """Of this peer's vote; 0 if it has none."""
        return 0 if self._head is None else self._head.incarnation

    @property
    def term(self) -> Term:
        """Number and link of the last reset."""
        return (0, "") if self._head is None else self._head.instance.term

    def begin(self) -> None:
        """Take part with the state that this peer holds. Raises ValueError if nothing says where that is in the chain;
        the organizer says it itself."""
        if self._head is not None:
            return
        if self.peer != self._organizer:
            self._move(self.at(self._state.info, self._state.anchor))
            return
        link = self._state.round
        if len(link) not in (0, LINK_LENGTH):  # of a run before there was a chain
            link = hashlib.sha256(link.encode()).hexdigest()
        if (head := self._host.call(Branch.open, link, self.digest).result()) is not None:
            self._move(head)
            return
        self._move(self._host.call(Branch.begin, self._state.step, link, self.digest).result())
        self.anew = self._state.step > 0

    def start_at(self, anchor: bytes) -> None:
        """The run begins here; raises ValueError if that is not signed, or the run is beyond its beginning."""
        self._move(self._load(anchor, self._state.step, None))

    def at(self, info: StateInfo, anchor: bytes) -> Head:
        """The head of a state that is about to be taken over; raises ValueError if the anchor is not one of it."""
        if self._better is not None:
            return self._choose(self._better, info)
        return self._load(anchor, info.step, info.rounds[-1] if info.rounds else "")

    def _load(self, anchor: bytes, step: int, link: str | None) -> Head:
        if not isinstance(anchor, bytes):
            raise ValueError("an anchor is not bytes")
        return self._host.call(Branch.load, anchor, step, link).result()

    def _choose(self, end: End, info: StateInfo) -> Head:
        if info.rounds[-1:] != (end.records[-1].link,):
            raise ValueError("it is not the state of the branch that others have left")
        try:
            return self._host.call(Branch.choose, end, _digest_of(info)).result()
        except OSError as error:
            raise ValueError(str(error)) from None

    def decay_in(self, contributions: Mapping[str, Contribution]) -> int:
        """Over how many steps the learning rate falls from the step with these contributions on; 0: it does not."""
        run_id, rewound = self._state.run_id, self._state.rewound
        return decay_in(self._signer, run_id, contributions.values(), self._organizer, rewound)

    @property
    def digest(self) -> str:
        """Of the state: of its version and its sketch."""
        state = self._state
        return hashlib.sha256(f"{state.run_id} {state.step} {state.round} {state.sketch}".encode()).hexdigest()

    def take(self, *records: ChainRecord) -> Head:
        """Adopt records; the state has to follow, and `moved` ends that. Raises ValueError if they do not win."""
        head = self._host.call(Branch.take, records).result()
        self._taken = records
        return head

    def take_over(self, step: int, info: StateInfo, rate: float) -> Head:
        """Sign a reset for a person, of the organizer's peer; the state then has to follow.

        :param step: that takes over an earlier state
        :param info: of that state; :param rate: a factor of the learning rate

        Raises ValueError if a step was taken meanwhile, OSError if the disk fails.
        """
        return self._host.call(Branch.take_over, _digest_of(info, rate), step + 1, rate).result()

    def ask(self, peer: str) -> Future[tuple[ChainRecord, ...] | None]:
        """Ask another peer for what follows on its branch; as `Branch.ask`."""
        head = self.end.head
        question = RecordsAfter(part=PART, known=self.end.locator(), term=head.term, step=head.step)
        return self._host.call(Branch.ask, peer, question)

    def to_offer(self, records: Sequence[ChainRecord]) -> str | None:
        """Where another branch has left this one, if this one has more samples since then, and no person chose that."""
        parting = self.end.parting(records)
        if parting is None or any(isinstance(record, Reset) and record.chosen for record in parting[1]):
            return None
        return parting[0] if samples_gained(self.end, records) < 0 else None

    def offer(self, link: str) -> Future[None]:
        """As `Branch.offer`."""
        return self._host.call(Branch.offer, link)

    def moved(self, head: Head) -> None:
        """The state has followed."""
        self._move(head)

    def look(self, others: Mapping[str, Progress]) -> bool:
        """Of the organizer's peer: sign a reset if the electorate is gone; whether it did. Sets `better`."""
        if self._head is None:
            return False
        positions = {
            peer: Position(told.term, told.step + 1, told.round, told.samples, Voter(peer, told.incarnation))
            for peer, told in others.items()
        }
        head = self._host.call(Branch.look, positions, self.digest).result()
        self._better = head if isinstance(head, End) else None
        if not isinstance(head, Head):
            return False
        _log.warning("voters of the last step are gone: the run goes on without them from step %d", self._state.step)
        self._move(head)
        return True

    @property
    def better(self) -> tuple[ChainRecord, ...]:
        """Of the organizer's peer: what others have left, and it is to go to, if there is something."""
        return () if self._better is None else self._better.records

    def stay(self) -> None:
        """The state at the end of what is better could not be had."""
        self._better = None

    def leave(self) -> None:
        """Vote no more."""
        if self._head is not None:
            self._host.call(Branch.leave).result()

    def may_step(self, peers: Collection[str]) -> bool:
        """Whether this peer and these others may take the next step together."""
        if self._head is None:
            return False
        told = {peer: progress.incarnation for peer, progress in self._others().items()}
        told[self.peer] = self._head.incarnation
        return self._head.instance.electorate.enough_peers({*peers, self.peer}, told)

    def needed(self, peers: Collection[str]) -> frozenset[str]:
        """Peers without which these and this one may not take the next step; says so once if it lasts."""
        if self._head is None or self.may_step(peers):
            self._waits_since = math.inf
            return frozenset()
        missing = self._head.instance.electorate.peers - {*peers, self.peer}
        now = time.monotonic()
        self._waits_since = min(self._waits_since, now)
        if now - self._waits_since > QUIET_SECONDS and self._told != self._state.round:
            self._told = self._state.round
            _log.warning("waiting for more of those who counted in global step %d: out of reach", self._state.step)
        return frozenset(missing)

    def _move(self, head: Head) -> None:
        instance, taken = head.instance, self._taken
        self._head, self._taken, self._better, self.anew = head, (), None, False
        self._state.go_on_from(instance.previous, head.anchor)
        if len(taken) == 1 and self.end.previous_of(taken[0]) == self.end.head.previous:
            self.end.append(taken[0], instance)
            self.end.trim(REMEMBERED)
        elif instance != self.end.head:
            self.end.restart(instance, files.decode(head.anchor, Anchored).commit)
        self._weigh(instance.step - 1, instance.electorate)

    def weigh_by(self, records: Sequence[ChainRecord]) -> None:
        """From now on those prove a state who counted in the last of these commits, which the chain has proven."""
        for record in reversed(records):
            if isinstance(record, Commit):
                self._weigh(record.after - 1, Electorate.of_value(record.value, None))
                break

    def _weigh(self, step: int, electorate: Electorate) -> None:
        weights = {voter.peer: weight for voter, weight in electorate.weights.items()}
        self._belief.took(step, float(get_dht_time()), weights)


def _digest_of(info: StateInfo, rate: float = 1.0) -> str:
    """Of a state that is to be taken over. :param rate: a factor of its learning rate"""
    return hashlib.sha256(f"{info.run_id} {info.step} {info.rounds} {rate}".encode()).hexdigest()
