"""The organizer's auditor: of every global step it draws some contributions, and finds out who cheats.

It draws in secret, once the step is done, so nobody can know what will be asked. Everybody trusts the organizer's key
in any case; while it is away nobody is checked.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.audits.audit import AT_ONCE, KEPT_STEPS, Audit, Inquiry, Outcome, Result
from dedloc_kit.swarm.audits.averages import averaged_again, is_far_off
from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.audits.residuals import MAX_AUTHORS, Residuals
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.trust.labels import Brought, gradient_weights
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import claims_in, weight_of

ALARM_STEPS = 50
"""For so many steps after a conviction more is checked."""
ALARM_SHARE = 0.3
"""Of the contributions that are checked then, and of those of newcomers always."""
MOST_UNSHOWN = 5
"""Whoever has not shown its work so often, of as many steps, with no audit passed in between, is sent away."""
AUDITS_AT_ONCE, MAX_WAITING = 2, 16
_END = 2**60
"""A global step after all others: nothing matters any more."""
MOST_WRONG = 3
"""Whoever has made so many averages in a row that were far off is sent away."""
SPARED_STEPS = 20
"""Nobody is convicted again while it may not have heard yet that it is sent away."""

_log = logging.getLogger(__name__)


class Auditor:
    """Told of every step, it works in threads of its own.

    :param probation: what has been confirmed so far
    :param nothing: the root of the residuals before the first round
    :param sentence: told of every verdict, in one of these threads
    :param chance: nobody may foresee it
    """

    def __init__(
        self,
        trust: TrustConfig,
        probation: Probation,
        nothing: bytes,
        inquiry: Inquiry,
        sentence: Callable[[Verdict], None],
        chance: random.Random | None = None,
    ) -> None:
        self._trust, self._probation = trust, probation
        self._inquiry, self._sentence = inquiry, sentence
        self._chance = chance or random.SystemRandom()
        self._residuals = Residuals(nothing)
        self._lock = threading.Lock()
        self._line = ThreadPoolExecutor(AUDITS_AT_ONCE, "audit")
        self._step = self._alarm_until = self.waiting = 0
        self._unshown: dict[str, tuple[int, int]] = {}
        """How often in a row somebody did not show its work, and how many audits had passed by then."""
        self._wrong: dict[str, int] = {}
        """How many averages in a row of a reducer were far off."""
        self._convicted: dict[str, int] = {}
        self._closed = False
        self.tally = Checks(share=trust.share)
        """Without what holds now, see `checks`."""

    @property
    def share(self) -> float:
        """Of the contributions that are checked now."""
        return self._trust.share if self._alarm is None else max(self._trust.share, ALARM_SHARE)

    @property
    def checks(self) -> Checks:
        """How things stand, for everyone."""
        return self.tally.model_copy(update={"share": self.share, "alarm": self._alarm})

    @property
    def _alarm(self) -> int | None:
        """How many global steps ago it began, while it lasts."""
        ago = max(0, self._step - (self._alarm_until - ALARM_STEPS))
        return ago if ago < ALARM_STEPS else None

    def stepped(self, step: int, contributions: Mapping[str, Contribution]) -> None:
        """A global step is done, with these contributions by their authors."""
        counted = {peer: each for peer, each in contributions.items() if isinstance(each, Pledged) and each.samples}
        alone = len(counted) == 1 and not any(each.parts.strip(b"\x00") for each in counted.values())
        with self._lock:
            self._step = step
            # Who takes a step alone sends nothing to anybody, and has nothing to show.
            for peer in self._residuals.follow(step, {} if alone else counted):
                why = f"what compression left over is not that of its last contribution (global step {step})"
                self._submit(partial(self.convict, Verdict(peer, why, (counted[peer],))))
            for peer, pledged in {} if alone else counted.items():
                if self._drawn(peer, pledged):
                    self._submit(partial(self._audit, peer, pledged, self._residuals.earlier(peer)))
            for peer, samples in self._probation.due(counted).items():
                self._submit(partial(self._inquiry.confirm, peer, samples))
            suspected = self._wrong.keys() & contributions.keys()  # else one that has left would be looked for for ever
            if len(counted) > 1 and (suspected or self._chance.random() < self.share):
                weights = {peer: n for peer, n in self._probation.weigh(claims_in(contributions)).items() if n}
                self._submit(partial(self._audit_average, {peer: counted[peer] for peer in weights}, weights))

    @property
    def idle(self) -> bool:
        """Is nothing under way?"""
        return not self.waiting

    def close(self) -> None:
        """Does not wait for audits that are under way."""
        self._closed = True
        self._line.shutdown(wait=False, cancel_futures=True)

    def _drawn(self, peer: str, pledged: Pledged) -> bool:
        share = max(self.share, ALARM_SHARE if self._probation.untried(pledged) else 0.0)
        return not self._spared(peer) and (peer in self._unshown or self._chance.random() < share)

    def _spared(self, peer: str) -> bool:
        return self._step < self._convicted.get(peer, -SPARED_STEPS) + SPARED_STEPS

    def _submit(self, task: Callable[[], None]) -> None:
        """Not if too much waits already."""
        if self.waiting < MAX_WAITING and not self._closed:
            self.waiting += 1
            self._line.submit(self._do, task)

    def _do(self, task: Callable[[], None]) -> None:
        try:
            if not self._closed:
                task()
        except Exception as error:  # no audit may end those after it
            _log.warning("an audit could not be finished: %.200r", error)
        finally:
            with self._lock:
                self.waiting -= 1

    def _audit(self, author: str, pledged: Pledged, earlier: Sequence[Pledged]) -> None:
        outcome = Outcome("given up")
        if self._newest() <= pledged.step + KEPT_STEPS:  # else it has waited too long, and what is new is better asked
            outcome = Audit(author, pledged, earlier, self._inquiry, self._newest, self._chance).outcome()
        _log.info("audit of %s in global step %d: %s", author, pledged.step, outcome.result)
        for verdict in outcome.verdicts:
            self.convict(verdict)
        with self._lock:
            unshown = self._note(author, outcome.result, pledged)
        if unshown is not None:
            self.convict(unshown)

    def _audit_average(self, counted: Mapping[str, Pledged], weights: Mapping[str, int]) -> None:
        """Average a chunk again that a reducer has averaged."""
        pledges = list(counted.values())
        group = pledges[0].group if pledges else ""
        reducers = self._inquiry.reducers(group)
        if not reducers:
            return
        suspects = [number for number, reducer in enumerate(reducers) if reducer in self._wrong]
        number = self._chance.choice(suspects or range(len(reducers)))
        try:
            made = self._inquiry.made(group, number)
            with ThreadPoolExecutor(AT_ONCE, "parts") as line:
                shown = line.map(lambda each: self._inquiry.sent(each[0], each[1], number), counted.items())
                parts = list(shown)
        except (NoAnswer, ValueError):
            return  # whoever does not show its part is found by other audits
        brought = [Brought(each.samples, weight_of(each), weights[peer]) for peer, each in counted.items()]
        right = averaged_again(parts, gradient_weights(brought), self._trust)
        with self._lock:
            wrong = self._note_average(reducers[number], is_far_off(made, right))
        if wrong:
            why = f"what it averaged is not what was sent (global step {pledges[0].step})"
            self.convict(Verdict(reducers[number], why, tuple(pledges)))

    def _note_average(self, reducer: str, far_off: bool) -> bool:
        """Was it wrong too often?"""
        if not far_off or self._spared(reducer):
            self._wrong.pop(reducer, None)
            return False
        self._wrong[reducer] = self._wrong.get(reducer, 0) + 1
        for peer in list(self._wrong)[:-MAX_AUTHORS]:
            del self._wrong[peer]
        return self._wrong[reducer] >= MOST_WRONG

    def _newest(self) -> int:
        return _END if self._closed else self._step

    def _note(self, author: str, result: Result, pledged: Pledged) -> Verdict | None:
        """Count it; who has not shown its work too often is sent away."""
        if result == "passed":
            self.tally = self.tally.model_copy(update={"passed": self.tally.passed + 1})
            self._unshown.pop(author, None)
            self._probation.passed(author, pledged)
        if result in ("passed", "convicted"):
            return None
        self.tally = self.tally.model_copy(update={"given_up": self.tally.given_up + 1})
        times, passed = self._unshown.get(author, (0, -1))
        # Where nobody's work can be computed, it is not its author's doing.
        if result == "silent" or (result == "uncomputed" and self.tally.passed > max(passed, 0)):
            times += 1
            self._unshown[author] = times, self.tally.passed
            for peer in list(self._unshown)[:-MAX_AUTHORS]:
                del self._unshown[peer]
        if times < MOST_UNSHOWN:
            return None
        return Verdict(author, f"it does not show its work (global step {pledged.step})", (pledged,))

    def convict(self, verdict: Verdict) -> None:
        """What was found is proof; also of what was found elsewhere."""
        with self._lock:
            if self._spared(verdict.peer):
                return
            self._convicted[verdict.peer] = self._step
            for peer in list(self._convicted)[:-MAX_AUTHORS]:
                del self._convicted[peer]
            self._unshown.pop(verdict.peer, None)
            self._wrong.pop(verdict.peer, None)
            last_passed = self._probation.convicted(verdict.peer)
            self._alarm_until = self._step + ALARM_STEPS
            self.tally = self.tally.model_copy(update={"convicted": self.tally.convicted + 1})
        self._sentence(replace(verdict, last_passed=last_passed))
