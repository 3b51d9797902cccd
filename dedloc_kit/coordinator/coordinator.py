"""The coordinator: follows the training without samples, keeps ledger and checkpoints, measures held-out loss.

It is no parameter server. It welcomes newcomers because it is always there and always holds the state; if it dies
the volunteers go on.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from dedloc_kit.bucket.writing import writer_of
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.coordinator.auditing import Auditing
from dedloc_kit.coordinator.durability import LastingRecord, Outage, check_key, despite_a_full_disk
from dedloc_kit.coordinator.evaluator import Evaluator
from dedloc_kit.coordinator.exporting import check_published, export, why_unwritten
from dedloc_kit.coordinator.model_folder import ModelFolder
from dedloc_kit.coordinator.pipeline_coordinator import StagedPeer, connected_to_all
from dedloc_kit.coordinator.publishing.bucket_uploading import Uploader
from dedloc_kit.coordinator.publishing.publisher import Publisher
from dedloc_kit.coordinator.resuming import begin, credit, resume
from dedloc_kit.coordinator.saving import Saving
from dedloc_kit.coordinator.suites import Suites, check_suites
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Left, Peers, PeerSeen, State, StepDone, Warned
from dedloc_kit.expert_runtime import HostNews, hosting
from dedloc_kit.experts.state import MixedState
from dedloc_kit.known_peers import Memory, recall
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.computing.device import pick_devices, usable_devices
from dedloc_kit.learning.train.state.checkpoint import load
from dedloc_kit.ledger import Conviction
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.regions import Countries, Regions
from dedloc_kit.serving.config import SERVED_TASK
from dedloc_kit.steering.orders import OrdersInForce, Rewinding
from dedloc_kit.swarm.directory.contributions import collect
from dedloc_kit.swarm.experts.member import ExpertMember
from dedloc_kit.swarm.peer import SwarmPeer, connected
from dedloc_kit.swarm.rounds.optimizer import StepListener
from dedloc_kit.swarm.transfer.addressed import Find
from dedloc_kit.swarm.transfer.store import Store

if TYPE_CHECKING:
    from dedloc_kit.coordinator.releasing import Releasing

DoneStep = tuple[GlobalStep, dict[str, Contribution]]

TWIN = "another coordinator is at work with a copy of this one's identity.key"
POLL_SECONDS = 0.1
PEERS_SECONDS = 1.0
COLLECT_SECONDS = 15.0
DISK_SECONDS = 5.0
"""How long to wait after the ledger could not be written."""

_log = logging.getLogger(__name__)


def coordinator(
    run: RunConfig, peer: CoordinatorConfig, emit: Callable[[AnyEvent], None], stop: threading.Event
) -> None:
    """Start the run, or resume it from the folder's newest checkpoint, and follow it until `stop` is set.

    Raises UserError if the folder, the port, the data or the task cannot be used.
    """
    peer.check(run)
    check_suites(peer)
    emit(State(text="starting"))

    # Steps are taken in a background thread; the ledger and the checkpoints belong to this one.
    done: queue.SimpleQueue[DoneStep] = queue.SimpleQueue()

    def on_step(step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        lent = {peer_id: carried for peer_id, carried in step.carried.items() if peer_id != me.signer.peer}
        step = step.model_copy(update={"carried": lent})
        if isinstance(state := me.optimizer.state, MixedState):
            state.take(step.step, step.samples)
        done.put((step, {peer_id: c for peer_id, c in contributions.items() if c.samples}))
        if auditing is not None:
            auditing.stepped(step, contributions)

    auditing: Auditing | None = None
    check_key(peer.folder)
    memory = recall(peer.folder, run.run_id)
    # Strictly this port: on another one nobody would find it again.
    peer = peer.model_copy(update={"swarm_port": peer.swarm_port or memory.port})
    served = Store(peer.folder / "served") if _is_served(run, peer) else None
    with _taking_part(run, peer, memory.peers, stop, on_step, None if served is None else served.find) as me:
        if isinstance(me, SwarmPeer) and run.trust.checks == "on":
            auditing = Auditing(run, peer.folder, peer.task_module, me, emit)
        check_published(peer, me.optimizer.state, me.task)
        role = _Role(run, peer, me, done, emit, auditing)
        try:
            # Data that volunteers could not read is better known now.
            next(batches_of(run, me.task, 1, seed_of(run.run_id, "check"), _log.warning))
            role.resume()
            role.host(memory.peers)
            me.optimizer.begin()
            emit(me.joined())
            role.publish()
            role.score()
            role.hand_out(served)
            role.follow(stop)
            emit(State(text="leaving"))
            me.optimizer.leave()
            role.finish()
            if peer.export is not None:
                export(peer.export, me.optimizer.state, me.task)
            emit(Left(step=me.optimizer.step, session_samples=0))
        finally:
            role.close()


def _is_served(run: RunConfig, peer: CoordinatorConfig) -> bool:
    """Do others get the model from here? Of one in stages they get the checkpoints."""
    return run.task.name == SERVED_TASK and run.pipeline is None and bool(peer.serve_every)


def _taking_part(
    run: RunConfig,
    peer: CoordinatorConfig,
    known: Sequence[str],
    stop: threading.Event,
    on_step: StepListener,
    content: Find | None,
) -> AbstractContextManager[SwarmPeer | StagedPeer]:
    """:param content: where that lies which others are given by its hash"""
    if run.pipeline is not None:
        return connected_to_all(run, peer, known, stop=stop, on_step=on_step)
    return connected(
        run,
        peer,
        known,
        organizer=None,
        follower=True,
        may_start_alone=True,
        stop=stop,
        on_step=on_step,
        content=content,
    )


class _Role:
    def __init__(
        self,
        run: RunConfig,
        peer: CoordinatorConfig,
        me: SwarmPeer | StagedPeer,
        done: queue.SimpleQueue[DoneStep],
        emit: Callable[[AnyEvent], None],
        auditing: Auditing | None,
    ) -> None:
        self._auditing = auditing
        self._run, self._peer, self._me, self._done, self._emit = run, peer, me, done, emit
        self._lasting = LastingRecord(peer.folder, peer.keep_checkpoints, run.answers_of_a_sample)
        self._ledger = self._lasting.ledger
        driven = me.measured if isinstance(me, StagedPeer) else None
        device = usable_devices(pick_devices(peer.devices), peer.devices)[0]
        self._evaluator = Evaluator(run, me.task, me.optimizer.state, self._lasting, emit, driven, device)
        self._saving = Saving(me.optimizer.state, self._lasting, lambda: self._evaluator.under_way, emit)
        self._ledger_outage = Outage("the ledger", emit)
        self._orders = OrdersInForce(peer.folder)
        self._checkpoint_asked = self._orders.current().checkpoint
        self._tried: Rewinding | None = None
        self._ended_at: int | None = None
        self._twin_told = False
        self._memory = Memory(peer.folder, run.run_id, me.signer.peer, me.port)
        self._unrecorded: deque[DoneStep] = deque()
        self._disk_due = 0.0
        self._publisher: Publisher | None = None
        self._model_folder: ModelFolder | None = None
        self._suites: Suites | None = None
        self._device = device.type
        self._releasing: Releasing | None = None
        self._uploader: Uploader | None = None
        self._hosting = ExitStack()
        self._hosts: tuple[ExpertMember, HostNews] | None = None
        self._regions = None if peer.regions is None else Regions(Countries(peer.regions), me.hosts)

    def resume(self) -> None:
        """Start from what there is. The swarm may be ahead of it, and so may the ledger."""
        state = self._me.optimizer.state
        own: StateInfo | None = None
        if resume(state, self._lasting.checkpoints, self._peer.resume) and self._peer.resume is not None:
            self._saving.save()  # from here on the folder alone suffices
            self._saving.finish(wait=True)
            credit(self._ledger, self._peer.resume)
        else:
            if state.step == 0:
                begin(state, self._me.task)
            self._saving.is_kept()
            own = state.info
        self._lasting.begin(own)
        self._tell_of_lost()
        # Whoever went on without this coordinator proves it by having brought the last step that was taken here.
        last = self._ledger.last_taken()
        if last is not None:
            belief = self._me.optimizer.tracker.belief
            belief.took(last.step, last.time, self._ledger.contributions_of(last.step))
        self._remember()  # whose folder this is, before anybody follows its key

    def host(self, known: Sequence[str]) -> None:
        """Begin to answer for the experts of the run, if it has any.

        :param known: addresses of the peers that this one joined through
        """
        state = self._me.optimizer.state
        if isinstance(state, MixedState) and isinstance(self._me, SwarmPeer):
            folder = self._peer.folder / "experts"
            member = self._hosting.enter_context(hosting(self._me, known, state, folder, self._emit))
            self._hosts = member, HostNews(member, state)

    def publish(self) -> None:
        """Begin to keep the model for people, and to push to the Hub, and to the run's bucket, if the organizer wants
        it."""
        state, task = self._me.optimizer.state, self._me.task
        if not why_unwritten(state, task):
            self._model_folder = ModelFolder(self._peer.folder, state, task, self._ledger, self._emit, self._peer.hub)
        if self._peer.hub is not None:
            self._publisher = Publisher(
                *(self._run, self._peer, state, task, self._ledger, self._emit),
                lost=lambda step: step in self._lasting.checkpoints.ruined,
            )
        state_bucket, folder = self._run.averaging.state_bucket, self._peer.state_bucket_folder
        if state_bucket is not None and isinstance(self._me, SwarmPeer):
            writer = writer_of(state_bucket, folder, self._run.run_id)
            kept, place = self._me.exchange.transfers.kept_average, self._peer.folder
            self._uploader = Uploader(writer, self._me.optimizer.state, kept, place, self._emit)

    def score(self) -> None:
        """Begin to have checkpoints scored by standard suites, if the organizer wants it."""
        if self._peer.suites:
            self._suites = Suites(self._peer, self._ledger, self._emit, self._device)

    def hand_out(self, served: Store | None) -> None:
        """Begin to give the model to those who serve it, from this store; none if it is not to be served."""
        if served is not None and isinstance(self._me, SwarmPeer):
            if why := why_unwritten(self._me.optimizer.state, self._me.task):
                _log.warning("nobody can serve this model: %s", why)
                return
            from dedloc_kit.coordinator.releasing import (
                Releasing,
            )  # with transformers, for which other runs need not wait

            self._releasing = Releasing(
                *(self._run, self._peer, self._me, served),
                lost=lambda step: step in self._lasting.checkpoints.ruined,
            )

    def follow(self, stop: threading.Event) -> None:
        """Take every step of the swarm until told to stop or the last one is done."""
        optimizer = self._me.optimizer
        peers_due = collect_due = 0.0
        self._evaluator.start()
        self._evaluator.measure_start()
        while not stop.wait(POLL_SECONDS):
            optimizer.check()
            self.record_done()
            self._obey()
            self._evaluator.finish()
            self._saving.finish()
            now = time.monotonic()
            if now >= peers_due:
                peers = self._evaluator.watch(self._peers(), optimizer.step >= optimizer.last_step)
                self._emit(peers)
                if isinstance(self._me, StagedPeer):
                    self._emit(self._me.pipeline())
                self._record_swarm(peers)
                self._remember()
                self._rescue()
                self._look_at_best()
                self._look_for_twin(stop)
                if self._hosts is not None:
                    self._look_at_hosts(*self._hosts)
                peers_due = now + PEERS_SECONDS
            if now >= collect_due:
                self._collect()
                collect_due = now + COLLECT_SECONDS
            if optimizer.step >= optimizer.last_step:
                self._end()
        if optimizer.step < optimizer.last_step:
            return  # of a large model it takes minutes, and whoever is told to leave is killed if it does not
        # One more, so that the curve ends at the last step.
        self._evaluator.finish(wait=True)
        self._evaluator.start()
        self._evaluator.finish(wait=True)

    def _look_at_best(self) -> None:
        if self._model_folder is not None:
            self._model_folder.look(self._lasting.checkpoints)
        if self._suites is not None:
            self._suites.look(self._lasting.checkpoints)

    def _look_at_hosts(self, member: ExpertMember, news: HostNews) -> None:
        member.follow()
        self._emit(member.standing())
        for text in news.take(time.monotonic()):
            self._emit(Warned(text=text, alert=True))

    def _obey(self) -> None:
        """Act on the organizer's orders, and pass them on to the volunteers."""
        orders, optimizer = self._orders.current(), self._me.optimizer
        if not orders.finish:
            optimizer.end_after(self._peer.last_step(self._run))
        elif optimizer.step < optimizer.last_step:  # the step under way is the last one, if there is anyone to do it
            optimizer.end_after(min(optimizer.last_step, optimizer.step + self._has_volunteers()))
        optimizer.instruct(
            Instructions(
                paused=orders.paused,
                last_step=self._ordered_end(),
                announcement=orders.announcement.text if orders.announcement else "",
                decay_order=optimizer.decay_order(orders.decay.steps) if orders.decay else "",
                decay=optimizer.state.decay,
                stored="" if self._uploader is None else self._uploader.digest,
            )
        )
        if orders.checkpoint > self._checkpoint_asked:
            self._checkpoint_asked = orders.checkpoint
            self._saving.save()
        if orders.rewind is not None:
            self._lasting.checkpoints.protect(orders.rewind.checkpoint)
            self._go_back(orders.rewind)

    def _go_back(self, order: Rewinding) -> None:
        """Let the next step take over a checkpoint, unless that is done: in the state that the swarm has come to, for
        one that peers have left for another is none."""
        optimizer = self._me.optimizer
        if optimizer.goes_back or optimizer.state.rewound > order.after or self._tried == order:
            return
        try:
            found = load(self._lasting.checkpoints.path(order.checkpoint)) if order.checkpoint else self._me.beginning()
            optimizer.state.check_named(*found)
        except (ValueError, OSError, UserError) as error:
            self._tried = order
            _log.warning("the run cannot go back to step %d: %s", order.checkpoint, error)
        else:
            optimizer.go_back(found, order.rate, order.after)

    def _ordered_end(self) -> int | None:
        """The last global step, if it is not the one that the configuration says."""
        optimizer = self._me.optimizer
        return optimizer.last_step if self._orders.current().finish or optimizer.state.decay else None

    def _has_volunteers(self) -> bool:
        return any(not progress.follower for progress in self._me.optimizer.tracker.others().values())

    def _end(self) -> None:
        """The last step is done: measure, keep and push what it has led to; once."""
        step = self._me.optimizer.step
        self._evaluator.start()
        if self._ended_at != step:
            self._ended_at = step
            self._emit(State(text=f"global step {step} was the last one"))
            self._saving.save()
            if self._publisher is not None:
                self._publisher.push_soon()
            if self._releasing is not None:
                self._releasing.release_soon()

    def record_done(self) -> None:
        """Record the steps that have been taken since the last look; after a failure, when it is time to try again."""
        while not self._done.empty():
            self._unrecorded.append(self._done.get())
        while self._unrecorded and time.monotonic() >= self._disk_due:
            self._disk_due = time.monotonic() + DISK_SECONDS
            with despite_a_full_disk(self._ledger_outage):
                self._ledger.record_presence(self._peers().peers)  # first, for what they gave counts in their visits
                self._record(*self._unrecorded[0])
                self._unrecorded.popleft()
                self._disk_due = 0.0

    def _record(self, step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        """A global step is done: first the ledger, then the checkpoint, then everyone who watches."""
        self._lasting.step(step, contributions)
        self._evaluator.stepped(step)
        current = step.step == self._me.optimizer.step  # not one that this peer missed and has learned of since
        self._saving.stepped(step, self._peer.checkpoint_every)
        self._emit(StepDone(step=step, contributions={peer: c.samples for peer, c in contributions.items()}))
        if current and self._publisher is not None:
            self._publisher.step_done(step.step)
        if current and self._uploader is not None:
            self._uploader.step_done()
        if current and self._releasing is not None:
            self._releasing.step_done(step.step)
        if not step.peers or (current and step.step % self._peer.evaluate_every == 0):
            self._evaluator.start()

    def finish(self) -> None:
        """Record and keep what the last round has led to."""
        self._disk_due = 0.0
        self.record_done()
        self._saving.save()
        self._saving.finish(wait=True)
        self._look_at_best()
        if self._publisher is not None:
            self._emit(State(text="pushing the last state to the Hub"))
            self._publisher.close()

    def close(self) -> None:
        if self._suites is not None:
            self._suites.close()
        if self._model_folder is not None:
            self._model_folder.close()
        if self._uploader is not None:
            self._uploader.close()
        if self._releasing is not None:
            self._releasing.close()
        if self._auditing is not None:
            self._auditing.close()
        self._hosting.close()
        self._evaluator.close()
        self._saving.close()
        self._lasting.close()

    def _rescue(self) -> None:
        """Write anew what has to last and is gone, from what is held here, and tell the organizer."""
        with despite_a_full_disk():
            self._lasting.repair(self._me.optimizer.state.copy)
        self._tell_of_lost()

    def _look_for_twin(self, stop: threading.Event) -> None:
        """Two coordinators would order in each other's name. Raises UserError if it is this one that has to end."""
        twin = self._me.optimizer.tracker.twin
        if twin.second:
            self._me.optimizer.tracker.give_way(stop)
            raise UserError(f"{TWIN}, and began before; this one ends. To go on with this one, first stop the other")
        if twin.certain and not self._twin_told:
            self._twin_told = True
            self._emit(Warned(text=f"{TWIN}; it ends by itself when it sees this one, which goes on", alert=True))

    def _tell_of_lost(self) -> None:
        if lost := self._lasting.lost():
            text = (
                f"gone from {self._peer.folder}, cut off or older than it must be: {', '.join(lost)}; what is known "
                "here or in the swarm is written there again; who deletes there?"
            )
            self._emit(Warned(text=text, alert=True))

    def _collect(self) -> None:
        """Take contributions to steps whose round this peer missed from the DHT."""
        reject = self._me.optimizer.tracker.incidents.reject
        try:
            if isinstance(self._me, StagedPeer):
                given = self._me.collect(reject)
            else:
                given = [collect(self._me.dht, self._run.run_id, self._run.global_batch, reject)]
            with despite_a_full_disk():
                for found in given:
                    self._ledger.fill_gaps(found)
        except TimeoutError:
            _log.warning("the swarm's directory does not answer; trying again")

    def _record_swarm(self, peers: Peers) -> None:
        """Record who is here, and what went wrong since the last time."""
        if time.monotonic() < self._disk_due:
            return
        self._disk_due = time.monotonic() + DISK_SECONDS
        with despite_a_full_disk():
            self._ledger.record_presence(peers.peers)
            failed, rejected = self._me.optimizer.tracker.incidents.drain()
            for failure in failed:
                self._ledger.record_trouble("failed", failure.text, step=failure.step)
            for reason, count in rejected.items():
                self._ledger.record_trouble("rejected", reason, count=count)
            self._ledger.record_convictions(
                Conviction(kicked.peer, kicked.time, kicked.name, kicked.why, last_passed=kicked.last_passed)
                for kicked in self._orders.current().kicked
                if kicked.why
            )
            self._disk_due = 0.0

    def _remember(self) -> None:
        """Keep the port and who can be reached, for a coordinator that starts again after this one died."""
        try:
            parts = self._me.optimizer.tracker.belief.taken if isinstance(self._me, StagedPeer) else ()
            self._memory.update(self._me.reachable(), parts=parts)
        except OSError as error:
            _log.warning("the swarm's addresses cannot be kept (%s)", error.strerror)

    def _peers(self) -> Peers:
        tracker, orders = self._me.optimizer.tracker, self._orders.current()
        # On the page nobody is further than is proven.
        newest = self._me.optimizer.step
        others = {
            peer_id: progress.model_copy(update={"step": min(progress.step, newest)})
            for peer_id, progress in tracker.others().items()
        }
        volunteers = {peer_id for peer_id, progress in others.items() if not progress.follower}
        return Peers(
            paused=orders.paused,
            last_step=self._ordered_end(),
            decay=self._me.optimizer.state.decay,
            announcement=orders.announcement,
            checks=None if self._auditing is None else self._auditing.checks(),
            peers=tuple(PeerSeen.of(peer_id, progress) for peer_id, progress in others.items()),
            listed=public_addresses(others) if self._peer.list_volunteers else (),
            countries=None if self._regions is None else self._regions.count(volunteers),
            countries_title="" if self._regions is None else self._regions.title,
        )


def public_addresses(others: Mapping[str, Progress]) -> tuple[str, ...]:
    """Where those are who agree that everybody may read it; an address that names somebody else is not theirs."""
    return tuple(
        address
        for peer, said in others.items()
        if said.listed
        for address in said.addresses
        if address.endswith(f"/p2p/{peer}")
    )
