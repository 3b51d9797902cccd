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
from dedloc_kit.swarm.audits.known_answer import Trial
from dedloc_kit.swarm.audits.questions import Found, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.averaging.allreduce import AllReduce
from dedloc_kit.swarm.averaging.encoding.feedback import Coding
from dedloc_kit.swarm.averaging.matchmaking.group import Group
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.averaging.reduction.plan import Plan
from dedloc_kit.swarm.averaging.service import AveragingService, Opening, Start
from dedloc_kit.swarm.network.service import encode
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
    make = AveragingService._runner

    async def runner(self: AveragingService, step: int, group: Group, start: Start, flat: Tensor) -> AllReduce:
        made = await make(self, step, group, start, flat)
        mine = made.handshake.mine
        other = self._signer.sign(mine.model_copy(update={"time": mine.time - 1.0}))
        openings = [Opening(group=group.id, introduction=each) for each in (other, made.handshake.introduction)]
        fooled = next(peer for peer in group.peers if peer != self._signer.peer)
        made._open_stream = lambda peer: self._endpoint.open(peer, self, encode(openings[peer != fooled]))
        return made

    AveragingService._runner = runner  # type: ignore[method-assign]


if CHEAT == "shouts":
    _shout()
elif CHEAT == "accuses":
    _accuse()
elif CHEAT == "climbs":
    Trial.failed = lambda *_: []  # type: ignore[method-assign]
elif CHEAT == "two faces":
    _show_two_faces()

TASKS = {"causal": Climbs if CHEAT in ("climbs", "miscomputes") else Causal}
