"""Hostile hosts of experts: what they say that an expert was told spoils neither it nor a copy of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import ExpertName, Microbatch
from dedloc_kit.experts.expert import Sum
from dedloc_kit.experts.keeping import Keeping
from dedloc_kit.experts.refused import Refused
from dedloc_kit.swarm.experts.copies import (
    Coder,
    CopyService,
    GivenHead,
    GoneHead,
    StepHead,
    ToldHead,
    Wanted,
    send_sums,
)
from dedloc_kit.swarm.experts.following import Following, NoCopies
from dedloc_kit.swarm.experts.hosting import Hosting
from dedloc_kit.swarm.experts.placing import Holder, Plan
from dedloc_kit.swarm.network.service import Service, Stream, encode
from dedloc_kit.swarm.remote.tensors import send_tensor
from tests.experts.mixed_run import WIDTH
from tests.swarm.experts.local_hosts import NAMES, RUN
from tests.swarm.local_network import LocalNetwork

NAME, OTHER = NAMES[0], NAMES[1]
BATCH = RUN.global_batch
SIZE = sum(each.numel() for key, each in Bank(RUN).like().items() if key.startswith("model."))
DIRECTION = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
DIRECTION /= DIRECTION.norm()


def learned(*names: ExpertName) -> Bank:
    """Of experts whose trainers have told what is usual."""
    bank = Bank(RUN, remembers=True)
    bank.hold(names)
    for name in names:
        for seed in range(10):
            generator = torch.Generator().manual_seed(seed)
            ticket = bank.keep(name, torch.randn(5, WIDTH, generator=generator), Microbatch(1, 1), "t")
            bank.learn(ticket, 0.1 * torch.randn(5, WIDTH, generator=generator), "t")
    return bank


def usual(bank: Bank) -> float:
    """The norm of what it was told, by sample; nothing is left of that."""
    (told,) = bank.take_sums(NAME).values()
    return float(told.total.norm()) / told.samples


@pytest.mark.parametrize("samples", [1, BATCH])
def test_a_sum_that_is_far_too_large_for_its_samples_is_not_added(samples: int) -> None:
    bank = learned(NAME)
    size = usual(bank)
    with pytest.raises(Refused, match="absurd"):
        bank.add_sums(NAME, {1: Sum(DIRECTION * 1000 * size * samples, samples)}, "m")
    assert not bank.take_sums(NAME)
    assert bank.refused == {"absurd": 1}
    bank.add_sums(NAME, {1: Sum(DIRECTION * size * samples, samples)}, "m")
    assert bank.take_sums(NAME)[1].samples == samples


def test_who_names_more_samples_than_a_batch_has_counts_as_a_batch_however_often_it_says_so() -> None:
    bank = learned(NAME)
    size = usual(bank)
    for samples in (BATCH // 2, 2**40, BATCH, 1):
        bank.add_sums(NAME, {1: Sum(DIRECTION * size * samples, samples)}, "m")
    told = bank.take_sums(NAME)
    assert told[1].samples == BATCH
    assert float(told[1].total.norm()) == pytest.approx(size * BATCH, rel=1e-4)


@pytest.mark.parametrize(
    "fields", [{"sums": (1,), "samples": ()}, {"sums": (1,), "samples": (0,)}, {"sums": (1, 1), "samples": (1, 1)}]
)
@pytest.mark.parametrize("kind", [ToldHead, GivenHead])
def test_sums_without_their_samples_are_none(kind: type[ToldHead], fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"samples"):
        kind.parse({"kind": kind.model_fields["kind"].default, "expert": 0, **fields})


class Host:
    """A peer with some experts, and what it does to hold them; it is let look by hand."""

    def __init__(self, network: LocalNetwork, name: str, bank: Bank, plan: Callable[[], Plan] = Plan) -> None:
        self.keeping = Keeping(bank, RUN, lambda step: 0.01)
        self.coder = Coder(bank.like(), WIDTH, "float32")
        self.keeping.tell_in(self.coder.code)
        self.service = CopyService(self.keeping, self.coder, lambda peer: True)
        self.endpoint = network.endpoint(name)
        self.following = Following(self.keeping, self.endpoint, self.coder, lambda *_: None)
        self.holders: dict[str, Holder] = {}
        self.hosting = Hosting(
            *(name, self.keeping, self.service, self.following, lambda: self.holders, lambda: (plan(), "o"), None),
            lambda: None,
        )


async def tell(stream: Stream, sums: Mapping[int, Sum]) -> None:
    """And what ends the stream: by then all before it has been taken, or not."""
    await send_sums(stream, ToldHead, NAMES.index(NAME), sums)
    await stream.send(b"\x00")
    with suppress(OSError, EOFError):
        while True:
            await stream.receive(2**20)


@pytest.mark.parametrize(("peer", "counts"), [("b", True), ("m", False)])
def test_of_what_an_expert_was_told_only_the_word_of_its_own_stand_in_counts(peer: str, counts: bool) -> None:
    async def run() -> Mapping[int, Sum]:
        network, bank = LocalNetwork(), learned(NAME, OTHER)
        size = usual(bank)
        host = Host(network, "a", bank, lambda: Plan({NAME: "a", OTHER: "a"}, {NAME: "b", OTHER: "m"}))
        await host.endpoint.add(host.service)
        host.hosting.look()
        endpoint = network.endpoint(peer)
        await endpoint.add(CopyService(Keeping(Bank(RUN), RUN, lambda step: 0.01), host.coder, lambda peer: True))
        wanted = Wanted(experts=(NAMES.index(NAME),), steps=(0,), follow=True)
        async with endpoint.open("a", CopyService, encode(wanted)) as stream:
            await tell(stream, {1: Sum(DIRECTION * size, 1)})
        return bank.take_sums(NAME)

    told = asyncio.run(asyncio.wait_for(run(), 60))
    assert (told.keys() == {1}) == counts


class Liar(Service):
    """Says of an expert what it likes to whoever asks for it."""

    name = CopyService.name

    def __init__(self, lie: Callable[[Stream], Any]) -> None:
        self._lie = lie

    async def serve(self, peer: str, stream: Stream) -> None:
        await stream.receive(2**20)
        await self._lie(stream)
        await stream.closed()


async def a_step(stream: Stream) -> None:
    await stream.send(encode(StepHead(expert=0, step=1, rate=0.01, exponent=0)))
    await send_tensor(stream, (DIRECTION * 100).view(-1, WIDTH))


async def a_gift(stream: Stream) -> None:
    await send_sums(stream, GivenHead, 0, {1: Sum(DIRECTION * 100, 1)})


async def an_end(stream: Stream) -> None:
    await stream.send(encode(GoneHead(expert=0)))


@asynccontextmanager
async def followed(host: Host, peer: str) -> AsyncIterator[None]:
    """While a host follows an expert of this peer."""
    task = asyncio.create_task(host.following.follow(peer, [NAME]))
    while NAME not in host.following.live:
        await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize("lie", [a_step, a_gift, an_end])
def test_of_an_expert_that_is_followed_at_its_keeper_nobody_else_says_what_became_of_it(lie: Any) -> None:
    async def run() -> None:
        network = LocalNetwork()
        keeper, host = (Host(network, name, bank) for name, bank in (("a", learned(NAME)), ("b", Bank(RUN))))
        await keeper.endpoint.add(keeper.service)
        await host.endpoint.add(host.service)
        network.serve("m", Liar(lie))
        before, _ = keeper.keeping.bank.state(NAME)
        async with followed(host, "a"):
            with suppress(NoCopies):
                await host.following.follow("m", [NAME])
            assert host.following.live == host.keeping.followed == {NAME}
            after, step = host.keeping.bank.state(NAME)
        assert step == 0
        assert all(torch.equal(each, after[key]) for key, each in before.items())

    asyncio.run(asyncio.wait_for(run(), 60))
