"""Looks at a swarm without taking part: who is there, and what every finished global step was made of.

Of each step its members keep the signed contributions, beside the average for those who missed the round and beside
the state for newcomers. An observer asks for these alone: for the head of a download, none of its content.
"""

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from hivemind.dht import DHTNode
from hivemind.utils import get_dht_time

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, GlobalStep, Receipt
from dedloc_kit.swarm.averaging.entries import EntryReader
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.contributions import collect
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.membership.notices import NoticeFollower
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.service import Endpoint, decode
from dedloc_kit.swarm.rounds.finished_step import check_signed, global_step, record_in
from dedloc_kit.swarm.rounds.missed_steps import MissedStep, missed_step
from dedloc_kit.swarm.transfer.contents import AverageInfo
from dedloc_kit.swarm.transfer.donor import KEPT_AVERAGES
from dedloc_kit.swarm.transfer.download import head
from dedloc_kit.swarm.transfer.protocol import Header, Request
from dedloc_kit.swarm.transfer.service import TransferService
from dedloc_kit.swarm.trust.weight import claims_in, weighing

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 60.0
"""For a busy donor that has to copy its state first."""
DONORS_ASKED = 3
PATIENCE_SECONDS = 10.0
"""Between two times that somebody is asked for a state's receipts: to tell them it copies the state."""

Finished = tuple[GlobalStep, dict[str, Contribution]]

_log = logging.getLogger(__name__)


class Observer:
    """A swarm seen from outside.

    :param belief: judges how far the swarm is
    """

    def __init__(self, run: RunConfig, node: Node, signer: Signer, tracker: Tracker, belief: Belief) -> None:
        self._run, self._node, self._signer, self._tracker = run, node, signer, tracker
        self._belief, self._organizer = belief, belief.organizer
        self._reader = EntryReader(run, belief.organizer, signer, weighing(run))
        self._kept_due = 0.0
        self._sent_away: Exception | None = None

    def give_up(self, reason: Exception) -> None:
        """Look on no more."""
        self._sent_away = self._sent_away or reason

    def check(self) -> None:
        """Raises UserError if the organizer does not want this peer to look on."""
        if self._sent_away is not None:
            raise self._sent_away

    @property
    def peer(self) -> str:
        """The id of the observer itself."""
        return str(self._signer.peer)

    def peers(self) -> dict[str, Progress]:
        """Everyone who is there, by peer id."""
        return self._tracker.others()

    @property
    def instructions(self) -> Instructions | None:
        """What the organizer wants now; none while the coordinator is away."""
        organizer = self.peers().get(self._organizer)
        return organizer.instructions if organizer is not None else None

    def contributions(self) -> dict[str, Contribution]:
        """The latest contribution of every peer; raises TimeoutError if the directory does not answer."""
        return collect(self._node, self._run.run_id, self._run.global_batch, _log.warning)

    def finished(self, step: int, rounds: Mapping[int, str]) -> list[Finished]:
        """The global steps after the one that is known, in order, as far as those who are there tell of them.

        They may begin before it, if the organizer says that the training went another way, and later than the next.

        :param step: the newest that is known, 0 if none is
        :param rounds: the round that led to each of the latest known ones
        """
        found: list[Finished] = []
        newest = self._newest().step
        if newest - step <= KEPT_AVERAGES:
            while newest > step:
                following = self._following(step, rounds.get(step, ""))
                if following is None:
                    break
                found.append(following)
                step, rounds = following[0].step, {following[0].step: following[0].round}
        due = time.monotonic() >= self._kept_due
        if due and (newest > step or self._gone_another_way(step, rounds)):
            self._kept_due = time.monotonic() + PATIENCE_SECONDS
            found += self._kept(step, rounds, newest)
        self._remember(found)
        return found

    def _newest(self) -> Position:
        return self._belief.newest(START, self.peers(), float(get_dht_time()))

    def _remember(self, found: Sequence[Finished]) -> None:
        """Who brought a step that the organizer has taken is believed when it is away."""
        said = self.peers().get(self._organizer)
        for step, contributions in found:
            if said is not None and (step.step, step.round) == (said.step, said.round):
                self._belief.took(step.step, float(get_dht_time()), weighing(self._run)(claims_in(contributions)))

    def _gone_another_way(self, step: int, rounds: Mapping[int, str]) -> bool:
        organizer = self.peers().get(self._organizer)
        return organizer is not None and 0 < organizer.step <= step and self._differs(organizer, rounds)

    def _differs(self, said: Progress | GlobalStep, rounds: Mapping[int, str]) -> bool:
        return said.step in rounds and rounds[said.step] != said.round

    def _donors(self, step: int) -> list[str]:
        """Some of those who hold the newest state and can be reached, if it is beyond this step."""
        newest = self._newest()
        able = [p for p, v in self.peers().items() if (v.step, v.round) == newest and not v.client_mode]
        return random.sample(able, min(DONORS_ASKED, len(able))) if newest.step > step else []

    def _following(self, step: int, after: str) -> Finished | None:
        """The step after one, from its members' averages."""
        for donor in self._donors(step):
            header = self._ask(donor, Request(what="average", after=after))
            if header is None or header.answer != "here":
                continue
            try:
                info = AverageInfo.parse(decode(header.metadata))
                record = files.decode(info.metadata, Commit)
                said = info.after, info.step, info.round
                if said != (after or record.previous, step + 1, record.link) or record.value.step != step + 1:
                    raise ValueError("it is not the average that was asked for")
                return self._checked(missed_step(self._reader, record))
            except (ValueError, TypeError) as error:
                _log.warning("what %s says of step %d is ignored: %s", donor, step + 1, error)
        return None

    def _kept(self, step: int, rounds: Mapping[int, str], newest: int) -> list[Finished]:
        """The steps of which somebody still has receipts; those that contradict what is known from the organizer."""
        organizer = [self._organizer] if self._organizer in self.peers() else []
        for donor in (*organizer, *self._donors(step)):
            header = self._ask(donor, Request(what="state"))
            if header is None or header.answer != "here":
                continue
            try:
                metadata = decode(header.metadata)
                info = StateInfo.parse(metadata["info"])
                if info.run_id != self._run.run_id:
                    raise ValueError("it is of another run")
                receipts = [Receipt.parse(values) for values in metadata["receipts"]]
                found = [self._checked(missed_step(self._reader, record_in(each), each)) for each in receipts]
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("the receipts of %s are ignored: %s", donor, error)
                continue
            parted = next((n for n, (done, _) in enumerate(found) if self._differs(done, rounds)), None)
            if parted is not None and donor == self._organizer:
                return found[parted:]
            if parted is None:
                return [finished for finished in found if step < finished[0].step <= newest]
        return []

    def _checked(self, missed: MissedStep) -> Finished:
        record, contributions = record_in(missed.receipt), missed.contributions
        check_signed(record, self._organizer)
        done, newest = global_step(missed.receipt, contributions), self._newest()
        if done.step == newest.step and done.round != newest.round:
            raise ValueError(f"the swarm took another step {done.step}")
        if contributions and done.samples < self._run.global_batch:
            raise ValueError(f"step {done.step} has too few samples")
        return done, {peer: c for peer, c in contributions.items() if c.samples}

    def _ask(self, donor: str, request: Request) -> Header | None:
        """What a donor has; None if it does not answer."""
        found: Header | None = self._node.run_coroutine(partial(_header, donor, self._run.run_id, request))
        return found


async def _header(donor: str, run_id: str, request: Request, node: Node, _: DHTNode) -> Header | None:
    """Runs in the node's process."""
    endpoint = Endpoint(await node.averagers(), run_id)
    return await head(lambda peer: endpoint.open(peer, TransferService), donor, request, ANSWER_SECONDS)


@contextmanager
def watching(
    run: RunConfig,
    peer: PeerConfig,
    initial_peers: Sequence[str],
    organizer: str,
    secret: str,
) -> Iterator[Observer]:
    """Look at a swarm and leave it at the end. Call it in a process's main thread.

    Raises UserError if nobody of the run answers, or it is not open and the organizer does not let this peer in.

    :param organizer: peer id of the coordinator
    :param secret: what lets a volunteer in as well, see `Entry`
    """
    entry = Entry(run, peer, initial_peers, organizer, secret)
    node, signer = entry.start(entry.surroundings()), entry.signer
    try:
        gate = entry.gate
        belief = Belief(signer.peer, organizer, lambda: gate.notice)
        tracker = Tracker(node, signer, run, initial_peers, Incidents(), belief)
        swarm = Observer(run, node, signer, tracker, belief)
        membership = NoticeFollower(
            *(node, signer, tracker.reject, lambda gate: tracker.peers.ban(gate.notice)),
            *(entry.identity, swarm.give_up),
        )
        tracker.look_every(LOOK_SECONDS)
        tracker.start()
        membership.start()
        try:
            yield swarm
        finally:
            membership.stop()
            tracker.leave()
    finally:
        node.shutdown()
