"""Who wants to harm a run that is checked. `CHEAT` in a worker's environment says how:

`climbs`: it climbs where others go down, also where it is to check others,
`shouts`: it sends its gradient a thousand times over, and accounts for its work truly,
`accuses`: it trains honestly, and what it says of the work of others is false,
`two faces`: it trains honestly, and tells one reducer something else of itself than the others.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from dedloc_kit import volunteer
from dedloc_kit.records import Contribution
from dedloc_kit.swarm.audits.questions import Found, Recompute
from dedloc_kit.swarm.audits.recomputing import Recomputer
from dedloc_kit.swarm.averaging.allreduce import AllReduce
from dedloc_kit.swarm.averaging.feedback import Coding
from dedloc_kit.swarm.averaging.group import Group
from dedloc_kit.swarm.averaging.plan import Plan
from dedloc_kit.swarm.averaging.pledges import Pledges
from dedloc_kit.swarm.averaging.service import AveragingService, Opening, Start
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.trust.pledge import Pledged, Sealed
from dedloc_kit.tasks import Batch
from dedloc_kit.tasks.causal import Causal

CHEAT = os.environ.get("CHEAT", "")


class Climbs(Causal):
    def loss(self, model: nn.Module, batch: Batch, step: int) -> Tensor:
        return -super().loss(model, batch, step)


def _shout() -> None:
    seal = Pledges.seal

    def sealed(
        self: Pledges, group: str, mine: Contribution, work: Sequence[bytes], plan: Plan, flat: Tensor, coding: Coding
    ) -> tuple[Pledged, Sealed | None]:
        return seal(self, group, mine, work, plan, 1000 * flat, coding)

    Pledges.seal = sealed  # type: ignore[method-assign]


def _accuse() -> None:
    answering, answer = volunteer._answering, Recomputer.answer

    def accusing(run: Any, peer: Any, me: SwarmPeer, *more: Any) -> Callable[[], None]:
        def false(self: Recomputer, question: Recompute) -> Found:
            found = answer(self, question)
            if question.author == me.signer.peer:
                return found
            return found.model_copy(update={"projections": tuple(each[::-1] for each in found.projections)})

        Recomputer.answer = false  # type: ignore[method-assign]
        return answering(run, peer, me, *more)

    volunteer._answering = accusing  # type: ignore[assignment]


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
elif CHEAT == "two faces":
    _show_two_faces()

TASKS = {"causal": Climbs if CHEAT == "climbs" else Causal}
