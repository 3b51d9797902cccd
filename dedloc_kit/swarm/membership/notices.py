"""Keeps a peer in the swarm: it follows the organizer's notices, which the coordinator writes, renews its token, and
finds out if it was sent away."""

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hivemind.dht import DHTNode
from hivemind.utils import get_dht_time

from dedloc_kit.access.admission import Office
from dedloc_kit.access.denials import explained
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.records.orders import Notice, shortened
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.membership.admission import ANSWER_SECONDS, ask_again, keep_token
from dedloc_kit.swarm.network.gate import Gate, NotAdmitted
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.kinds import NOTICE
from dedloc_kit.swarm.network.node import Node

FOLLOW_SECONDS = 5.0
"""Between two looks at the notices, and at the organizer's folder."""
REPEAT_SECONDS = 15.0
"""The organizer says again what it has said, so that all know that it is there."""
SILENCE_SECONDS = 35.0
"""Who hears no notice for so long asks the organizer itself: it may have been sent away."""
DHT_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Membership(threading.Thread):
    """Runs beside what a peer does in the swarm from its first moment there to its last.

    :param reject: told why a record is ignored
    :param tell: called with the gate when who may take part has changed, for whatever else of this peer has to know
    """

    def __init__(
        self, node: Node, signer: Signer, reject: Callable[[str], None], tell: Callable[[Gate], object]
    ) -> None:
        super().__init__(name="membership", daemon=True)
        self._node, self._gate, self._signer = node, node.gate, signer
        self._tell_others = tell
        self._notices = Directory(node, NOTICE, self._gate.run_id, reject=reject)
        self._warned = ""
        self._stopped = threading.Event()

    @abstractmethod
    def turn(self) -> None:
        """Write or read, and act on it."""

    def stop(self) -> None:
        """Returns soon: a question to an organizer that is gone may still wait for its answer."""
        self._stopped.set()
        if self.is_alive():
            self.join(1.0)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.turn()
            except UserError as error:  # the organizer's folder is damaged
                self._warn(str(error))
            except Exception as error:  # the directory may be slow or gone for a while; this must outlive that
                self._warn(f"the organizer's notices cannot be had now ({error!r:.100}); trying again")
            self._stopped.wait(FOLLOW_SECONDS)

    def _take(self, notice: Notice) -> None:
        """Let all processes of this peer know."""
        gate = self._gate
        gate.follow(gate.token, notice)
        self._node.run_coroutine(partial(_follow, gate.token, notice), return_future=True)
        self._tell_others(gate)

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            _log.warning(problem)


class NoticeWriter(Membership):
    """The coordinator's.

    :param office: knows whom the organizer has sent away
    :param position: the global step that it holds, and the round that led to it; none while it starts, and where
        nothing is trained
    """

    def __init__(
        self,
        node: Node,
        signer: Signer,
        reject: Callable[[str], None],
        tell: Callable[[Gate], object],
        office: Office,
        position: Callable[[], tuple[int, str] | None] = lambda: None,
    ) -> None:
        super().__init__(node, signer, reject, tell)
        self._office, self._position = office, position

    def turn(self) -> None:
        if crowded := self._office.crowded():
            self._warn(
                f"more machines wait than 'dedloc run invite --machines' allows, of {', '.join(sorted(crowded))}"
            )
        refused, said = self._office.refused(), self._gate.notice
        everyone = shortened(refused)
        step, round_id = self._position() or (None, "")
        now = float(get_dht_time())
        news = (everyone, step, round_id) != (said.refused, said.step, said.round)
        if not news and now < said.time + REPEAT_SECONDS:
            return
        values = {"run_id": self._gate.run_id, "time": now, "refused": refused, "step": step, "round": round_id}
        notice = Notice.parse(values)
        self._take(notice.model_copy(update={"refused": everyone}))  # this peer itself can know any number
        self._notices.store(self._signer, notice, peers=0).result(DHT_SECONDS)


class NoticeFollower(Membership):
    """Everybody else's: also renews the token.

    :param identity: beside its key the token is kept
    :param give_up: called when the organizer does not want this peer here any more
    """

    def __init__(
        self,
        node: Node,
        signer: Signer,
        reject: Callable[[str], None],
        tell: Callable[[Gate], object],
        identity: Identity,
        give_up: Callable[[Exception], None],
    ) -> None:
        super().__init__(node, signer, reject, tell)
        self._identity, self._give_up = identity, give_up
        self._heard = self._asked = time.monotonic()

    def turn(self) -> None:
        notice = None
        with suppress(TimeoutError):  # maybe because nobody answers this peer any more
            notice = self._newest()
        if notice is not None and notice.time > self._gate.notice.time:
            self._heard = time.monotonic()
            self._take(notice)
        now = time.monotonic()
        silent = now > max(self._heard, self._asked) + SILENCE_SECONDS
        if silent or (self._gate.token and self._half_used() and now > self._asked + SILENCE_SECONDS):
            self._asked = now
            self._ask()

    def _take(self, notice: Notice) -> None:
        super()._take(notice)
        if notice.refuses(self._signer.peer):
            self._ask()  # why
            self._give_up(explained("kicked"))

    def _newest(self) -> Notice | None:
        # Whoever has heard of the organizer lately has heard its newest notice.
        lately = REPEAT_SECONDS + FOLLOW_SECONDS
        return self._notices.look(peers=0, timeout=DHT_SECONDS, age=lately).get(self._gate.organizer)

    def _half_used(self) -> bool:
        token = self._gate.read(self._gate.token)
        return float(get_dht_time()) > (token.time + token.expires) / 2

    def _ask(self) -> None:
        """Ask the organizer for the next token, or, in an open run, whether this peer may stay."""
        ask = partial(ask_again, self._gate.organizer, self._gate.run_id)
        answer = self._node.run_coroutine(ask, return_future=True).result(ANSWER_SECONDS + DHT_SECONDS)
        if answer is None:
            return  # the organizer is not there; those who are in go on
        if answer.denial is not None:
            refusal = explained(answer.denial, answer.why)
            if isinstance(refusal, NotWelcome):
                self._give_up(refusal)
            return
        if answer.token:
            try:
                self._gate.hold(answer.token)
            except NotAdmitted:
                return
            keep_token(self._identity, answer.token)
            self._take(self._gate.notice)


async def _follow(token: bytes, notice: Notice, node: Node, _: DHTNode) -> None:
    node.gate.follow(token, notice)
