"""A donor hands a member that missed a round a false average, and a newcomer false buffers of the model."""

import asyncio
import socket
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.utils import MSGPackSerializer
from torch import Tensor, nn

from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.sketch import SEED_BYTES, differ, sketch
from dedloc_kit.learning.train.state.state import START, Position, TrainingState
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.network.identity import Signer, opened
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.rounds.catchup import CatchUp
from dedloc_kit.swarm.transfer.contents import RecentAverage, StateLayout
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.protocol import Header, Request, request_header
from dedloc_kit.swarm.trust.pledge import contribution_kind
from tests.identities import an_identity
from tests.swarm.audits.audited import pledged
from tests.swarm.harness import belief, progress
from tests.tiny import tiny_run

BATCH, ROUND = 32, "cd" * 20


class Numbered(nn.Module):
    """As a language model, it has its positions' numbers in a buffer, and computes with them."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.register_buffer("positions", torch.arange(4), persistent=False)


class Behind:
    """A member at the beginning; the swarm is at step 1, and a donor offers the average of that.

    :param organizer: what it says of that average; if it says nothing, it has not got it
    """

    def __init__(self, folder: Path, checks: str = "on") -> None:
        self.run = tiny_run(global_batch=BATCH, trust={"checks": checks})
        self.model = Numbered()
        self.state = TrainingState(self.model, lambda m: Lamb(m.parameters(), lr=0.1), self.run)
        said = pledged("x", 1, run_id=self.run.run_id, group=ROUND, samples=BATCH, session_samples=BATCH)
        kind = contribution_kind(self.run.trust)
        mine: Contribution = kind.parse({name: getattr(said, name) for name in kind.model_fields})
        metadata = MSGPackSerializer.dumps([Signer(an_identity(folder / "author")).sign(mine)])
        self.right = RecentAverage(after="", round=ROUND, step=1, metadata=metadata, parts=self.parts(1.0))
        self.given = self.organizers = self.right
        self.rejected = list[str]()
        self.asked = list[str]()

    def parts(self, value: float) -> tuple[bytes, ...]:
        """Of an average that is the same everywhere but for its first value."""
        average = torch.ones(self.state.layout.size)
        average[0] = value
        return (serialize_torch_tensor(average).SerializeToString(),)

    def catch_up(self) -> CatchUp:
        there = progress(step=1, round=ROUND)
        others = {"organizer": there, "donor": there, "friend": there}
        tracker: Any = SimpleNamespace(
            newest=lambda position: Position(1, ROUND) if position == START else position,
            at=lambda *_: {"donor": there},
            others=lambda: others,
            belief=belief(),
            proves=lambda peers: "organizer" in peers,
            reject=self.rejected.append,
        )
        transfers = SimpleNamespace(download_average=lambda *_, **__: self.given, ask_for_digest=self._digest)
        exchange: Any = SimpleNamespace(transfers=transfers, grouping=OneGroup(BATCH))
        opens: Any = SimpleNamespace(open=opened, peer="me")
        profile: Any = SimpleNamespace(client_mode=False)
        return CatchUp(self.state, exchange, tracker, opens, profile, threading.Event(), lambda *_: None)

    def _digest(self, peer: str, after: str) -> "Future[Header | None]":
        self.asked.append(peer)
        answer, holds = Future[Header | None](), self.organizers if peer == "organizer" else self.given
        answer.set_result(asyncio.run(answer_of(holds, after)))
        return answer

    def takes(self) -> bool:
        """Does it take the step with the average that it is given? Otherwise nothing has changed."""
        before = [tensor.clone() for tensor in self.state.tensors()]
        taken = bool(self.catch_up()._take_averages())
        changed = any(not torch.equal(*pair) for pair in zip(before, self.state.tensors(), strict=True))
        assert (self.state.step == 1) == taken == changed
        return taken


async def answer_of(average: RecentAverage | None, after: str) -> Header:
    """What a real donor that has kept this average says, over a pair of sockets."""

    async def none(_: str) -> None:
        return None

    donor = Donor(none, StateLayout([]))
    donor.share(on=True)
    if average is not None:
        donor.keep(average)
    here, there = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
    serving = asyncio.create_task(donor.serve("x", there))
    header = await request_header(Request(what="digest", after=after), here)
    here.close()
    await asyncio.wait({serving})
    there.close()
    serving.exception()
    return header


def test_the_right_average_is_taken_where_the_organizer_holds_it_too(tmp_path: Path) -> None:
    behind = Behind(tmp_path)
    assert behind.takes()
    assert behind.asked == ["organizer"]


@pytest.mark.parametrize("part", ["values", "orders", "name"])
def test_a_false_average_is_not_taken_whatever_of_it_is_false(tmp_path: Path, part: str) -> None:
    """A step with it would be another one: what the member computed then would be held against it."""
    behind = Behind(tmp_path)
    more = MSGPackSerializer.dumps([*MSGPackSerializer.loads(behind.right.metadata), b""])
    changes: dict[str, Any] = {"values": {"parts": behind.parts(-1.0)}, "orders": {"metadata": more}}
    behind.given = replace(behind.right, **changes.get(part, {"round": "ef" * 20}))
    assert not behind.takes()
    assert behind.rejected == ["a missed average: nobody whose word counts confirms it"]
    behind.given = behind.right
    assert behind.takes()


def test_the_word_of_others_is_not_enough_where_the_organizer_has_not_got_it(tmp_path: Path) -> None:
    behind = Behind(tmp_path)
    behind.organizers = None  # type: ignore[assignment]
    assert not behind.takes()


def test_where_members_are_not_checked_a_donor_is_believed_and_nobody_asked(tmp_path: Path) -> None:
    behind = Behind(tmp_path, checks="off")
    behind.given = replace(behind.right, parts=behind.parts(-1.0))
    assert behind.takes()
    assert not behind.asked


def test_who_does_not_share_says_nothing_of_its_averages(tmp_path: Path) -> None:
    async def ask() -> Header:
        async def none(_: str) -> None:
            return None

        donor = Donor(none, StateLayout([]))
        donor.keep(Behind(tmp_path).right)
        return await donor._digest(Request(what="digest"))

    assert asyncio.run(ask()).answer == "nothing"


@pytest.mark.parametrize(("checks", "false"), [("on", False), ("off", True)])
def test_a_newcomer_that_is_checked_takes_no_buffers_from_a_donor_for_no_witness_knows_them(
    tmp_path: Path, checks: str, false: bool
) -> None:
    behind, donor = Behind(tmp_path, checks), Behind(tmp_path, checks)
    state, catch_up = behind.state, behind.catch_up()
    donor.state.parameters[0].data.fill_(3.0)
    donor.model.positions.zero_()
    info = StateInfo(run_id=state.run_id, step=5, rounds=("ab",))
    found = {"info": info.model_dump(), "receipts": []}, donor.state.tensors()
    catch_up._exchange = SimpleNamespace(  # type: ignore[assignment]
        transfers=SimpleNamespace(download_state=lambda *_, **__: found, ask_for_sketch=None),
        averager=SimpleNamespace(forget_feedback=lambda: None),
    )
    catch_up._tracker = SimpleNamespace(  # type: ignore[assignment]
        belief=SimpleNamespace(limit=lambda _: 9, reached=lambda *_: None), proves=lambda _: True
    )
    assert catch_up._load_from(["donor"], Position(5, "ab")) == "right"
    assert float(state.parameters[0][0, 0]) == 3.0
    assert (behind.model.positions.tolist() == [0, 0, 0, 0]) == false


def test_a_state_with_false_moments_of_the_optimizer_is_not_what_the_witnesses_hold(tmp_path: Path) -> None:
    """All but the buffers is in the sketch that they give of theirs, also what no parameter shows."""
    behind = Behind(tmp_path)
    assert behind.takes()
    tensors, seed = behind.state.tensors(), bytes(SEED_BYTES)
    told, buffers = sketch(tensors, seed), behind.state.loose
    assert not differ(tensors, seed, told)
    for number, tensor in enumerate(tensors):
        false = [*tensors[:number], tensor.detach() + 1, *tensors[number + 1 :]]
        assert set(differ(false, seed, told)) == {number}
    assert len(buffers) == 1
    assert len(tensors) > len(behind.state.parameters) + len(buffers) + 2, "there are moments among them"
