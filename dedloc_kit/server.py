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
from dedloc_kit.blocks.plan import LayerRange
from dedloc_kit.blocks.served import ServedModel
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights import load
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Began, Joined, Left, Loading, Served, ServerSeen, State, Warned
from dedloc_kit.machine.account import CODE
from dedloc_kit.memory import Memory, initial_peers, recall
from dedloc_kit.records import Invitation
from dedloc_kit.serving.config import ServerConfig, ServingConfig, serving_of
from dedloc_kit.serving.offer import Serving, short_id
from dedloc_kit.swarm.network.identity import Identity
from dedloc_kit.swarm.remote.pulse import Pulse, round_trip
from dedloc_kit.swarm.serving.beginning import Beginning, begun
from dedloc_kit.swarm.serving.belongings import Belongings, manifest_of
from dedloc_kit.swarm.serving.choosing import Choice
from dedloc_kit.swarm.serving.computing import Computing
from dedloc_kit.swarm.serving.credit import Credit
from dedloc_kit.swarm.serving.fitting import Sizes, Speeds, guessed_speed, has_room, layers_that_fit, measured
from dedloc_kit.swarm.serving.member import Member, member
from dedloc_kit.swarm.serving.server import SpanService
from dedloc_kit.swarm.serving.sessions import Budget, Held
from dedloc_kit.swarm.transfer.addressed import ContentService
from dedloc_kit.swarm.transfer.store import Store
from dedloc_kit.training.device import describe_devices, pick_devices, set_threads

TELL_SECONDS = 1.0
BALANCE_SECONDS = 10.0
"""Between two thoughts whether other layers need this server more."""
NEIGHBOURS, MEASURE_SECONDS = 8, 60.0
"""Servers of the next layers to which the round trip is measured, and how often."""
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
    emit(State(text="reading the model" if isinstance(job, Beginning) else "connecting"))
    devices = pick_devices(peer.devices)
    set_threads(peer.threads, devices)
    given_up: list[Exception] = []
    place: list[_Server] = []

    def give_up(reason: Exception) -> None:
        given_up.append(reason)
        stop.set()

    served: ServedModel | None = None
    if isinstance(job, Beginning):
        serving, served = begun(job, peer)
        emit(Began(serving=serving.model_dump(mode="json")))
        peers, organizer = recall(peer.folder, serving.run_id).peers, None
    else:
        serving = serving_of(job)
        peers, organizer = initial_peers(job, peer.folder), job.organizer
        if job.organizer == str(Identity(peer.folder / "identity.key").peer_id):
            raise UserError("this is the folder of whoever began this swarm; serve with another --folder")
    secret = os.environ.pop(CODE, "")
    with member(
        *(serving, peer, peers),
        organizer=organizer,
        secret=secret,
        preferred_port=recall(peer.folder, serving.run_id).port,
        give_up=give_up,
        mine=lambda: place[0].says() if place else None,
    ) as me:
        if me.node.reach.text:
            emit(Warned(text=me.node.reach.text) if me.node.reach.uncertain else State(text=me.node.reach.text))
        role = _Server(serving, peer, me, describe_devices(devices), emit)
        place.append(role)
        with role.computing_in(served):
            role.serve(stop)
    if given_up:
        raise given_up[0]
    emit(Left(step=0, session_samples=0))


class _Server:
    """
    :param device: in words
    """

    def __init__(
        self, serving: ServingConfig, peer: ServerConfig, me: Member, device: str, emit: Callable[[AnyEvent], None]
    ) -> None:
        self._serving, self._peer, self._me, self._device, self._emit = serving, peer, me, device, emit
        self._config = configuration(serving.config)
        self._layers: int = self._config.num_hidden_layers
        self._choice = Choice(me.peer, self._layers, serving.manifest, me.offers)
        self._session = secrets.token_hex(8)
        self._credit = Credit(serving, peer.folder, me, self._session, self.says)
        self._state: Literal["joining", "online", "moving", "leaving"] = "joining"
        self._span: LayerRange | None = None
        """What it serves, or is about to."""
        self._begun = False
        self._mover, self._move = ThreadPoolExecutor(1, thread_name_prefix="mover"), Future[None]()
        self._move.set_result(None)
        self._speeds = Speeds(0.0, 0.0, 0.0)
        self._round_trips: dict[str, float] = {}
        self._measure_due = self._balance_due = 0.0
        self._memory = Memory(peer.folder, serving.run_id, me.peer, me.port)

    @contextmanager
    def computing_in(self, served: ServedModel | None) -> Iterator[None]:
        """Find out what to serve, load it, and answer from then on."""
        me, peer = self._me, self._peer
        self._computing = Computing()
        budget = Budget(peer.cache_tokens)
        self._spans = SpanService(me.caller, None, self._computing, budget, self._credit.receipts.computed)
        self._belongings = self._found(served)
        services = [self._spans, self._spans.push, ContentService(self._belongings.find), Pulse()]
        me.answer([*services, *self._credit.services], forwards=peer.forwarding)
        try:
            self._take(self._first_span())
            yield
        finally:
            self._computing.close()

    def _found(self, served: ServedModel | None) -> Belongings:
        serving, peer, me = self._serving, self._peer, self._me
        store = Store(peer.folder / "content")
        if served is not None:
            belongings = Belongings(serving, served.manifest, store, str(served.folder))
            for name in served.files:
                belongings.keep((served.folder / name).read_bytes())
            return belongings
        self._emit(State(text="asking who serves which layers"))
        me.offers.look(NEWCOMER_SECONDS)
        manifest = manifest_of(serving, me.loop, me.donors(), me.content)
        return Belongings(serving, manifest, store, peer.source)

    def _first_span(self) -> LayerRange:
        """Which layers this server is to take; raises UserError."""
        sizes = self._sizes = Sizes.of(self._config, self._belongings.manifest, self._peer.weights)
        if self._peer.span is not None:
            begin, end = map(int, self._peer.span.split(":"))
            if not begin < end <= self._layers:
                raise UserError(f"--span {self._peer.span}: the model has the layers 0:{self._layers}")
            return LayerRange(begin, end)
        count = min(self._layers, self._peer.blocks or layers_that_fit(sizes, self._peer.cache_tokens))
        speed = guessed_speed(sizes, count)
        self._speeds = Speeds(speed, 0.0, 0.0)
        first = self._choice.first(speed, count)
        self._span = first
        self._me.offers.tell()
        return first

    def _take(self, span: LayerRange) -> None:
        """Load these layers and serve them from then on."""
        self._span = self._span or span
        self._me.offers.tell()
        self._emit(State(text=f"loading the layers {span}"))
        module = Span(self._config, span.begin, span.end)
        wanted = module.wanted(self._belongings.manifest.tensors)

        def on_progress(received: int, total: int) -> None:
            self._emit(Loading(received_bytes=received, total_bytes=total))

        me = self._me
        self._belongings.obtain(wanted, me.loop, me.donors(), me.content, on_progress)
        module.requires_grad_(False)
        load(module, module.merged(wanted, self._belongings.tensors(wanted)), self._peer.weights)
        self._speeds = measured(module, torch.bfloat16 if self._peer.weights == "bfloat16" else torch.float32)
        self._me.loop.soon(self._spans.hold, Held(module, self._serving.manifest))
        self._span, self._state = span, "online"
        self._me.offers.tell()
        self._emit(State(text=f"serving the layers {span}"))

    def serve(self, stop: threading.Event) -> None:
        """Until told to stop: tell how it stands, and move to where this server is needed more."""
        parameters = sum(parameter.numel() for parameter in self._held.span.parameters()) if self._held else 0
        self._emit(
            Joined(
                run_id=self._serving.run_id,
                peer=self._me.peer,
                session=self._session,
                addresses=self._me.addresses,
                step=0,
                device=self._device,
                parameters=parameters,
            )
        )
        while not stop.wait(TELL_SECONDS):
            self._tell()
            self._credit.turn()
            if time.monotonic() >= self._balance_due:
                self._balance_due = time.monotonic() + BALANCE_SECONDS
                self._balance()
            if time.monotonic() >= self._measure_due:
                self._measure_due = time.monotonic() + MEASURE_SECONDS
                self._measure()
        self._mover.shutdown(wait=False, cancel_futures=True)
        self._emit(State(text="leaving"))
        self._state = "leaving"
        self._me.offers.tell()
        self._dismiss()
        self._credit.leave()

    @property
    def _held(self) -> Held | None:
        return self._spans.held

    def _dismiss(self) -> None:
        """Let those who are served go on elsewhere; waits until they have, at most some seconds."""
        held = self._held
        if held is None:
            return

        self._me.loop.soon(self._spans.hold, None)
        self._me.loop.soon(self._spans.dismiss, held)
        until = time.monotonic() + LEAVE_SECONDS
        while self._spans.sessions and time.monotonic() < until:
            time.sleep(0.1)

    def _balance(self) -> None:
        """Begin a move if it is this server's turn; it takes a thread of its own, for loading may take minutes."""
        if self._peer.span is not None or self._span is None or not self._move.done():
            return
        self._move.result()
        before = self._choice.announced(self._begun)
        target = self._choice.next(self._span, self._speeds.decoding)
        if target is not None:
            self._emit(State(text=f"moving from the layers {self._span} to {target}, which lack servers"))
            self._begun, self._state = True, "moving"
            self._move = self._mover.submit(self._move_to, target)
        if self._choice.announced(self._begun) != before:
            self._me.offers.tell()

    def _move_to(self, target: LayerRange) -> None:
        """Serve these layers instead; until they are loaded those of before, where the memory holds both."""
        before, held = self._span, self._held if has_room(self._sizes, len(target)) else None
        assert before is not None
        if held is None:
            self._dismiss()
            self._span, self._state = target, "joining"
        try:
            self._take(target)
            if held is not None:
                self._me.loop.soon(self._spans.dismiss, held)
        except UserError as error:  # nobody gives the weights
            self._emit(Warned(text=f"this server stays with the layers {before}: {error}"))
            self._span, self._state = before, "online"
            if held is None:
                self._take(before)
        finally:
            self._begun = False
            self._choice.done()
            self._me.offers.tell()

    def _measure(self) -> None:
        """The round trips to those who may come next."""
        assert self._span is not None
        near = [peer for peer, each in self._me.offers.others().items() if each.begin <= self._span.end < each.end][
            :NEIGHBOURS
        ]
        found = {}
        for peer in near:
            try:
                found[short_id(peer)] = self._me.loop.run(round_trip(self._me.caller, peer))
            except (OSError, EOFError, ValueError) as error:
                _log.info("no round trip to %s: %r", peer, error)
        self._round_trips = found

    def says(self) -> Serving | None:
        """What this server tells the others now."""
        span, me = self._span, self._me
        if span is None:
            return None
        budget = self._spans.budget
        return Serving(
            run_id=self._serving.run_id,
            version=self._serving.manifest,
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
            moving=self._choice.announced(self._begun),
            moved=self._choice.moved,
            pinned=self._peer.span is not None,
            forwards=self._peer.forwarding and not me.node.client_mode,
            round_trips=self._round_trips,
            client_mode=bool(me.node.client_mode),
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
        refused = dict(self._spans.rejections.all() + self._credit.refused())
        self._emit(Served(layers=self._layers, mine=own, servers=everyone, refused=refused))
        try:
            self._memory.update({peer: each.addresses for peer, each in others.items() if each.addresses})
        except OSError as error:
            _log.warning("the swarm's addresses cannot be kept (%s)", error.strerror)
