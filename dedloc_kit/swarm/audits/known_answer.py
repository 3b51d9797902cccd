"""A known answer: a newcomer whose machine computes wrongly finds it out before any of its samples counts.

It computes one microbatch, which is the same for all, with the parameters that it has got, and asks the coordinator
what comes out. Bad memory, too high a clock or a wrong build would otherwise look like a cheat to an audit. Who cheats
can leave this out, and is left to the audits. Where the coordinator cannot say, everybody goes on.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.computing.recomputing import Again
from dedloc_kit.learning.train.state.sketch import differ, sketch
from dedloc_kit.swarm.audits.audit import apart
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.projections import TOLERANCE
from dedloc_kit.swarm.audits.questions import AskKnown, Found, Known, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.network.host import Host
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, RecordService
from dedloc_kit.swarm.trust.pledge import Work, pieces

SAMPLES = 4
"""Of the microbatch, where the run does not say how many belong together."""
KNOWN_SECONDS = 20.0
"""So long a newcomer waits for the answer at most; the next one gets it at once."""
MAX_KNOWN = 32
"""Answers that are kept: more than there are steps whose parameters the coordinator keeps."""
MOST_EACH, MOST_PEERS, EACH_SECONDS = 4, 1024, 3600.0
"""So often each of so many peers is answered within so many seconds."""
_LOOK_SECONDS = 0.1

_log = logging.getLogger(__name__)


def known_question(run: RunConfig, organizer: str, size: int, step: int) -> Recompute:
    """What everybody computes with the parameters of a step, which are so many values: the first microbatch of data
    that nobody trains on, for no volunteer has the organizer's key."""
    seed = hashlib.sha256(f"{run.run_id} known answer {step}".encode()).digest()
    chunks = pieces(size)
    begin, end = chunks[int.from_bytes(seed[:8], "big") % len(chunks)]
    work = Work(block=0, missing=None, position=0, samples=run.microbatch or SAMPLES, step=step).content
    return Recompute(author=organizer, session="", work=work, begin=begin, end=end, seed=seed)


class KnownAnswers(RecordService[AskKnown, Known]):
    """Tells members the answer, on the organizer's side; asks for it on the others'. One is computed at a time, and of
    each step once."""

    name = "known-answer"
    question, reply = AskKnown, Known

    def __init__(self, endpoint: Endpoint, organizer: str, me: str) -> None:
        self._endpoint, self._organizer, self._me = endpoint, organizer, me
        self._answers: dict[int, Known] = {}
        self._computing: tuple[int, asyncio.Future[Known]] | None = None
        self._waiting: asyncio.Queue[int] = asyncio.Queue()
        self._asked = Counter[str]()
        self._counted_since = 0.0

    async def answer(self, peer: str, question: AskKnown) -> Known:
        if self._me != self._organizer:
            raise ValueError("this is not the organizer")
        self._count(peer)
        if question.step in self._answers:
            return self._answers[question.step]
        if self._computing is None:
            self._computing = question.step, asyncio.get_running_loop().create_future()
            self._waiting.put_nowait(question.step)
        step, answer = self._computing
        if step != question.step:
            return Known()
        async with asyncio.timeout(KNOWN_SECONDS):
            return await asyncio.shield(answer)  # others wait for it too

    def _count(self, peer: str) -> None:
        """Raises ValueError if it asks too often, or too many do."""
        now = time.monotonic()
        if now >= self._counted_since + EACH_SECONDS:
            self._asked.clear()
            self._counted_since = now
        if self._asked[peer] >= MOST_EACH or (peer not in self._asked and len(self._asked) >= MOST_PEERS):
            raise ValueError(f"{peer} or everybody asks too often")
        self._asked[peer] += 1

    # Called by the coordinator

    async def next(self) -> int:
        """The step whose answer is wanted next, as soon as there is one."""
        return await self._waiting.get()

    def give(self, known: Known) -> None:
        """The answer to what `next` has given last."""
        assert self._computing is not None
        step, answer = self._computing
        self._computing = None
        answer.set_result(known)
        if known.norms:
            self._answers[step] = known
            for old in list(self._answers)[:-MAX_KNOWN]:
                del self._answers[old]

    # Called by a newcomer

    async def ask(self, step: int) -> Known:
        """What the coordinator finds; raises NoAnswer."""
        return await self._endpoint.ask(self._organizer, self, AskKnown(step=step), KNOWN_SECONDS)


class Knowing:
    """What the coordinator does about questions, in a thread of its own, until the host ends.

    :param host: where the KnownAnswers live
    :param question: of a step
    :param parameters: of the steps whose answer can be known
    """

    def __init__(
        self, host: Host, question: Callable[[int], Recompute], recomputer: Recomputer, parameters: KeptParameters
    ) -> None:
        self._host, self._question = host, question
        self._recomputer, self._parameters = recomputer, parameters
        threading.Thread(target=self._serve, name="known answers", daemon=True).start()

    def _serve(self) -> None:
        with suppress(RuntimeError):  # that the process has died is found elsewhere
            while True:
                step = self._host.call(KnownAnswers.next).result()
                self._host.call(KnownAnswers.give, self._known(step)).result()

    def _known(self, step: int) -> Known:
        try:
            question = self._question(step)
            found, parameters = self._recomputer.answer(question), self._parameters.read(step)
            if parameters is not None and found.norms:
                (numbers,) = sketch([parameters], question.seed)
                return Known(**found.model_dump(), sketch=tuple(numbers))
        except Exception as error:  # no newcomer may end it for those after it
            _log.warning("the known answer of step %d cannot be computed: %.200r", step, error)
        return Known()


class Trial:
    """What a newcomer does about its own computing.

    :param host: where the KnownAnswers live
    :param question: of a step
    :param parameters: that this peer has got
    """

    def __init__(
        self, host: Host, question: Callable[[int], Recompute], recomputer: Recomputer, parameters: KeptParameters
    ) -> None:
        self._host, self._question = host, question
        self._recomputer, self._parameters = recomputer, parameters

    def prepare(self) -> None:
        """Read the data, so that the trial is short."""
        self._recomputer.prepare(self._question(0))

    def failed(self, step: int, computing: Sequence[tuple[str, Again]], stop: threading.Event) -> list[str]:
        """Who computes wrongly, and does so twice, for a fault may pass; nobody as soon as `stop` is set.

        :param step: whose parameters this peer holds
        :param computing: those who compute, by name
        """
        question = self._question(step)
        answer = self._host.call(KnownAnswers.ask, step)  # it is computed there meanwhile
        first = [self._recomputer.answer(question, again) for _, again in computing]
        known = self._known(question, step, answer, stop)
        return [
            name
            for (name, again), found in zip(computing, first, strict=True)
            if _wrong(known, found) and _wrong(known, self._recomputer.answer(question, again))
        ]

    def _known(self, question: Recompute, step: int, answer: Future[Known], stop: threading.Event) -> Known:
        """Nothing if the coordinator cannot say, or has come to other parameters in this step."""
        while not stop.is_set() and not wait([answer], _LOOK_SECONDS).done:
            pass
        try:
            known, parameters = answer.result(0), self._parameters.read(step)
            if parameters is not None and not differ([parameters], question.seed, [list(known.sketch)]):
                return known
        except (NoAnswer, RuntimeError, TimeoutError, ValueError):  # a sketch of nothing fits nothing
            pass
        _log.info("the coordinator cannot say whether this machine computes rightly")
        return Known()


def _wrong(known: Known, found: Found) -> bool:
    """Is that another gradient? What is not known, or could not be computed, is not."""
    try:
        (right,), (mine,) = known.recomputed(), found.recomputed()
    except ValueError:
        return False
    return not apart(mine, right) <= TOLERANCE
