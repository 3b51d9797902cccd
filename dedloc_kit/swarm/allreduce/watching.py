"""Time in a round: who has fallen silent, which look is due, and signs of life."""

import asyncio
import time
from typing import Protocol

from dedloc_kit.records.steps import Absence
from dedloc_kit.swarm.allreduce.agreement import Agreement
from dedloc_kit.swarm.allreduce.data_plane import DataPlane
from dedloc_kit.swarm.allreduce.forming import Forming
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.presence import Presence
from dedloc_kit.swarm.allreduce.relaying import Relaying
from dedloc_kit.swarm.allreduce.streams import Patience, Streams
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.events import Heard, Tick
from dedloc_kit.swarm.network.service import CLOSE_SECONDS

LOOKS = 8
"""So often in its patience a peer looks who has fallen silent."""
MAX_PERIOD = CLOSE_SECONDS / 4
"""Seconds between two looks: whoever is done closes a stream on which it hears nothing for so long, four times."""

FOR_GROUP, FOR_OTHERS = 1 / 6, 1 / 2
"""Of the round's limit: how long a member that lives may take to make the group, for before it comes what its line
carries already; and to decide with a group that this peer is not in."""


class Watched(Protocol):
    """The round."""

    plan: Plan
    me: int
    presence: Presence
    forming: Forming
    streams: Streams
    data: DataPlane
    agreement: Agreement
    relaying: Relaying | None

    def lose(self, member: int, why: str, absence: Absence, *, blame: bool) -> None: ...

    def fail(self, member: int, why: str, absence: Absence, *, blame: bool) -> None: ...

    def form_if_due(self) -> None: ...

    def give_up(self, why: str) -> None: ...

    def broken(self, why: str) -> None: ...


class Watching:
    """Of one round."""

    def __init__(self, round: Watched, patience: Patience, limit: float) -> None:
        self._round, self._patience, self._limit = round, patience, limit
        self._began = time.monotonic()
        self._stood_still = self._asked = 0.0
        self._asks = 0
        self._left_out = False

    def begin(self) -> None:
        self._began = self.now()

    def came_too_late(self) -> None:
        """There is a group without this peer, which waits for what that decides."""
        self._left_out = True

    def now(self) -> float:
        """A clock that stands still while this process does."""
        return time.monotonic() - self._stood_still

    @property
    def starting(self) -> bool:
        """Whether members may still begin."""
        return self.now() - self._began < self._patience.start

    @property
    def gathering(self) -> bool:
        """Whether whoever makes the group has to wait for entries: in a large group they are brought to it anew."""
        round, now = self._round, self.now()
        round.forming.look(round.presence.failed, now)
        return self.starting or (round.relaying is not None and now - round.forming.since < self._patience.usual)

    async def run(self) -> None:
        """Until it is cancelled."""
        period, before = min(self._patience.usual / LOOKS, MAX_PERIOD), time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            late, before = now - before - period, now
            if late > period:  # this process stood still: what came meanwhile is yet to be read
                self._stood_still += late
                self._round.streams.forgive(late)
                continue
            try:
                self._look(period)
            except Exception as error:
                self._round.broken(f"watching failed here ({error!r:.200})")
                raise

    def _look(self, period: float) -> None:
        round = self._round
        self._reassure()
        if round.data.flow.mine:
            self._judge_members()
        self._judge_maker()
        agreement, heard = round.agreement, round.streams.heard_within(2 * period)
        agreement.post(*(Heard(round.plan.members[member]) for member in heard))
        if agreement.participant is not None and self.now() >= agreement.participant.deadline:
            agreement.post(Tick())
        round.form_if_due()
        if round.relaying is not None:
            round.relaying.look()
        round.data.recovery.look(self._patience.usual)
        self._ask()
        unsure = agreement.group is None or agreement.commit is not None
        if unsure and not self.starting and not round.streams.reachable:
            round.give_up("nobody is left who could tell or give anything")

    def _ask(self) -> None:
        """Ask one of those that are done what was decided: the decider may have died before it told this peer."""
        round, now = self._round, self.now()
        done, participant = sorted(round.streams.over), round.agreement.participant
        if round.agreement.commit is not None or not done:
            self._asked = now
            return
        failed = {round.plan.members[member] for member in round.presence.failed}
        dead = participant is None or participant.decider in failed
        if dead or now > self._asked + self._patience.usual:
            self._asked = now
            self._asks += 1
            round.streams.ask(done[self._asks % len(done)], bytes([Kind.ASK]))

    def _reassure(self) -> None:
        """Say that this peer is here: to whom it has sent everything, it may have to send more."""
        streams = self._round.streams
        for member in streams.up.keys() | streams.down.keys():
            streams.reassure(member)

    def _judge_members(self) -> None:
        """Whose parts do not come any more."""
        round = self._round
        for member in range(len(round.plan.members)):
            link = round.streams.down.get(member)
            if member in round.presence.lost | round.streams.over or round.data.whole(member):
                continue
            if link is None and not self._may_begin(member):
                round.lose(member, "did not begin", "did not come", blame=True)
            elif link is not None and link.silent() > self._patience.usual:
                round.lose(member, "stopped sending", "fell silent", blame=True)

    def _may_begin(self, member: int) -> bool:
        """Whether a member that has not opened a stream may still do so: a reducer is called by everybody's streams."""
        round, began = self._round, self.now() - self._began
        unreached = member in round.plan.reducers and member not in round.streams.up
        return began < (min(self._patience.usual, self._patience.start) if unreached else self._patience.start)

    def _judge_maker(self) -> None:
        """Whether the first in rank makes no group."""
        round = self._round
        first = round.forming.look(round.presence.failed, self.now())
        if round.agreement.group is not None or first is None or first == round.me or self.starting:
            return
        since = max(self._began + self._patience.start, round.forming.since)
        share = FOR_OTHERS if self._left_out else FOR_GROUP
        silent = round.streams.silent(first) > self._patience.usual
        relaying = None if round.streams.to(first) else round.relaying  # a relay may be why nothing comes: no blame
        unheard = relaying is not None and relaying.silent > self._patience.usual
        if silent or unheard or self.now() - since > share * self._limit:
            round.fail(first, "makes no group", "fell silent", blame=silent)
