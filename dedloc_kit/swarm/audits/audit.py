"""One audit: is what a member sent in a step the gradient of the work that it names?

Its author shows what it committed to, others compute its microbatches again, and a few projections must add up. If they
do not, its author accounts for its work in the same numbers. Either that does not add up to what it sent, or it and a
checker say different things about some microbatch, and this alone is computed by the organizer: so whoever accuses
falsely is found as well, and nobody is found guilty by the word of another member.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import median_low
from typing import Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor, isfinite

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.audits.projections import TOLERANCE, Recomputed, difference, project
from dedloc_kit.swarm.audits.proofs import Contradiction, Proven, Shown
from dedloc_kit.swarm.audits.questions import MAX_ASKED, Found, Prove, Recompute
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.network.service import NoAnswer
from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS
from dedloc_kit.swarm.trust.pledge import Pledged, Work, overlap

OWN_SHARE = 0.05
"""Of the lots that the organizer computes itself, so that those who cover for each other cannot rely on it."""
DEALS = 3
"""How often a lot is given to another volunteer because one did not answer."""
AT_ONCE = 8
"""Volunteers that compute for one audit at the same time."""
LARGEST = 2.0**150
"""No gradient that was computed has a norm or a projection of this size, and its square is still a number."""

GIVEN_UP_STEPS = 10
"""An audit that takes longer is of no use."""
KEPT_STEPS = 2
"""For so long everybody must have what it committed to, and computed with: later its silence proves nothing."""

Result = Literal["passed", "convicted", "silent", "uncomputed", "given up"]


class Outcome(NamedTuple):
    result: Result
    """`silent`: its author did not show, or account for, its work; `uncomputed`: nobody could compute it; `given up`:
    it came too late, or cannot be decided."""
    verdicts: tuple[Verdict, ...] = ()


class Inquiry(Protocol):
    """How an auditor gets to know what it asks for; all may be called in several threads, and take their time."""

    def here(self) -> Mapping[str, float]:
        """The volunteers of now, with their samples per second."""

    def prove(self, peer: str, question: Prove) -> Shown:
        """Raises NoAnswer."""

    def proven(self, pledged: Pledged, question: Prove, shown: Shown) -> Proven:
        """What follows from what was shown; raises Contradiction, or ValueError for what shows nothing."""

    def work(self, peer: str, pledged: Pledged) -> list[Work]:
        """Of a contribution; raises as `prove` and `proven`."""

    def recompute(self, peer: str, question: Recompute) -> Found:
        """Raises NoAnswer."""

    def own(self, question: Recompute) -> Found:
        """The same by the organizer itself."""

    def confirm(self, peer: str, samples: int) -> None:
        """Tell a peer that so much is confirmed of it."""

    def reducers(self, group: str) -> tuple[str, ...]:
        """Who averaged each chunk of a round; nobody if that is not known (any more)."""

    def made(self, group: str, number: int) -> Tensor:
        """What its reducer made of a chunk, float32 [numel], as all decode it; raises ValueError if it is not known
        (any more)."""

    def sent(self, peer: str, pledged: Pledged, number: int) -> Tensor:
        """What a member sent of a chunk, float32 [numel]; raises NoAnswer, or ValueError for nonsense."""


class _End(Exception):
    """There is nothing more to find out."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result


class _Account(NamedTuple):
    """What somebody says of a microbatch."""

    by: str
    """Empty: the organizer itself, whose word is the last."""
    work: Recomputed
    said: Found


class Audit:
    """Of one contribution.

    :param author: who has brought it
    :param earlier: what it has brought shortly before
    :param newest: the global step that the run has come to
    :param chance: for what nobody may foresee
    """

    def __init__(
        self,
        author: str,
        pledged: Pledged,
        earlier: Sequence[Pledged],
        inquiry: Inquiry,
        newest: Callable[[], int],
        chance: Random,
    ) -> None:
        self._earlier = [each for each in earlier if each.session == pledged.session]
        self._author, self._pledged, self._inquiry = author, pledged, inquiry
        self._newest, self._chance = newest, chance
        self._records: list[Record] = [pledged]

    def outcome(self) -> Outcome:
        """Find out; takes minutes, as a rule."""
        try:
            return self._find_out()
        except _End as end:
            return Outcome(end.result)

    def _find_out(self) -> Outcome:
        seed = self._chance.randbytes(32)
        try:
            proven = self._proven()
            if not isfinite(proven.implied).all():
                raise Contradiction("what it compressed is not finite")
            if not proven.work or any(line.step >= self._pledged.step for line in proven.work):
                raise Contradiction("it names no work, or parameters that did not exist yet")
            if overlap([*proven.work, *self._earlier_work()]):
                raise Contradiction("it brings work again that it has brought before")
        except Contradiction as lie:
            return self._convicted([self._guilty(self._author, str(lie))])
        if proven.window.begin >= proven.window.end:
            raise _End("given up")  # of a tiny part
        work, claimed = proven.work, project(proven.implied, seed)
        question = Recompute(
            author=self._author,
            session=self._pledged.session,
            work=work[0].content,
            begin=proven.window.begin,
            end=proven.window.end,
            seed=seed,
        )
        lots = [
            _Lot(question, range(at, min(at + MAX_ASKED, len(work))), work) for at in range(0, len(work), MAX_ASKED)
        ]
        found = self._checked(lots)
        if difference(claimed, [found[number].work for number in range(len(work))]) <= TOLERANCE:
            return Outcome("passed")
        own = self._accounted(lots)
        if not difference(claimed, [own[number].work for number in range(len(work))]) <= TOLERANCE:
            self._records += [question, *{id(each.said): each.said for each in own.values()}.values()]
            return self._convicted([self._guilty(self._author, "what it sent is not the gradient of its work")])
        worst = max(found, key=lambda number: apart(own[number].work, found[number].work))
        if apart(own[worst].work, found[worst].work) <= TOLERANCE:
            raise _End("given up")
        return self._decided(_Lot(question, range(worst, worst + 1), work), own[worst], found[worst])

    def _proven(self) -> Proven:
        silent = self._silent()
        question = Prove(group=self._pledged.group, part=self._chance.randrange(MAX_CONTENTS))
        try:
            shown = self._inquiry.prove(self._author, question)
            self._records += [question, shown.proof]
            return self._inquiry.proven(self._pledged, question, shown)
        except Contradiction:
            raise
        except (NoAnswer, ValueError):  # nonsense shows nothing
            raise silent from None

    def _earlier_work(self) -> list[Work]:
        silent = self._silent()
        try:
            return [line for each in self._earlier for line in self._inquiry.work(self._author, each)]
        except Contradiction:
            raise
        except (NoAnswer, ValueError):
            raise silent from None

    def _checked(self, lots: Sequence["_Lot"]) -> dict[int, _Account]:
        """Let others compute all of it, and the organizer what nobody else does."""
        found, failed, left = dict[int, _Account](), {self._author}, list(lots)
        own: list[_Lot] = []
        for _ in range(DEALS):
            here = {peer: speed for peer, speed in self._inquiry.here().items() if peer not in failed and speed > 0}
            if not here or not left:
                break
            usual = median_low(here.values())  # for who says that it is fast wants to be asked
            dealt = defaultdict[str, list[_Lot]](list)
            for lot in left:
                if self._chance.random() < OWN_SHARE:
                    own.append(lot)
                else:
                    dealt[self._chance.choices(list(here), [min(speed, usual) for speed in here.values()])[0]].append(
                        lot
                    )
            left = []
            with ThreadPoolExecutor(AT_ONCE, "lots") as line:
                for peer, accounts, undone in line.map(lambda each: self._ask_all(*each), list(dealt.items())):
                    found |= accounts
                    left += undone
                    failed |= {peer} if undone else set()
        for lot in (*own, *left):
            found |= self._own(lot)
        return found

    def _ask_all(self, peer: str, lots: list["_Lot"]) -> tuple[str, dict[int, _Account], list["_Lot"]]:
        """One lot after the other, for a volunteer computes one at a time, until it does not answer."""
        found = dict[int, _Account]()
        for number, lot in enumerate(lots):
            self._hurry()
            try:
                found |= lot.accounts(peer, self._inquiry.recompute(peer, lot.question))
            except (NoAnswer, ValueError):
                return peer, found, lots[number:]
        return peer, found, []

    def _accounted(self, lots: Sequence["_Lot"]) -> dict[int, _Account]:
        """What the author says of its work."""
        silent = self._silent()
        _, found, undone = self._ask_all(self._author, list(lots))
        if undone:
            raise silent
        return found

    def _silent(self) -> _End:
        """What it means if the author does not answer now."""
        return _End("silent" if self._newest() <= self._pledged.step + KEPT_STEPS else "given up")

    def _own(self, lot: "_Lot") -> dict[int, _Account]:
        self._hurry()
        try:
            return lot.accounts("", self._inquiry.own(lot.question))
        except ValueError:  # parameters or data are not to be had
            raise _End("uncomputed") from None

    def _decided(self, lot: "_Lot", own: _Account, other: _Account) -> Outcome:
        """Who is right about this microbatch?"""
        (number,) = lot.numbers
        (truth,) = [other] if not other.by else self._own(lot).values()
        self._records += [lot.question, own.said, other.said, truth.said]
        verdicts = []
        if apart(own.work, truth.work) > TOLERANCE:
            verdicts.append(self._guilty(self._author, f"its microbatch {number} has another gradient than it says"))
        if other.by and apart(other.work, truth.work) > TOLERANCE:
            verdicts.append(self._guilty(other.by, "what it computed to check another volunteer is wrong"))
        return self._convicted(verdicts) if verdicts else Outcome("given up")

    def _guilty(self, peer: str, why: str) -> Verdict:
        return Verdict(peer, f"{why} (global step {self._pledged.step})", tuple(self._records))

    def _convicted(self, verdicts: list[Verdict]) -> Outcome:
        return Outcome("convicted", tuple(verdicts))

    def _hurry(self) -> None:
        if self._newest() > self._pledged.step + GIVEN_UP_STEPS:
            raise _End("given up")


class _Lot:
    """A few microbatches that are computed together.

    :param question: for any of the work
    :param numbers: of the lines
    """

    def __init__(self, question: Recompute, numbers: range, work: Sequence[Work]) -> None:
        self.numbers = numbers
        lines = b"".join(work[number].content for number in numbers)
        self.question = question.model_copy(update={"work": lines})

    def accounts(self, by: str, found: Found) -> dict[int, _Account]:
        """What was found of each line; raises ValueError unless that is all of them."""
        recomputed = found.recomputed()
        if len(recomputed) != len(self.numbers):
            raise ValueError("not an answer to the question")
        if any(max(each.weight, each.norm, *np.abs(each.projections)) > LARGEST for each in recomputed):
            raise ValueError("no gradient is so large")
        return {number: _Account(by, each, found) for number, each in zip(self.numbers, recomputed, strict=True)}


def apart(one: Recomputed, other: Recomputed) -> float:
    """How far two accounts of a microbatch are from each other, also in what they say of the whole gradient: too large
    a norm would excuse anything, and too small a one nothing. Its weight follows from the data alone."""
    if not math.isclose(one.weight, other.weight, rel_tol=1e-6):
        return float("inf")
    norms = abs(one.norm - other.norm) / other.norm if other.norm else (0.0 if not one.norm else float("inf"))
    return max(difference(one.projections, [other]), norms)
