"""A server's side of sessions: steps come from the client or from the server before, and go on to the next one."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from torch import Tensor

from dedloc_kit.records.record import MAX_REASON
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.network.bounds import ByteBudget, TooMuch
from dedloc_kit.swarm.network.service import Service, Stream, encode
from dedloc_kit.swarm.remote.lines import Line, Opener
from dedloc_kit.swarm.remote.listening import Listening
from dedloc_kit.swarm.remote.tensors import BadTensor, receive_tensor, send_tensor
from dedloc_kit.swarm.serving.protocol import (
    Backward,
    Call,
    Done,
    Neighbours,
    Open,
    Opened,
    Output,
    Pass,
    PushOpen,
    Redirect,
    Refusal,
    Refused,
    Step,
    receive_reply,
    receive_request,
)
from dedloc_kit.swarm.serving.server import chunks
from dedloc_kit.swarm.serving.server.adapters import Adapters, flat
from dedloc_kit.swarm.serving.server.computing import FEW_TOKENS, Computing, Priority
from dedloc_kit.swarm.serving.server.sessions import UNUSED_SECONDS, Budget, Held, Session, call_bytes
from dedloc_kit.swarm.transfer.protocol import alive_until

PUSH_SECONDS = 10.0
"""Whoever has not taken an output after this long does not get it from us."""
STALLED_SECONDS = 30.0
"""For which a tensor may stall on its way: what is reserved for it is nobody else's meanwhile."""

_log = logging.getLogger(__name__)


class PushService(Service):
    """Takes the outputs of other servers for the sessions whose clients have announced it."""

    name = "push"

    def __init__(self, spans: "SpanService") -> None:
        self._spans = spans

    async def serve(self, peer: str, stream: Stream) -> None:
        with self._spans.counted():
            opening = await stream.receive_question(PushOpen)
            place = opening.client, opening.session
            try:
                session = self._session(place, peer)
            except Refusal as refusal:
                await stream.send(encode(_refused(refusal)))
                raise
            await stream.send(encode(Opened()))
            pushing = asyncio.ensure_future(self._take(place, peer, session, stream))
            session.pushed_by(pushing)
            try:
                await asyncio.wait({pushing})
                if pushing.cancelled():
                    raise EOFError("its session is over, or somebody else pushes")
                pushing.result()
            finally:
                pushing.cancel()

    async def _take(self, place: tuple[str, str], peer: str, session: Session, stream: Stream) -> None:
        while True:
            step = await stream.receive_record(Step, session.request_bytes)
            session = self._session(place, peer)
            try:
                if not step.number:
                    raise Refusal("order", "a past is the client's to tell")
                await self._spans.take(session, step, stream)
            except ValueError as error:
                await self._tell(session, error)
                raise

    async def _tell(self, session: Session, error: ValueError) -> None:
        """The client hears at once that it has to find another way, for it waits for an output."""
        ours = isinstance(error, Refusal) and error.kind in ("full", "moving", "failed")
        async with session.lock:
            await session.stream.send(encode(_refused(error if ours else Refusal("push", str(error)))))
            session.stream.close()

    def _session(self, place: tuple[str, str], peer: str) -> Session:
        session = self._spans.sessions.get(place)
        if session is None or session.neighbours.previous != peer:
            raise Refusal("push", "nobody has announced it")
        return session


class SpanService(Service):
    """Computes layers for clients. `push` is to be registered as well.

    :param room: for what calls bring and are answered with, by the client whose session they are for
    :ivar held: what new sessions get, the newest version first; those that have begun stay with theirs
    :ivar sessions: by client and session
    :ivar rejections: what was refused, by kind
    """

    name = "span"

    def __init__(
        self,
        opener: Opener,
        held: tuple[Held, ...],
        computing: Computing,
        budget: Budget,
        room: ByteBudget,
    ) -> None:
        self.held = held
        self.budget = budget
        self.adapters = Adapters()
        self.push = PushService(self)
        self.sessions: dict[tuple[str, str], Session] = {}
        self.rejections = Rejections()
        self.served = 0
        """Tokens times layers."""
        self._opener, self._room = opener, room
        self._computing = computing
        self._backward = asyncio.Lock()  # one at a time: what goes into layers is kept meanwhile

    def hold(self, *held: Held) -> None:
        """What new sessions get from now on, the newest version first."""
        self.held = held

    def answers(self, held: Held) -> bool:
        """Has it sessions now?"""
        return any(session.held is held for session in list(self.sessions.values()))

    def dismiss(self, held: Held) -> None:
        """Its sessions go elsewhere with their next step."""
        for session in self.sessions.values():
            session.dismissed = session.dismissed or session.held is held

    async def serve(self, peer: str, stream: Stream) -> None:
        try:
            with self.counted():
                await self._serve(peer, stream)
        except Refusal as refusal:
            await stream.turn_down(encode(_refused(refusal)), refusal)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is wrong with what a peer sends becomes a Refusal and is counted."""
        try:
            yield
        except EOFError:
            raise
        except Refusal as refusal:
            self.rejections.add(refusal.kind)
            raise
        except BadTensor as error:
            self.rejections.add(error.kind)
            raise Refusal(error.kind, str(error)) from None
        except TimeoutError:
            self.rejections.add("silent")
            raise
        except ValueError as error:
            self.rejections.add("nonsense")
            raise Refusal("nonsense", str(error)) from None

    async def _serve(self, peer: str, stream: Stream) -> None:
        opened = await stream.receive_question(Open)
        place = peer, opened.session
        if place in self.sessions:
            raise Refusal("order", "there is this session already")
        held = self._checked(opened)
        with closing(self.budget.reserve(peer, opened.rows * opened.length)) as reservation:
            session = self.sessions[place] = Session(peer, stream, opened, held, reservation)
            try:
                async with asyncio.timeout(UNUSED_SECONDS) as session.over, self.adapters.used(session):
                    await stream.send(encode(Opened()))
                    while True:
                        await self._answer(session)
            finally:
                del self.sessions[place]
                session.pushed_by(None)
                await self._hang_up(session)

    def _checked(self, opened: Open) -> Held:
        if not self.held:
            raise Refusal("moving", "nothing is served here at the moment")
        held = next((each for each in self.held if each.version == opened.version), None)
        if held is None:
            raise Refusal("version", f"served is {self.held[0].version[:16]}")
        if not held.begin <= opened.begin < opened.end <= held.end:
            raise Refusal("span", f"served are the layers {held.begin}:{held.end}")
        return held

    async def _answer(self, session: Session) -> None:
        """What the client asks next."""
        request = await receive_request(session.stream, session.request_bytes)
        session.heard()
        match request:
            case Step():
                await self.take(session, request, session.stream)
            case Redirect():
                async with session.lock:
                    await self._redirect(session, request.neighbours)
            case Pass() | Backward():
                await self._without_past(session, request)

    async def take(self, session: Session, step: Step, source: Stream) -> None:
        """Take the hidden states of a step, compute it, answer its client and hand it on."""
        session.check(step)
        with self._place(session, step):
            hidden = await self._came(session, step, source)
            async with session.lock:
                session.check(step)  # meanwhile it may have come from another side
                await self._step(session, step, hidden)
        session.heard()

    @contextmanager
    def _place(self, session: Session, call: Call) -> Iterator[None]:
        """While a call is received, computed and answered; raises Refusal if there is no room for it."""
        chunks.check(call, session.span, backward=isinstance(call, Backward))
        size = call_bytes(call.rows, call.tokens, session.span.config.hidden_size)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._room.place(session.peer, size))
            except TooMuch as error:
                raise Refusal("full", str(error)) from None
            yield

    async def _came(self, session: Session, call: Call, source: Stream) -> Tensor:
        """A tensor of a call."""
        shape = call.rows, call.tokens, session.span.config.hidden_size
        listening = Listening(source, STALLED_SECONDS, STALLED_SECONDS)
        tensor = await listening.heard(receive_tensor(source, shape))
        session.heard()
        return tensor

    async def _step(self, session: Session, step: Step, hidden: Tensor) -> None:
        try:
            output = session.known(step)
            if output is None:
                output = await alive_until(session.stream, self._computed(session, step, hidden))
                if step.number:
                    session.kept = step, output
        except Exception as error:
            session.dismissed = True  # the past is of no use any more
            _log.warning("a session ends: %r", error)
            raise error if isinstance(error, Refusal | OSError) else Refusal("failed", repr(error)) from None
        pushing = asyncio.ensure_future(self._push(session, step, output))
        try:
            if step.output:
                await session.stream.send(encode(Output(number=step.number)))
                await send_tensor(session.stream, output)
            pushed = await alive_until(session.stream, _result(pushing))
        finally:
            pushing.cancel()
        await session.stream.send(encode(Done(number=step.number, pushed=pushed)))

    async def _computed(self, session: Session, step: Step, hidden: Tensor) -> Tensor:
        priority = Priority.TOKEN if step.rows * step.tokens <= FEW_TOKENS else Priority.PROMPT
        given = session.past, session.span, step, hidden, session.opened.form
        output = await chunks.forward(self._computing, priority, *given)
        self._count(session, step)
        return output

    async def _without_past(self, session: Session, asked: Pass | Backward) -> None:
        if asked.past:
            raise Refusal("past", "there is none in such a call")
        asked.check(session.opened.rows, session.opened.length)
        with self._place(session, asked):
            hidden = await self._came(session, asked, session.stream)
            gradient = await self._came(session, asked, session.stream) if isinstance(asked, Backward) else None
            async with session.lock:
                output, of_adapter = await alive_until(session.stream, self._training(session, asked, hidden, gradient))
                self._count(session, asked)
                await session.stream.send(encode(Output(number=0)))
                await send_tensor(session.stream, output, form=session.opened.form)
                await session.stream.send(encode(Done(number=0)))
                if of_adapter:
                    await send_tensor(session.stream, flat(of_adapter))

    async def _training(
        self, session: Session, asked: Pass | Backward, hidden: Tensor, gradient: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A span's output, or the gradient of its input, as they travel, and those of the adapter's tensors."""
        span, form = session.span, session.opened.form
        if gradient is None:
            past = session.without_past(asked)
            return await chunks.forward(self._computing, Priority.TRAINING, past, span, asked, hidden, form), {}
        async with self._backward:
            return await chunks.backward(self._computing, span, session.adapter, asked, hidden, gradient, form)

    def _count(self, session: Session, call: Call) -> None:
        self.served += call.rows * call.tokens * session.span.config.num_hidden_layers

    async def _redirect(self, session: Session, neighbours: Neighbours) -> None:
        if neighbours.next_session != session.neighbours.next_session:
            await self._hang_up(session)
        session.neighbours = neighbours
        await session.stream.send(encode(Done(number=0)))

    async def _push(self, session: Session, step: Step, output: Tensor) -> bool:
        """Hand an output on; False if that does not work, then it is the client's to do until it says otherwise."""
        to = session.neighbours
        if not to.next or not step.number:
            return False
        try:
            async with asyncio.timeout(PUSH_SECONDS):
                if session.line is None:
                    opening = encode(PushOpen(client=session.peer, session=to.next_session))
                    session.line = await Line.open(self._opener, to.next, PushService, opening)
                    if not isinstance(await receive_reply(session.line.stream), Opened):
                        raise ConnectionRefusedError("it is not expected there")
                await session.line.stream.send(encode(step))
                await send_tensor(session.line.stream, output)
                return True
        except (OSError, EOFError, ValueError) as error:
            _log.debug("an output is not taken by %s: %r", to.next, error)
            session.neighbours = to.model_copy(update={"next": "", "next_session": ""})
            await self._hang_up(session)
            return False

    async def _hang_up(self, session: Session) -> None:
        line, session.line = session.line, None
        if line is not None:
            await line.close()


def _refused(error: ValueError) -> Refused:
    text = "".join(letter if letter.isprintable() else " " for letter in str(error))
    return Refused(why=error.kind if isinstance(error, Refusal) else "nonsense", text=text[:MAX_REASON])


async def _result(task: "asyncio.Future[bool]") -> bool:
    return await task
