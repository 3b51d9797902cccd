"""A trainer's experts, wherever they are: all hosts are asked at once, and whoever fails is left out."""

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.experts.calls import Answers, Cell, Ticket, current_microbatch
from dedloc_kit.experts.usual import Usual
from dedloc_kit.records.steps import MAX_CONFIRMED
from dedloc_kit.swarm.experts.checking import Checks, Compared
from dedloc_kit.swarm.experts.client import CallFailed
from dedloc_kit.swarm.experts.hosts import Host, Hosts
from dedloc_kit.swarm.experts.protocol import Answer, Backward, Call, Forward
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import Form, Packed, in_form, packed, scaled, unpacked

ENOUGH_TOKENS = 4
"""From so many different ones on an expert's answers differ."""


@dataclass(frozen=True, eq=False)
class _Left:
    """What a forward call has left at a host: tickets by cell.

    :ivar counts: are its gradients part of a global step?
    :ivar compared: what is to be compared, too, once the gradient has come
    """

    host: Host
    tickets: Mapping[Cell, int]
    counts: bool
    compared: Compared | None


@dataclass(frozen=True, eq=False)
class _Asked:
    """A call to one host, about these cells in this order."""

    host: Host
    cells: Sequence[Cell]
    call: Call
    content: Packed


class RemoteExperts:
    """`experts.calls.Experts` that hosts hold.

    :param loop: in which `hosts` are followed
    :param form: in which tokens and gradients travel
    :param checks: of some of the answers; none where hosts are no others' machines
    """

    def __init__(self, loop: Loop, hosts: Hosts, columns: int, form: Form, checks: Checks | None = None) -> None:
        self._loop, self._hosts, self._columns, self._form, self._checks = loop, hosts, columns, form, checks
        self._usual: dict[tuple[int, type[Call]], Usual] = {}
        self._answered = Counter[str]()
        self._lock = threading.Lock()

    def answered(self, turn: int) -> dict[str, int]:
        """Tokens that hosts have answered in all, forward and backward, as a contribution names them.

        :param turn: where there are more hosts than it may name, other ones in the next turn
        """
        with self._lock:
            hosts = sorted(self._answered.items())
        begin = turn * MAX_CONFIRMED % max(1, len(hosts))
        return dict((hosts[begin:] + hosts[:begin])[:MAX_CONFIRMED])

    def alive(self, layer: int) -> Tensor:
        return self._hosts.alive(layer)

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        owners, microbatch = self._hosts.owners(layer), current_microbatch() if keep else None
        of_hosts: dict[Host, list[Cell]] = {}
        for cell in inputs:
            if cell in owners:
                of_hosts.setdefault(owners[cell], []).append(cell)
        asked = []
        for host, cells in of_hosts.items():
            given = torch.cat([inputs[cell] for cell in cells])
            if not given.isfinite().all():  # it is not for hosts to say so
                continue
            call = Forward(
                layer=layer,
                cells=tuple(cell.row * self._columns + cell.column for cell in cells),
                tokens=tuple(len(inputs[cell]) for cell in cells),
                keep=keep,
                step=microbatch.step if microbatch else 0,
                samples=microbatch.samples if microbatch else 0,
            )
            asked.append(_Asked(host, cells, call, packed(in_form(given, self._form), self._form)))
        outputs: dict[Cell, Tensor] = {}
        left = []
        for each, answer, made in self._ask(layer, asked):
            answered = [each.cells[at] for at in answer.answered]
            if any(_constant(inputs[cell], output) for cell, output in zip(answered, made, strict=True)):
                self._fail(each.host, "constant", "its answers do not depend on what it is asked")
                continue
            outputs |= zip(answered, made, strict=True)
            tickets = dict(zip(answered, answer.tickets, strict=False))
            compared = self._compared(layer, each, answer, made)
            left.append(_Left(each.host, tickets, microbatch is not None, compared))
        return Answers(outputs, left if keep else None)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        assert isinstance(ticket, list)
        asked = []
        for left in ticket:
            cells = [cell for cell in left.tickets if cell in gradients]
            if not cells or not left.host.there:
                continue
            given = torch.cat([gradients[cell] for cell in cells])
            if not given.isfinite().all():
                continue
            content, exponent = scaled(given, self._form)
            tickets, tokens = (left.tickets[cell] for cell in cells), (len(gradients[cell]) for cell in cells)
            call = Backward(tickets=tuple(tickets), tokens=tuple(tokens), exponent=exponent)
            asked.append(_Asked(left.host, cells, call, content))
        of_inputs: dict[Cell, Tensor] = {}
        counting = {left.host for left in ticket if left.counts}
        for each, answer, made in self._ask(layer, asked):
            of_inputs |= zip((each.cells[at] for at in answer.answered), made, strict=True)
            if each.host in counting:
                with self._lock:
                    self._answered[each.host.client.peer] += sum(map(len, made))
        if self._checks is not None:
            for compared in (left.compared for left in ticket if left.compared is not None):
                cell = compared.cell
                if cell in of_inputs:
                    both = compared._replace(gradient=gradients[cell], of_inputs=of_inputs[cell])
                    self._loop.soon(self._checks.look, both)
        return of_inputs

    def _compared(self, layer: int, asked: _Asked, answer: Answer, made: Sequence[Tensor]) -> Compared | None:
        """Begin to compare what one of the experts has answered, if it is to be."""
        if self._checks is None or not made or answer.step is None or not self._checks.drawn():
            return None
        place = secrets.randbelow(len(made))
        at = answer.answered[place]
        given = unpacked(asked.content).float().split(asked.call.tokens)[at]
        compared = Compared(asked.host, layer, asked.cells[at], answer.step, given, made[place])
        self._loop.soon(self._checks.look, compared)
        return compared

    def _ask(self, layer: int, asked: Sequence[_Asked]) -> list[tuple[_Asked, Answer, list[Tensor]]]:
        """All at once; those that answer, with what may be right."""
        if not asked:
            return []
        answers = []
        for each, found in zip(asked, self._loop.run(self._all(asked)), strict=True):
            if found is None:
                continue
            answer, made = found
            for at in set(range(len(each.cells))).difference(answer.answered):
                each.host.avoid(layer, each.cells[at])
            if made and self._absurd(layer, each, torch.cat(made)):
                self._fail(each.host, "absurd", "what it answers is far larger than what others do")
                continue
            answers.append((each, answer, made))
        return answers

    async def _all(self, asked: Sequence[_Asked]) -> list[tuple[Answer, list[Tensor]] | None]:
        return await asyncio.gather(*(self._hosts.call(each.host, each.call, each.content) for each in asked))

    def _absurd(self, layer: int, asked: _Asked, made: Tensor) -> bool:
        size = float(made.norm()) / len(made) ** 0.5
        with self._lock:
            return self._usual.setdefault((layer, type(asked.call)), Usual()).absurd(asked.host.client.peer, size)

    def _fail(self, host: Host, kind: str, text: str) -> None:
        host.there = False  # now: the next layer is to be asked at once
        self._loop.soon(self._hosts.fail, host, CallFailed(kind, text))


def _constant(inputs: Tensor, outputs: Tensor) -> bool:
    """Are they all the same, of tokens that are not?"""
    if len(inputs) < ENOUGH_TOKENS or not bool((outputs == outputs[:1]).all()):
        return False
    return len(inputs.unique(dim=0)) >= ENOUGH_TOKENS
