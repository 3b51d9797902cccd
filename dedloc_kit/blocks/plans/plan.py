"""Who serves which layers of a model, decided by each peer alone.

Nothing here reads a clock, a network or chance, so whoever sees the same servers decides the same. What a layer can
pass is the sum of the speeds of those who serve it, and what the swarm can pass is that of its worst-served layer: the
bottleneck.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_LAYERS = 1024
MAX_SPEED = 1e6
"""Tokens a second."""
GAIN = 1.25
"""By which factor moves have to raise the bottleneck."""
MOVES = 4
"""How many, one after the other, are looked ahead: one alone often gains nothing, as where two layers lack the same."""
SECOND_LOOK, SECOND_LOOK_IN_NEED = 60.0, 20.0
"""Seconds from announcing a move to beginning it: who seems to be gone may have a record that comes late. The latter
where nobody serves some layer, so nobody can be served."""
HELD, MOVING = 600.0, 900.0
"""Seconds for which an announced move, and one that has begun, hold the others back."""
LOOK_ROUND = 10.0
"""Seconds from announcing a change of version to beginning it: by then everybody has heard of it."""
REST, REST_IN_NEED = 3600.0, 300.0
"""Seconds between two moves of one server."""
_UNIT = 1e-3  # of a speed: whole numbers add up to the same in every order
_WIDTH = 256  # assignments kept from one move to the next, times servers: so time grows with the servers alone

Loads = NDArray[np.int64]
"""What each layer can pass, in units."""


@dataclass(frozen=True, order=True)
class LayerRange:
    """Layers from `begin` up to before `end`; raises ValueError for what cannot be."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= MAX_LAYERS:
            raise ValueError(f"no span of layers: {self.begin}:{self.end}")

    def __len__(self) -> int:
        return self.end - self.begin

    def __contains__(self, layer: int) -> bool:
        return self.begin <= layer < self.end

    def __str__(self) -> str:
        return f"{self.begin}:{self.end}"


@dataclass(frozen=True)
class Server:
    """Raises ValueError for a speed that cannot be.

    :ivar speed: tokens a second through its whole span
    :ivar moved: when it last began to move, None if it never has
    :ivar pinned: whether its owner chose the span
    """

    name: str
    span: LayerRange
    speed: float
    moved: float | None = None
    pinned: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.speed <= MAX_SPEED:
            raise ValueError(f"no speed of a server: {self.speed}")

    def rests(self, now: float, in_need: bool) -> bool:
        """Must it stay where it is for now?"""
        return self.moved is not None and now < self.moved + (REST_IN_NEED if in_need else REST)


@dataclass(frozen=True)
class Intention:
    """What a server has announced.

    :ivar announced: when; for another peer's not before it was first seen here, or it could be dated back
    :ivar begun: when it began to load the span, None before; what both spans share it goes on serving
    """

    server: str
    span: LayerRange
    announced: float
    begun: float | None = None

    def holds(self, now: float) -> bool:
        """Does it still hold others back?"""
        return now < (self.announced + HELD if self.begun is None else self.begun + MOVING)


def unserved(needed: LayerRange, servers: Iterable[Server]) -> tuple[LayerRange, ...]:
    """Which of these layers nobody serves."""
    loads = _loads(needed.end, servers)[needed.begin :] == 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], loads, [False]))))
    return tuple(LayerRange(needed.begin + int(a), needed.begin + int(b)) for a, b in edges.reshape(-1, 2))


def bottleneck(layers: int, servers: Iterable[Server]) -> float:
    """Tokens a second that the worst-served layer of a model can pass."""
    return float(_loads(layers, servers).min()) * _UNIT


def place(layers: int, servers: Collection[Server], name: str, speed: float, memory: int) -> LayerRange:
    """Which span a newcomer takes: the one after which the worst-served layers are served best.

    Those who have announced a span and are about to serve it belong to `servers`. Of equal spans newcomers take
    different ones.

    :param memory: how many layers fit
    """
    length = min(memory, layers)
    begins = _begins(layers, length, (server.span for server in servers))
    loads = _loads(layers, servers) + _covers(layers, length, begins, speed)
    order = np.lexsort(np.sort(loads, axis=1).T[::-1])
    best = np.sort(loads[order[-1]])
    equal = [begin for begin, row in zip(begins, loads, strict=True) if np.array_equal(np.sort(row), best)]
    begin = min(equal, key=lambda begin: draw(name, str(begin)))
    return LayerRange(begin, begin + length)


def intend(layers: int, servers: Collection[Server], name: str, mine: Intention | None, now: float) -> Intention | None:
    """What this server ought to announce now: as before, anew, or nothing.

    :param servers: all that serve or load a span, each with the span that it will serve
    :param mine: what it has announced; it has not begun
    """
    moves = [span for server, span in useful_moves(layers, servers, now) if server == name]
    if mine is not None and mine.span in moves and now < mine.announced + HELD / 2:
        return mine
    return Intention(name, moves[0], now) if moves else None


def may_begin(
    layers: int, servers: Collection[Server], mine: Intention, others: Iterable[Intention], now: float
) -> bool:
    """May this server begin the move that it has announced? One moves at a time, the earliest of those that gain."""
    moves = useful_moves(layers, servers, now)
    patience = SECOND_LOOK_IN_NEED if unserved(LayerRange(0, layers), servers) else SECOND_LOOK
    if (mine.server, mine.span) not in moves or now < mine.announced + patience:
        return False
    return not any(
        _goes_first(other, mine, moves) for other in others if other.server != mine.server and other.holds(now)
    )


def may_change(version: str, mine: Intention, others: Iterable[Intention], now: float) -> bool:
    """May this server change over to a newer version of its layers, as it has announced?

    One at a time, in an order that follows from the names alone: so no two disagree about it whose clocks do.

    :param others: changes to the same version, and whatever else has begun
    """
    turn = draw(version, mine.server)
    ahead = (other.begun is not None or draw(version, other.server) < turn for other in others if other.holds(now))
    return now >= mine.announced + LOOK_ROUND and not any(ahead)


def useful_moves(layers: int, servers: Collection[Server], now: float) -> tuple[tuple[str, LayerRange], ...]:
    """Moves with which the bottleneck begins to gain enough, the best first.

    As few moves as do it, one after the other; none of them lowers the bottleneck or leaves a layer without a server.
    """
    ordered = tuple(sorted(servers, key=lambda server: (server.name, server.span)))
    in_need = bool(unserved(LayerRange(0, layers), ordered))
    free = frozenset(i for i, server in enumerate(ordered) if not (server.pinned or server.rests(now, in_need)))
    return _useful_moves(layers, tuple(replace(server, moved=None) for server in ordered), free)


def _goes_first(other: Intention, mine: Intention, moves: Collection[tuple[str, LayerRange]]) -> bool:
    """One that gains nothing holds nobody back; where two were announced at once their names decide."""
    gains = (other.server, other.span) in moves
    return other.begun is not None or (gains and (other.announced, other.server) < (mine.announced, mine.server))


@dataclass(frozen=True)
class _Plan:
    """Moves one after the other, and where they lead.

    :ivar free: numbers of the servers that may still move
    """

    spans: tuple[LayerRange, ...]
    loads: Loads
    free: frozenset[int]
    moves: tuple[tuple[int, LayerRange], ...] = ()

    def then(self, index: int, span: LayerRange, loads: Loads) -> "_Plan":
        spans = (*self.spans[:index], span, *self.spans[index + 1 :])
        return _Plan(spans, loads, self.free - {index}, (*self.moves, (index, span)))


@lru_cache(maxsize=64)  # a server looks often, and mostly nothing has changed
def _useful_moves(layers: int, servers: tuple[Server, ...], free: frozenset[int]) -> tuple[tuple[str, LayerRange], ...]:
    loads = _loads(layers, servers)
    enough = max(1, math.ceil(GAIN * int(loads.min())))
    if loads.mean() < enough:
        return ()  # not even if all layers were served alike
    plans = [_Plan(tuple(server.span for server in servers), loads, free)]
    width = max(1, _WIDTH // len(servers))
    for _ in range(MOVES):
        plans = _one_more_move(layers, servers, plans, width)
        if firsts := dict.fromkeys(plan.moves[0] for plan in plans if plan.loads.min() >= enough):
            return tuple((servers[index].name, span) for index, span in firsts)
    return ()


def _one_more_move(layers: int, servers: Sequence[Server], plans: Iterable[_Plan], width: int) -> list[_Plan]:
    """The best assignments that one more move leads to, the best first, each once."""
    found: dict[tuple[LayerRange, ...], _Plan] = {}
    for plan in plans:
        nexts = [_moves_of(layers, servers[index].speed, plan, index) for index in sorted(plan.free)]
        refs = [(index, span) for index, (spans, _) in zip(sorted(plan.free), nexts, strict=True) for span in spans]
        if refs:
            rows = np.concatenate([loads for _, loads in nexts])
            for place in _best_first(rows)[:width]:
                further = plan.then(*refs[place], rows[place].copy())
                found.setdefault(further.spans, further)
    if not found:
        return []
    all_found = list(found.values())
    return [all_found[place] for place in _best_first(np.stack([plan.loads for plan in all_found]))[:width]]


def _moves_of(layers: int, speed: float, plan: _Plan, index: int) -> tuple[list[LayerRange], Loads]:
    """Where else that server may be, and what the layers can pass then."""
    span = plan.spans[index]
    others = (*plan.spans[:index], *plan.spans[index + 1 :])
    begins = [begin for begin in _begins(layers, len(span), others) if begin != span.begin]
    loads = plan.loads - _covers(layers, len(span), [span.begin], speed) + _covers(layers, len(span), begins, speed)
    allowed = (loads.min(axis=1) >= plan.loads.min()) & ~((loads == 0) & (plan.loads > 0)).any(axis=1)
    spans = [LayerRange(begin, begin + len(span)) for begin, may in zip(begins, allowed, strict=True) if may]
    return spans, loads[allowed]


def _best_first(rows: Loads) -> list[int]:
    """By their bottleneck, then by how badly the other layers are served, the worst of them weighing most."""
    badly = (1.0 / (rows + 1.0) ** 2).sum(axis=1)
    return [int(place) for place in np.lexsort((badly, -rows.min(axis=1)))]


def _begins(layers: int, length: int, spans: Iterable[LayerRange]) -> list[int]:
    """Where a span may begin: at or up to the border of another one or of the model, so gaps stay in few pieces."""
    borders = {0, layers, *(edge for span in spans for edge in (span.begin, span.end))}
    return sorted({begin for edge in borders for begin in (edge, edge - length) if 0 <= begin <= layers - length})


def _covers(layers: int, length: int, begins: Sequence[int], speed: float) -> Loads:
    """For each of these beginnings what the layers can pass by it alone."""
    offset = np.arange(layers) - np.array(begins, dtype=np.int64)[:, None]
    return np.where((offset >= 0) & (offset < length), _units(speed), 0)


def _loads(layers: int, servers: Iterable[Server]) -> Loads:
    loads = np.zeros(layers, dtype=np.int64)
    for server in servers:
        loads[server.span.begin : server.span.end] += _units(server.speed)
    return loads


def _units(speed: float) -> int:
    return max(1, round(speed / _UNIT))


def draw(*names: str) -> float:
    """From 0 up to before 1, for these names always the same."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:6], "big") / 2**48
