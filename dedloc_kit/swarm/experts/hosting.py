"""What a peer does to hold the experts that it is to hold; the organizer's machine, too, which has all the others."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.swarm.experts.copies import CopyService
from dedloc_kit.swarm.experts.following import Following, NoCopies
from dedloc_kit.swarm.experts.placing import Holder, Plan

TICK_SECONDS, AGAIN_SECONDS = 0.3, 1.0
"""Between two looks, and two tries to get something of the same peer."""
ALONE_SECONDS, MOVED_SECONDS = 3.0, 15.0
"""After which a copy is kept here whose keeper is gone, and one whose keeper is somebody else who is not found."""
RIVAL_SECONDS = 10.0
"""After which a peer no longer keeps what another one keeps rightly."""
LINGER_SECONDS = 30.0
"""For which a peer still answers for an expert that it has given away: so long trainers may not have heard of it."""
HOME_SECONDS = 5.0
"""After which an expert that nobody says to have comes back as the organizer's machine knows it."""

_log = logging.getLogger(__name__)


class Hosting:
    """One peer. Everything happens in one loop.

    :param me: this peer
    :param holders: what all others say that they have, by peer id
    :param plan: who is to hold what, and who has what is nobody's: the organizer
    :param known: how an expert is that nobody has any more; none if this peer is not the organizer
    :param changed: told when this peer has others than before
    """

    def __init__(
        self,
        me: str,
        keeping: Keeping,
        service: CopyService,
        following: Following,
        holders: Callable[[], Mapping[str, Holder]],
        plan: Callable[[], tuple[Plan, str]],
        known: Callable[[ExpertName], State] | None,
        changed: Callable[[], object],
    ) -> None:
        self._me, self._keeping, self._service, self._following = me, keeping, service, following
        self._holders, self._plan, self._known, self._changed = holders, plan, known, changed
        self._streams: dict[str, tuple[asyncio.Task[None], set[ExpertName]]] = {}
        """To each peer one, and what was asked for on it."""
        self._told: tuple[set[ExpertName], set[ExpertName]] = set(), set()
        self._again: dict[str, float] = {}
        self._since: dict[ExpertName, float] = {}
        self._gone: dict[str, float] = {}
        """When those said something last whose experts this peer has taken over: their records live on for a while."""
        self._looked = self._woke = time.monotonic()
        self._doubted = set[ExpertName]()
        """That this peer kept when it woke up last: others may have taken them over meanwhile."""
        self._lingers: dict[ExpertName, float] = {}
        """Until when a copy of what was given away stays."""
        self._stand_ins: Mapping[ExpertName, str] = {}
        service.may_tell = self._may_tell

    async def run(self) -> None:
        """Until this is cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task, _ in self._streams.values():
                task.cancel()

    def look(self) -> None:
        """Do what is due."""
        plan, organizer = self._plan()
        self._stand_ins = plan.stand_ins
        holders = {peer: each for peer, each in self._holders().items() if each.time > self._gone.get(peer, -1.0)}
        kept_by: dict[ExpertName, list[str]] = {}
        for peer, holder in holders.items():
            for name in holder.keeps:
                kept_by.setdefault(name, []).append(peer)
        copied = {name for holder in holders.values() for name in holder.copies}
        kept, followed = self._keeping.held
        if time.monotonic() > self._looked + ALONE_SECONDS:
            self._woke, self._doubted = time.monotonic(), kept
        self._looked = time.monotonic()
        wanted: dict[str, list[ExpertName]] = {}
        for name in self._keeping.names:
            keeper, stand_in = plan.keepers.get(name, organizer), plan.stand_ins.get(name)
            others = sorted(kept_by.get(name, ()), key=lambda peer: peer != keeper)
            rival = name in kept and keeper in others
            if not rival and (name in kept or name in self._following.live or (others and name not in followed)):
                self._since.pop(name, None)
            if name in kept:
                if others and name in self._doubted and self._is_awake:
                    _log.warning("%s keeps the expert %s since this machine slept", others[0], name)
                    self._keeping.drop(name)
                elif rival:
                    self._perhaps_yield(name, keeper)
                elif keeper != self._me:
                    self._perhaps_give(name, keeper)
            elif name in followed:
                if self._me not in (keeper, stand_in) and time.monotonic() > self._lingers.get(name, 0.0):
                    self._keeping.drop(name)
                elif name not in self._following.live:
                    if not others or name in self._following.moved:
                        self._since.setdefault(name, time.monotonic())
                    if self._is_alone(name):
                        self._gone |= {peer: holders[peer].time for peer in others}
                    elif others and self._following.fits(name):
                        wanted.setdefault(others[0], []).append(name)
            # Whoever stands in waits for the keeper, whom it would have to follow in a moment anyway.
            elif others and (self._me == keeper or (self._me == stand_in and others[0] == keeper)):
                if self._following.fits(name):
                    wanted.setdefault(others[0], []).append(name)
            elif self._known is not None and not others and name not in copied:
                self._perhaps_restore(name)
        for peer, experts in wanted.items():
            self._begin(peer, set(experts))
        if (held := self._keeping.held) != self._told:
            self._told = held
            self._changed()

    def _may_tell(self, peer: str, name: ExpertName) -> bool:
        giver, given = self._following.givers.get(name, ("", 0.0))
        lingers = peer == giver and time.monotonic() < given + 2 * LINGER_SECONDS  # by its clock, and on its way
        return lingers or peer == self._stand_ins.get(name)

    @property
    def _is_awake(self) -> bool:
        """Has this peer heard what others say since it woke up, and not long ago?"""
        return ALONE_SECONDS < time.monotonic() - self._woke < MOVED_SECONDS

    def _perhaps_yield(self, name: ExpertName, keeper: str) -> None:
        """Two keep an expert: one of them was gone for a while, or has not heard the newest of the other."""
        if self._waited(name, RIVAL_SECONDS):
            _log.warning("%s keeps the expert %s, too: no longer this machine", keeper, name)
            self._keeping.drop(name)

    def _perhaps_give(self, name: ExpertName, keeper: str) -> None:
        if (tell := self._service.followers.get((keeper, name))) is not None:
            self._following.moved.add(name)
            self._lingers[name] = time.monotonic() + LINGER_SECONDS
            self._keeping.give(name, tell)

    def _waited(self, name: ExpertName, seconds: float) -> bool:
        return time.monotonic() > self._since.setdefault(name, time.monotonic()) + seconds

    def _is_alone(self, name: ExpertName) -> bool:
        """Is there nobody to follow any more? Then it is kept here from now on."""
        if name not in self._since or not self._waited(
            name, MOVED_SECONDS if name in self._following.moved else ALONE_SECONDS
        ):
            return False
        _log.warning("nobody keeps the expert %s any more: this machine does from now on", name)
        self._keeping.keep(name)
        return True

    def _perhaps_restore(self, name: ExpertName) -> None:
        assert self._known is not None
        if self._waited(name, HOME_SECONDS):
            self._keeping.hold(name, self._known(name))
            self._keeping.keep(name)

    def _begin(self, peer: str, names: set[ExpertName]) -> None:
        """Follow these as well, once all that was asked for before has come."""
        live, before_it = self._following.live, set[asyncio.Task[None]]()
        if time.monotonic() < self._again.get(peer, 0.0):
            return
        if peer in self._streams:
            task, before = self._streams[peer]
            if before & self._following.arriving:
                return
            task.cancel()
            names, before_it = names | (before & live), {task}
        self._streams[peer] = asyncio.create_task(self._follow(peer, sorted(names), before_it)), names

    async def _follow(self, peer: str, names: Sequence[ExpertName], after: set[asyncio.Task[None]]) -> None:
        try:
            if after:
                await asyncio.wait(after)
            await self._following.follow(peer, names)
        except NoCopies as failure:
            now = time.monotonic()
            self._again[peer] = now + AGAIN_SECONDS
            for name in self._keeping.followed.intersection(names):
                self._since.setdefault(name, now)
            _log.info("%s", failure)
        finally:
            if peer in self._streams and self._streams[peer][0] is asyncio.current_task():
                del self._streams[peer]
