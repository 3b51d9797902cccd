"""The tiny model with experts, whose hosts hold, note and die as a test says, by the environment of one worker:

`HOST_FAULT=PATH`: once `forward SIGNAL` or `backward SIGNAL` stands in that file, this is sent to all processes of this
worker in the middle of such a call of a trainer, and the file gets another name.
`HOST_BITS=PATH` notes there, step by step, a digest of every expert here.
`TRAINER_CALLS=PATH` notes there of how many experts each microbatch had outputs and gradients.
`MIXED_PAUSE=0.2` slows every microbatch down.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Answers, Cell, ExpertName, Ticket, current_microbatch
from dedloc_kit.learning.task import Loss
from dedloc_kit.swarm.experts import deadline
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.protocol import Call
from dedloc_kit.swarm.experts.service import ExpertService
from tests import tiny_mixed

deadline.MIN_SECONDS = 4.0  # a machine under load is no reason to ask somebody else

IN_STEP = 6
"""So many calls of a step a host answers before it dies: whoever follows it has heard of the step by then."""


class PacedMixed(tiny_mixed.TinyMixed):
    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        time.sleep(float(os.environ.get("MIXED_PAUSE", "0")))
        return super().loss(model, batch, step)


TASKS = {"tiny-mixed": PacedMixed}


def _signal_in_call(file: Path) -> None:
    computing, seen = ExpertService._computing, Counter[int]()

    def fatal(self: ExpertService, peer: str, call: Call, came: Tensor) -> Any:
        plain = computing(self, peer, call, came)
        seen[self.step] += bool(call.tokens)
        if call.tokens and seen[self.step] > IN_STEP and file.exists():
            kind, number = file.read_text().split()
            if kind == call.kind:
                file.rename(file.with_suffix(".done"))

                def dies() -> Any:
                    os.killpg(0, int(number))
                    return plain()  # once it is woken

                return dies
        return plain

    ExpertService._computing = fatal  # type: ignore[method-assign]


def _note_bits(file: Path) -> None:
    take, follow, load, out = Bank.take_one, Bank.follow, Bank.load, file.open("a", buffering=1)

    def note(bank: Bank, name: ExpertName) -> None:
        tensors, step = bank.state(name)
        digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors.values())).hexdigest()
        out.write(f"{name} {step} {digest}\n")

    def taken(self: Bank, name: ExpertName, *rest: Any) -> bool:
        if done := take(self, name, *rest):
            note(self, name)
        return done

    def followed(self: Bank, name: ExpertName, *rest: Any) -> None:
        follow(self, name, *rest)
        note(self, name)

    def loaded(self: Bank, name: ExpertName, *rest: Any) -> None:
        load(self, name, *rest)
        note(self, name)

    Bank.take_one, Bank.follow, Bank.load = taken, followed, loaded  # type: ignore[method-assign, assignment]


def _note_calls(file: Path) -> None:
    forward, backward, out = RemoteExperts.forward, RemoteExperts.backward, file.open("a", buffering=1)

    def note(what: str, answered: int, began: float) -> None:
        microbatch = current_microbatch()
        step = 0 if microbatch is None else microbatch.step
        seconds = time.monotonic() - began
        out.write(json.dumps({"what": what, "step": step, "answered": answered, "seconds": seconds}) + "\n")

    def went(self: RemoteExperts, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        began = time.monotonic()
        answers = forward(self, layer, inputs, keep)
        assert all(bool(each.isfinite().all()) for each in answers.outputs.values())
        note("forward", len(answers.outputs), began)
        return answers

    def came(
        self: RemoteExperts, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]
    ) -> Mapping[Cell, Tensor]:
        began = time.monotonic()
        found = backward(self, layer, ticket, gradients)
        note("backward", len(found), began)
        return found

    RemoteExperts.forward, RemoteExperts.backward = went, came  # type: ignore[method-assign]


if "HOST_FAULT" in os.environ:
    _signal_in_call(Path(os.environ["HOST_FAULT"]))
if "HOST_BITS" in os.environ:
    _note_bits(Path(os.environ["HOST_BITS"]))
if "TRAINER_CALLS" in os.environ:
    _note_calls(Path(os.environ["TRAINER_CALLS"]))
