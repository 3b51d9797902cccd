"""The server: holds some layers of a model and computes them for whoever uses it."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import torch

from dedloc_kit.blocks.architecture import configuration
from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.served import ServedModel
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Began, Joined, Left, Served, ServerSeen, State, Warned, telling_loaded
from dedloc_kit.known_peers import Memory, initial_peers, recall
from dedloc_kit.learning.train.computing.device import describe_device, pick_devices, set_threads
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ModelVersion, ServerConfig, served_by_swarm
from dedloc_kit.serving.offer import MAX_VERSIONS, Serving
from dedloc_kit.swarm.network.identity import Identity
from dedloc_kit.swarm.remote.pulse import Pulse
from dedloc_kit.swarm.serving.beginning import Beginning, begun
from dedloc_kit.swarm.serving.layers.changing import Change, beside, may_go
from dedloc_kit.swarm.serving.layers.choosing import Choice
from dedloc_kit.swarm.serving.layers.disk import Disk
from dedloc_kit.swarm.serving.layers.fitting import Sizes, Speeds, guessed_speed, has_room, layers_that_fit, measured
from dedloc_kit.swarm.serving.layers.versions import Versions, in_use
from dedloc_kit.swarm.serving.member import Member, member
from dedloc_kit.swarm.serving.server.computing import Computing
from dedloc_kit.swarm.serving.server.distances import round_trips
from dedloc_kit.swarm.serving.server.server import SpanService
from dedloc_kit.swarm.serving.server.sessions import Budget, Held, room_for
from dedloc_kit.swarm.transfer.addressed import ContentService
from dedloc_kit.swarm.transfer.store import Store

TELL_SECONDS = 1.0
BALANCE_SECONDS = 10.0
"""Between two thoughts whether other layers need this server more."""
MEASURE_SECONDS = 60.0
"""How often the round trips to servers of the next layers are measured."""
OLDER_SECONDS = 30.0
"""For so long an older version stays after the newer one is served as a whole, for those who have just begun with it;
longer where sessions go on."""
LEAVE_SECONDS = 10.0
"""For so long a server that leaves or moves still answers those who go on elsewhere."""
NEWCOMER_SECONDS = 20.0
"""For a look at who serves what."""

_log = logging.getLogger(__name__)


def server(
    job: Beginning | Invitation, peer: ServerConfig, emit: Callable[[AnyEvent], None], stop: threading.Event
) -> None:
    """Serve until `stop` is set. Raises UserError if it cannot.

    :param job: what to begin, or the invitation to what others have begun
    """
    emit(State(text="reading the model" if isinstance(job, Beginning) else "connecting", then="layers are loaded"))
    devices = pick_devices(peer.devices)
    set_threads(peer.threads, devices)
    given_up: list[Exception] = []
    place: list[_Server] = []

    def give_up(reason: Exception) -> None:
        given_up.append(reason)
        stop.set()

    swarm: SwarmConfig
    served: ServedModel | None = None
    if isinstance(job, Beginning):
        swarm, served = begun(job, peer)
        emit(Began(serving=swarm.model_dump(mode="json")))
        peers, organizer = recall(peer.folder, swarm.run_id).peers, None
    else:
        swarm = served_by_swarm(job)
        peers, organizer = initial_peers(job, peer.folder), job.organizer
        if job.organizer == str(Identity(peer.folder / "identity.key").peer_id):
            raise UserError("this is the folder of whoever began this swarm; serve with another --folder")
    secret = os.environ.pop(CODE, "")
    with member(
        *(swarm, peer, peers),
        organizer=organizer,
        secret=secret,
        preferred_port=recall(peer.folder, swarm.run_id).port,
        give_up=give_up,
        mine=lambda: place[0].says() if place else None,
    ) as me:
        if me.node.reach.text:
            emit(Warned(text=me.node.reach.text) if me.node.reach.uncertain else State(text=me.node.reach.text))
        versions = Versions(swarm, me, Store(peer.folder / "content"))
        versions.start()
        if _there(versions, emit, stop):
            computing = describe_device(torch.device("cpu"))  # layers are computed there, also where there is a GPU
            role = _Server(swarm, versions, peer, me, computing, emit)
            place.append(role)
            with role.computing_in(served):
                role.serve(stop)
        versions.stop()
    if given_up:
        raise given_up[0]
    emit(Left(step=0, session_samples=0))


def _there(versions: Versions, emit: Callable[[AnyEvent], None], stop: threading.Event) -> bool:
    """Wait until there is a version to serve; False if it is to stop before."""
    if not versions.known:
        emit(State(text="asking which version of the run's model is the newest; before the first one it waits"))
    while not versions.known and not stop.wait(TELL_SECONDS):
        pass
    return bool(versions.known)


class _Server:
    """
    :param device: in words
    """

    def __init__(
        self,
        swarm: SwarmConfig,
        versions: Versions,
        peer: ServerConfig,
        me: Member,
        device: str,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._swarm, self._versions, self._peer, self._me, self._device = swarm, versions, peer, me, device
        self._emit = emit
        self._version: ModelVersion = versions.known[0]
        """That it serves, or is about to."""
        self._config = configuration(self._version.config)
        self._layers: int = self._config.num_hidden_layers
        self._choice = Choice(me.peer, self._layers, me.offers)
        self._change = Change(me.peer, me.offers)
        self._stuck = False
        self._used: ModelVersion | None = None
        self._older_unused: float | None = None
        self._session = secrets.token_hex(8)
        self._state: Literal["joining", "online", "moving", "leaving"] = "joining"
        self._span: LayerRange | None = None
        """What it serves, or is about to."""
        self._begun = False
        self._mover, self._move = ThreadPoolExecutor(1, thread_name_prefix="mover"), Future[None]()
        self._move.set_result(None)
        self._speeds = Speeds(0.0, 0.0, 0.0)
        self._round_trips: dict[str, float] = {}
        self._measure_due = self._balance_due = 0.0
        self._memory = Memory(peer.folder, swarm.run_id, me.peer, me.port)

    @contextmanager
    def computing_in(self, served: ServedModel | None) -> Iterator[None]:
        """Find out what to serve, load it, and answer from then on."""
        me, peer = self._me, self._peer
        self._computing = Computing()
        budget, room = Budget(peer.cache_tokens), room_for(peer.cache_tokens, self._config.hidden_size)
        self._spans = SpanService(me.caller, (), self._computing, budget, room)
        self._disk = Disk(self._versions, peer, me, self._config)
        if served is not None:
            self._disk.begin(self._version, served)
        services = [self._spans, self._spans.push, ContentService(self._disk.find), Pulse()]
        me.answer(services, forwards=peer.forwarding)
        try:
            if served is None:
                self._emit(State(text="asking who serves which layers", then="those that lack servers are loaded"))
                me.offers.look(NEWCOMER_SECONDS)
            self._take(self._first_span())
            yield
        finally:
            self._computing.close()

    def _first_span(self) -> LayerRange:
        """Which layers this server is to take; raises UserError."""
        sizes = self._sizes = Sizes.of(self._config, self._disk.manifest(self._version), self._peer.weights)
        if self._peer.span is not None:
            begin, end = map(int, self._peer.span.split(":"))
            if not begin < end <= self._layers:
                raise UserError(f"--span {self._peer.span}: the model has the layers 0:{self._layers}")
            return LayerRange(begin, end)
        count = min(self._layers, self._peer.blocks or layers_that_fit(sizes, self._peer.cache_tokens))
        speed = guessed_speed(sizes, count)
        self._speeds = Speeds(speed, 0.0, 0.0)
        first = self._choice.first(speed, count, {version.manifest for version in self._versions.known})
        self._span = first
        self._me.offers.tell()
        return first

    def _take(self, span: LayerRange, *also: Held) -> None:
        """Load these layers and serve them from then on, and go on with what is served `also`."""
        self._span = self._span or span
        self._me.offers.tell()
        self._emit(State(text=f"loading the layers {span}"))
        module = self._disk.load(self._version, span, telling_loaded(self._emit))
        self._speeds = measured(module, torch.bfloat16 if self._peer.weights == "bfloat16" else torch.float32)
        self._me.loop.soon(self._spans.hold, Held(module, self._version.manifest), *also)
        self._span, self._state = span, "online"
        self._me.offers.tell()
        self._emit(State(text=f"serving the layers {span}"))
        self._disk.tidy([self._version.manifest, *(held.version for held in also)])

    def serve(self, stop: threading.Event) -> None:
        """Until told to stop: tell how it stands, and move to where this server is needed more."""
        parameters = sum(parameter.numel() for held in self._held for parameter in held.span.parameters())
        self._emit(
            Joined(
                run_id=self._swarm.run_id,
                peer=self._me.peer,
                session=self._session,
                addresses=self._me.addresses,
                step=0,
                device=self._device,
                parameters=parameters,
            )
        )
        me = self._me
        while not stop.wait(TELL_SECONDS):
            self._tell()
            if time.monotonic() >= self._balance_due:
                self._balance_due = time.monotonic() + BALANCE_SECONDS
                self._turn()
            if time.monotonic() >= self._measure_due:
                self._measure_due = time.monotonic() + MEASURE_SECONDS
                self._round_trips = round_trips(me, self._span.end) if self._span is not None else {}
        self._mover.shutdown(wait=False, cancel_futures=True)
        self._emit(State(text="leaving"))
        self._state = "leaving"
        self._me.offers.tell()
        self._dismiss()

    @property
    def _held(self) -> tuple[Held, ...]:
        return self._spans.held

    def _dismiss(self, but: tuple[Held, ...] = ()) -> None:
        """Let those who are served go on elsewhere; waits until they have, at most some seconds.

        :param but: of these nobody need go
        """
        going = [held for held in self._held if held not in but]
        self._me.loop.soon(self._spans.hold, *but)
        for held in going:
            self._me.loop.soon(self._spans.dismiss, held)
        until = time.monotonic() + LEAVE_SECONDS
        while any(map(self._spans.answers, going)) and time.monotonic() < until:
            time.sleep(0.1)

    def _turn(self) -> None:
        """Begin a change or a move if it is this server's turn; it takes a thread of its own, for loading may take
        minutes."""
        if self._span is None or not self._move.done():
            return
        self._move.result()
        self._used = self._in_use()
        used = "" if self._used is None else self._used.manifest
        if self._versions.known[0].manifest != self._version.manifest:
            self._change_if_due(self._span, used)
        elif self._state == "online":
            self._drop_older(used)
            if self._peer.span is None and self._version.manifest == (used or self._version.manifest):
                self._balance()

    def _in_use(self) -> ModelVersion | None:
        """With which users begin now."""
        mine = self.says()
        everyone = self._me.offers.others() | ({self._me.peer: mine} if mine is not None else {})
        return in_use(self._versions.known, self._layers, everyone, self._me.offers)

    def _change_if_due(self, span: LayerRange, used: str) -> None:
        version = self._versions.known[0]
        room = len(self._held) == MAX_VERSIONS or has_room(self._sizes, len(span))
        stays = beside(self._held, used, room)
        going = {held.version for held in self._held if held not in stays}
        stuck, self._stuck = self._stuck, not may_go(span, going, used, self._me.offers)
        if self._stuck:
            self._change.over()
            if not stuck:
                text = f"the memory holds no second version, and nobody else serves all of the layers {span}"
                self._emit(Warned(text=f"{text}: this server stays with {self._version.model} until somebody does"))
        elif self._change.due(version.manifest, span):
            self._emit(State(text=f"changing to {version.model}"))
            self._move = self._mover.submit(self._change_to, version, stays)

    def _change_to(self, version: ModelVersion, stays: tuple[Held, ...]) -> None:
        """Serve another version of these layers, and what stays beside it."""
        span, before, failed = self._span, self._version, True
        assert span is not None
        try:
            self._disk.manifest(version)
            if not stays:
                self._state = "joining"
            self._dismiss(but=stays)
            self._version = version
            self._take(span, *stays)
            failed = False
        except UserError as error:  # nobody gives the weights
            self._emit(Warned(text=f"this server stays with {before.model}: {error}"))
            self._version = before
            if not stays:
                self._take(span)
        finally:
            self._change.over(failed)
            self._me.offers.tell()

    def _drop_older(self, used: str) -> None:
        """Forget an older version once all layers are served with the newer one and nobody's session needs it."""
        if len(self._held) < MAX_VERSIONS or used != self._held[0].version:
            self._older_unused = None
            return
        now = time.monotonic()
        since = self._older_unused = self._older_unused or now
        if now >= since + OLDER_SECONDS and not self._spans.answers(self._held[1]):
            self._dismiss(but=self._held[:1])
            self._me.offers.tell()
            self._disk.tidy([self._version.manifest])

    def _balance(self) -> None:
        assert self._span is not None
        before = self._choice.announced(self._begun)
        target = self._choice.next(self._span, self._speeds.decoding, self._version.manifest)
        if target is not None:
            self._emit(State(text=f"moving from the layers {self._span} to {target}, which lack servers"))
            self._begun, self._state = True, "moving"
            self._move = self._mover.submit(self._move_to, target)
        if self._choice.announced(self._begun) != before:
            self._me.offers.tell()

    def _move_to(self, target: LayerRange) -> None:
        """Serve these layers instead; until they are loaded those of before, where the memory holds both."""
        before, held = self._span, self._held if has_room(self._sizes, len(target)) else ()
        assert before is not None
        if not held:
            self._dismiss()
            self._span, self._state = target, "joining"
        try:
            self._take(target)
            for each in held:
                self._me.loop.soon(self._spans.dismiss, each)
        except UserError as error:  # nobody gives the weights
            self._emit(Warned(text=f"this server stays with the layers {before}: {error}"))
            self._span, self._state = before, "online"
            if not held:
                self._take(before)
        finally:
            self._begun = False
            self._choice.done()
            self._me.offers.tell()

    def says(self) -> Serving | None:
        """What this server tells the others now."""
        span, me = self._span, self._me
        if span is None:
            return None
        versions = [held.version for held in self._held] or [self._version.manifest]
        budget = self._spans.budget
        return Serving(
            run_id=self._swarm.run_id,
            version=versions[0],
            older="".join(versions[1:]),
            form=self._peer.weights,
            begin=span.begin,
            end=span.end,
            state=self._state,
            decoding=self._speeds.decoding,
            prompts=self._speeds.prompts,
            passes=self._speeds.passes,
            cache_tokens=self._peer.cache_tokens,
            free_tokens=max(0, budget.free),
            sessions=len(self._spans.sessions),
            served=self._spans.served,
            moving=self._change.announced() or self._choice.announced(self._begun),
            moved=self._choice.moved,
            pinned=self._peer.span is not None,
            forwards=self._peer.forwarding and not me.node.reach.client_mode,
            round_trips=self._round_trips,
            client_mode=me.node.reach.client_mode,
            addresses=me.addresses,
            reached="".join(me.node.reach.words),
            device=self._device[:64],
            name=self._peer.name,
            team=self._peer.team,
            session=self._session,
            time=me.time,
        )

    def _tell(self) -> None:
        mine = self.says()
        others = self._me.offers.others()
        seen = tuple(ServerSeen.of(peer, each) for peer, each in others.items())
        own = None if mine is None else ServerSeen.of(self._me.peer, mine)
        everyone = (*seen, *([own] if own else []))
        refused = dict(self._spans.rejections.all())
        version = self._used or self._version
        event = Served(layers=self._layers, mine=own, servers=everyone, refused=refused, version=version.manifest)
        self._emit(event)
        try:
            self._memory.update({peer: each.addresses for peer, each in others.items() if each.addresses})
        except OSError as error:
            _log.warning("the swarm's addresses cannot be kept (%s)", error.strerror)
