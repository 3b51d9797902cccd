"""Who wants to harm a run that is checked. `CHEAT` in a worker's environment says how:

`climbs`: it climbs where others go down, also where it is to check others, and leaves out the trial before,
`shouts`: it sends its gradient a thousand times over, and accounts for its work truly,
`accuses`: it trains honestly, and what it says of the work of others is false,
`miscomputes`: it means well, and its machine computes wrongly.
`two faces`: it trains honestly, and tells one reducer something else of itself than the others.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from dedloc_kit.learning.task import Batch, Loss
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.learning.train.computing.recomputing import Again
from dedloc_kit.records.steps import Contribution
from dedloc_kit.roles import volunteer
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import Setting
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.audits.known_answer import Trial
from dedloc_kit.swarm.audits.questions import Found, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.averaging.entries import piece_of
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.consensus.records import Entry, Piece
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.trust.pledge import Pledged, Sealed

CHEAT = os.environ.get("CHEAT", "")


class Climbs(Causal):
    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        loss = super().loss(model, batch, step)
        return loss._replace(total=-loss.total)


def _shout() -> None:
    seal = Pledges.seal

    def sealed(
        self: Pledges, group: str, mine: Contribution, work: Sequence[bytes], plan: Plan, flat: Tensor, coding: Coding
    ) -> tuple[Pledged, Sealed | None]:
        return seal(self, group, mine, work, plan, 1000 * flat, coding)

    Pledges.seal = sealed  # type: ignore[method-assign]


def _accuse() -> None:
    answering, answer = volunteer._answering, Recomputer.answer

    def accusing(peer: Any, me: SwarmPeer, recomputer: Any) -> Callable[[], None]:
        def false(self: Recomputer, question: Recompute, again: Again | None = None) -> Found:
            found = answer(self, question)
            if question.author == me.signer.peer:
                return found
            return found.model_copy(update={"projections": tuple(each[::-1] for each in found.projections)})

        Recomputer.answer = false  # type: ignore[method-assign]
        return answering(peer, me, recomputer)

    volunteer._answering = accusing


def _show_two_faces() -> None:
    make: Callable[..., None] = Round.__init__

    def made(self: Round, setting: Setting, plan: Plan, entry: Entry, *rest: Any) -> None:
        *others, opener = rest
        fooled = next(peer for peer in plan.members if peer != entry.peer)
        true = Pledged.model_validate_json(entry.about)
        about = true.model_copy(update={"time": true.time - 1.0}).model_dump_json()
        pieces = tuple(Piece(hash=piece_of(about), samples=p.samples, weight=p.weight) for p in entry.pieces)
        other = entry.changed(about=about, pieces=pieces, signature="").signed(setting.signer)

        def opened(peer: str) -> Any:
            self.introduction = wire.introduction(0, other if peer == fooled else entry)
            return opener(peer)

        make(self, setting, plan, entry, *others, opened)

    Round.__init__ = made  # type: ignore[assignment, method-assign]


if CHEAT == "shouts":
    _shout()
elif CHEAT == "accuses":
    _accuse()
elif CHEAT == "climbs":
    Trial.failed = lambda *_: []  # type: ignore[method-assign]
elif CHEAT == "two faces":
    _show_two_faces()

TASKS = {"causal": Climbs if CHEAT in ("climbs", "miscomputes") else Causal}
