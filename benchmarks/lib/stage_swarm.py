"""Peers of a pipeline that join, look, announce, move and leave, in simulated time: `blocks/plans/stages.py` decides.

Records are seen late, a download takes time, and who leaves is missed only when its record has run out. Who moves
serves nothing while it loads, and the speed of a newcomer is known only after a while.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from dedloc_kit.blocks.plans.plan import draw
from dedloc_kit.blocks.plans.stages import SECOND_LOOK, Stage, StagePeer, bare, bottleneck, intend, may_begin, place

LOOK, DELAY, EXPIRY, MEASURING = 5, 5, 15, 10
"""Seconds between two looks of a peer, until others see its record, until they miss it when it is gone, and until its
speed is measured."""


@dataclass
class _Peer:
    """
    :ivar power: microbatches a second if it held all stages
    :ivar loaded: when it holds its stage, None while it settles as a newcomer
    """

    power: float
    record: StagePeer
    loaded: float | None = None


class StageSwarm:
    """
    :param moves: whether peers ever move
    :param liars: who announce moves and never begin
    :ivar too_soon: moves within REST of another one of the same peer, but to a stage that seemed bare
    """

    def __init__(self, stages: Sequence[Stage], moves: bool = True, liars: Collection[str] = ()) -> None:
        self.stages, self.now, self._move, self._liars = stages, 0, moves, liars
        self.moved: list[tuple[int, str, int]] = []
        self.too_soon = 0
        self._peers: dict[str, _Peer] = {}
        self._gone: dict[str, tuple[int, StagePeer]] = {}
        self._past: deque[dict[str, StagePeer]] = deque([{}] * DELAY, maxlen=DELAY)

    def join(self, name: str, power: float, line: float, stage: int | None = None) -> None:
        """With a stage: it holds that from now on."""
        self._gone.pop(name, None)
        if stage is not None:
            speed = power / self.stages[stage].share
            self._peers[name] = _Peer(power, StagePeer(name, stage, speed, line), self.now)
            return
        stage = place(self.stages, self._seen(name), name, self.now, self.now)
        self._peers[name] = _Peer(power, StagePeer(name, stage, 0.0, line, loading=self.now))

    def leave(self, name: str) -> None:
        self._gone[name] = (self.now + EXPIRY, self._peers.pop(name).record)

    def holding(self) -> list[StagePeer]:
        """Who really holds which stage now, with its real speed."""
        return [
            replace(peer.record, speed=peer.power / self.stages[peer.record.stage].share)
            for peer in self._peers.values()
            if peer.record.loading is None
        ]

    def bottleneck(self) -> float:
        return bottleneck(self.stages, self.holding())

    def bare(self) -> set[int]:
        """Stages that nobody holds or loads."""
        return set(range(len(self.stages))) - {peer.record.stage for peer in self._peers.values()}

    def could_move(self) -> set[str]:
        """Who would not leave a stage bare."""
        holders = [peer.stage for peer in self.holding()]
        return {p.name for p in self.holding() if p.may_help and holders.count(p.stage) > 1}

    def run(self, seconds: int) -> Iterator[int]:
        """The time after each second."""
        for _ in range(seconds):
            records = {name: peer.record for name, peer in self._peers.items()}
            self._past.append({**{name: record for name, (_, record) in self._gone.items()}, **records})
            self.now += 1
            self._gone = {name: (end, record) for name, (end, record) in self._gone.items() if self.now < end}
            for name in sorted(self._peers):
                self._act(name, self._peers[name])
            yield self.now

    def _act(self, name: str, peer: _Peer) -> None:
        record = peer.record
        if peer.loaded is None:
            assert record.loading is not None
            if self.now >= record.loading + SECOND_LOOK:
                self._settle(name, peer, record.loading)
        elif record.loading is not None and self.now >= peer.loaded:
            peer.record = replace(record, loading=None)
        elif record.loading is None:
            if not record.speed and self.now >= peer.loaded + MEASURING:
                peer.record = replace(record, speed=peer.power / self.stages[record.stage].share)
            if self._move and (self.now + int(LOOK * draw(name))) % LOOK == 0:
                self._look(name, peer)

    def _settle(self, name: str, peer: _Peer, announced: float) -> None:
        stage = place(self.stages, self._seen(name), name, announced, self.now)
        if stage == peer.record.stage:
            peer.loaded = self.now + self._download(peer, stage)
        else:
            peer.record = replace(peer.record, stage=stage, loading=self.now)

    def _look(self, name: str, peer: _Peer) -> None:
        seen = self._seen(name)
        intends = intend(self.stages, [*seen, peer.record], name, self.now)
        peer.record = record = replace(peer.record, intends=intends)
        if intends is None or name in self._liars or not may_begin(self.stages, [*seen, record], name, self.now):
            return
        self.moved.append((self.now, name, intends.stage))
        in_need = intends.stage in bare(self.stages, [*seen, record], self.now)
        self.too_soon += not in_need and not record.may_leave(self.now)
        speed = record.speed * self.stages[record.stage].share / self.stages[intends.stage].share
        peer.record = replace(record, stage=intends.stage, speed=speed, loading=self.now, moved=self.now, intends=None)
        peer.loaded = self.now + self._download(peer, intends.stage)

    def _download(self, peer: _Peer, stage: int) -> float:
        return self.stages[stage].state / peer.record.line

    def _seen(self, name: str) -> list[StagePeer]:
        """The others' records, as old as they are when they get here."""
        return [record for other, record in self._past[0].items() if other != name]
