"""Experts go to those who are to hold them, and none is lost with its keeper; in one process over pairs of sockets."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import ExpertName, Microbatch, counting
from dedloc_kit.experts.expert import Sum
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.swarm.experts import copies, following
from dedloc_kit.swarm.experts import hosting as module
from dedloc_kit.swarm.experts.client import CallFailed
from dedloc_kit.swarm.experts.copies import Coder, CopyService, ToldHead, Wanted, send_sums
from dedloc_kit.swarm.experts.following import Following, NoCopies, whom_to_ask
from dedloc_kit.swarm.experts.hosting import Hosting
from dedloc_kit.swarm.experts.placing import Holder, Plan
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import Form
from tests.experts.mixed_run import WIDTH
from tests.hang import HANG
from tests.swarm.experts.local_hosts import LAYER, NAMES, RUN, sums
from tests.swarm.local_network import LocalNetwork

ORGANIZER = "o"


class Peer:
    def __init__(self, group: "Group", name: str) -> None:
        self.name, self.group = name, group
        known = self.known if name == ORGANIZER else None
        self.keeping = Keeping(Bank(RUN, remembers=True), RUN, lambda step: 0.01 / step, group.last.__setitem__)
        self.coder = Coder(self.keeping.bank.like(), WIDTH, group.form)
        self.keeping.tell_in(self.coder.code)
        self.service = CopyService(self.keeping, self.coder, lambda peer: peer != "stranger")
        self.endpoint = group.network.endpoint(name)
        group.run(self.endpoint.add(self.service))
        self.failed: list[tuple[str, CallFailed]] = []
        self.following = Following(self.keeping, self.endpoint, self.coder, lambda *of: self.failed.append(of))
        self.hosting = Hosting(
            *(name, self.keeping, self.service, self.following, self.holders, lambda: (group.plan, ORGANIZER), known),
            lambda: None,
        )
        self.running: Future[Any] | None = None

    def known(self, name: ExpertName) -> State:
        return self.group.last[name][0], self.keeping.step

    def start(self) -> None:
        self.running = self.group.loop.start(self.hosting.run())

    def holders(self) -> dict[str, Holder]:
        """At once, where real peers hear of it after a while; who is frozen says nothing new."""
        others = {name: peer for name, peer in self.group.peers.items() if name != self.name}
        said = {name: 0.0 if self.group.network.is_frozen(name) else time.monotonic() for name in others}
        now = {name: Holder(0, *peer.keeping.held, time=said[name]) for name, peer in others.items()}
        return now | self.group.last_words

    def learn(self, step: int, seed: int) -> None:
        """Every expert of a layer that is here is told a gradient."""
        names = [name for name in self.keeping.bank.names if name.layer == LAYER]
        generator = torch.Generator().manual_seed(seed)
        inputs = {name.cell: torch.randn(3, WIDTH, generator=generator) for name in NAMES if name.layer == LAYER}
        inputs = {name.cell: inputs[name.cell] for name in names}
        with counting(Microbatch(step, 8)):
            answers = self.keeping.bank.forward(LAYER, inputs, keep=True)
        self.keeping.bank.backward(LAYER, answers.ticket, inputs)


class Group:
    """The organizer, who has all experts at first, and hosts."""

    def __init__(self, hosts: str, form: Form) -> None:
        self.network, self.loop, self.form, self.plan = LocalNetwork(), Loop(), form, Plan()
        self.loop.__enter__()
        self.last: dict[ExpertName, State] = {}
        self.last_words: dict[str, Holder] = {}
        self.peers: dict[str, Peer] = {}
        for name in (ORGANIZER, *hosts):
            self.peers[name] = Peer(self, name)
        self.peers[ORGANIZER].keeping.bank.hold_all()
        for peer in self.peers.values():
            peer.start()

    @property
    def all(self) -> list[Peer]:
        return list(self.peers.values())

    def __getitem__(self, name: str) -> Peer:
        return self.peers[name]

    def run(self, work: Any) -> Any:
        return self.loop.run(asyncio.wait_for(work, HANG))

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        self.run(wait())

    def assign(self, keeper: str, stand_in: str | None = None) -> None:
        """All experts, and wait until that is so."""
        stand_ins = {} if stand_in is None else dict.fromkeys(NAMES, stand_in)
        self.plan = Plan(dict.fromkeys(NAMES, keeper), stand_ins)
        self.until(lambda: self[keeper].keeping.kept == set(NAMES))
        if stand_in is not None:
            self.until(lambda: self[stand_in].following.live == set(NAMES))
        self.until(lambda: all(peer.name in (keeper, stand_in) or not peer.keeping.bank.names for peer in self.all))

    def step(self, step: int) -> None:
        """All hear of a global step, after those who keep something have learned for it."""
        for peer in self.peers.values():
            if peer.keeping.kept:
                peer.learn(step, step)
        for peer in self.peers.values():
            peer.keeping.stepped(step, 8)

    def kill(self, name: str) -> None:
        """Its streams break, and its record is there no more, unless `last_words` holds it."""
        peer = self.peers.pop(name)
        assert peer.running is not None
        peer.running.cancel()

        async def cut() -> None:
            self.network.cut(name)

        self.run(cut())

    def close(self) -> None:
        for peer in self.peers.values():
            assert peer.running is not None
            peer.running.cancel()
        self.loop.__exit__(None, None, None)


@contextmanager
def group(hosts: str, form: Form = "float32") -> Iterator[Group]:
    made = Group(hosts, form)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(module, "ALONE_SECONDS", 1.0)
    monkeypatch.setattr(module, "RIVAL_SECONDS", 1.0)
    monkeypatch.setattr(module, "HOME_SECONDS", 0.2)
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.5)


def same(one: Keeping, other: Keeping, step: int) -> bool:
    for name in NAMES:
        (mine, at), (theirs, there) = one.bank.state(name), other.bank.state(name)
        if not at == there == step or not all(torch.equal(mine[key], theirs[key]) for key in mine):
            return False
    return True


def is_as(right: Keeping, name: ExpertName, found: State) -> bool:
    tensors, step = right.bank.state(name)
    return found[1] == step and all(torch.equal(found[0][key], each) for key, each in tensors.items())


def drift(keeping: Keeping, name: ExpertName, by: float) -> None:
    """Its parameters are other ones, relative to what they are."""
    expert = keeping.bank._experts[name]
    with expert._lock:
        for key, tensor in expert.tensors().items():
            if key.startswith("model."):
                tensor.mul_(1 + by)


def plain(*steps: int) -> Keeping:
    """One process with all experts."""
    made = Keeping(Bank(RUN), RUN, lambda step: 0.01 / step)
    made.bank.hold_all()
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = {name.cell: torch.randn(3, WIDTH, generator=generator) for name in NAMES if name.layer == LAYER}
        with counting(Microbatch(step, 8)):
            answers = made.bank.forward(LAYER, inputs, keep=True)
        made.bank.backward(LAYER, answers.ticket, inputs)
        made.stepped(step, 8)
    return made


def test_hosts_get_experts_from_the_organizer_and_take_the_steps_of_one_process() -> None:
    with group("ab") as these:
        these.step(1)
        these.assign("a", "b")
        assert these[ORGANIZER].keeping.bank.names == []
        these.step(2)
        these.until(lambda: same(these["a"].keeping, these["b"].keeping, 2))
        assert same(these["a"].keeping, plain(1, 2), 2)


@pytest.mark.parametrize("form", ["8bit", "float16"])
def test_keeper_and_stand_in_hold_the_same_bits_however_gradients_travel(form: Form) -> None:
    with group("ab", form) as these:
        these.assign("a", "b")
        for step in (1, 2, 3):
            these.step(step)
            these.until(lambda step=step: same(these["a"].keeping, these["b"].keeping, step))  # type: ignore[misc]


def test_what_an_expert_was_told_goes_with_it_when_it_is_handed_over_in_the_middle_of_a_step() -> None:
    with group("ab") as these:
        these.assign("a", "b")
        these["a"].learn(1, 1)
        these.assign("b", "a")
        for peer in these.peers.values():
            peer.keeping.stepped(1, 8)
        these.until(lambda: same(these["b"].keeping, these["a"].keeping, 1))
        assert same(these["b"].keeping, plain(1), 1)


@pytest.mark.parametrize("asked", [ORGANIZER, "b"])
def test_what_trainers_tell_a_stand_in_or_who_has_given_an_expert_away_counts_at_its_keeper(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 1e6)
    told = sum(name.layer == LAYER for name in NAMES)
    with group("ab") as these:
        these.plan = Plan(dict.fromkeys(NAMES, "a"), dict.fromkeys(NAMES, "b"))
        these.until(lambda: these["a"].keeping.kept == set(NAMES) == these[asked].following.live)
        these[asked].learn(1, 1)
        these.until(lambda: len(sums(these["a"].keeping.bank)) == told)
        these["a"].keeping.stepped(1, 8)
        assert same(these["a"].keeping, plain(1), 1)
        these.until(lambda: same(these[asked].keeping, these["a"].keeping, 1))
        assert not sums(these[asked].keeping.bank), "it counts once"


def test_who_follows_nothing_of_it_tells_nothing_of_an_expert() -> None:
    with group("ab") as these:
        these.assign("a")
        numbers = {name: number for number, name in enumerate(NAMES)}

        async def tell() -> None:
            wanted = Wanted(experts=(numbers[NAMES[0]],), steps=(0,), follow=True)
            async with these["b"].endpoint.open("a", CopyService, encode(wanted)) as stream:
                await send_sums(stream, ToldHead, numbers[NAMES[1]], {1: Sum(torch.ones(these["a"].coder.size), 1)})
                while True:
                    await stream.receive(2**20)

        with pytest.raises((OSError, EOFError)):
            these.run(tell())
        assert not sums(these["a"].keeping.bank)


def test_the_stand_in_of_a_keeper_that_dies_goes_on_with_its_bits_and_gets_a_stand_in() -> None:
    with group("abc") as these:
        these.assign("a", "b")
        these.step(1)
        these.until(lambda: same(these["a"].keeping, these["b"].keeping, 1))
        these.kill("a")
        these["b"].learn(2, 2)  # trainers ask it at once
        these["b"].keeping.stepped(2, 8)
        these.until(lambda: these["b"].keeping.kept == set(NAMES))
        assert same(these["b"].keeping, plain(1, 2), 2)
        these.assign("b", "c")
        assert same(these["c"].keeping, plain(1, 2), 2)


def test_who_goes_on_for_a_dead_keeper_does_not_give_way_to_the_record_that_it_has_left() -> None:
    with group("ab") as these:
        these.assign("a", "b")
        these.step(1)
        these.until(lambda: same(these["a"].keeping, these["b"].keeping, 1))
        these.last_words["a"] = Holder(0, *these["a"].keeping.held, time=5.0)
        these.kill("a")
        these.until(lambda: these["b"].keeping.kept == set(NAMES))
        time.sleep(1.5)  # longer than two keep what one is to keep
        assert same(these["b"].keeping, plain(1), 1)
        these.last_words["a"] = replace(these.last_words["a"], time=6.0)  # it is back
        these.until(lambda: not these["b"].keeping.kept)


def test_a_keeper_that_says_nothing_is_taken_for_gone_and_gives_way_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SILENT_SECONDS", 0.3)
    with group("ab") as these:
        these.assign("a", "b")
        running = these["a"].running
        assert running is not None
        running.cancel()
        these.network.freeze("a")
        these.until(lambda: these["b"].keeping.kept == set(NAMES))
        these.plan = Plan(dict.fromkeys(NAMES, "b"))
        these["a"].start()
        these.until(lambda: not these["a"].keeping.bank.names)
        assert these["b"].keeping.kept == set(NAMES)


@pytest.mark.soak
def test_a_keeper_that_has_slept_gets_back_what_others_have_learned_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(module, "RIVAL_SECONDS", 1e6)
    with group("ab") as these:
        these.assign("a", "b")
        running = these["a"].running
        assert running is not None
        running.cancel()
        these.network.freeze("a")
        these.until(lambda: these["b"].keeping.kept == set(NAMES))
        these["b"].learn(1, 1)
        for peer in these.all:
            peer.keeping.stepped(1, 8)
        assert not same(these["a"].keeping, these["b"].keeping, 1)
        monkeypatch.setattr(following, "SILENT_SECONDS", 6.0)  # nobody is to be taken for gone any more
        these.network.thaw("a")
        these["a"].start()
        these.until(lambda: these["a"].keeping.kept == set(NAMES) == these["b"].following.live)
        assert same(these["a"].keeping, plain(1), 1)
        assert same(these["b"].keeping, plain(1), 1)


def test_what_nobody_has_any_more_comes_back_as_the_organizer_knows_it() -> None:
    with group("ab") as these:
        these.step(1)
        these.assign("a", "b")
        these.step(2)
        these.kill("a")
        these.kill("b")
        these.until(lambda: these[ORGANIZER].keeping.kept == set(NAMES))
        right = plain(1)
        for name in NAMES:
            tensors, step = these[ORGANIZER].keeping.bank.state(name)
            assert step == 2
            assert all(torch.equal(tensors[key], each) for key, each in right.bank.state(name)[0].items())


def test_the_organizer_fetches_experts_of_the_last_two_steps_and_waits_for_the_next() -> None:
    with group("a") as these:
        these.assign("a")
        for step in (1, 2):
            these.step(step)
        fetch = these[ORGANIZER].following.fetch
        found = dict[ExpertName, State]()
        for step in (1, 2):
            found.clear()
            these.run(fetch("a", NAMES, step, found.__setitem__))
            right = plain(*range(1, step + 1))
            assert found.keys() == set(NAMES)
            for name, (tensors, at) in found.items():
                assert at == step
                assert all(torch.equal(tensors[key], each) for key, each in right.bank.state(name)[0].items())
        found.clear()
        these.run(fetch("a", NAMES, 0, found.__setitem__))
        assert not found
        coming = these.loop.start(fetch("a", NAMES, 3, found.__setitem__))
        these.step(3)
        coming.result(HANG)
        assert {step for _, step in found.values()} == {3}


def test_experts_come_as_they_were_after_a_step_though_their_keeper_takes_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with group("a") as these:
        these.assign("a")
        these.step(1)
        plainly, steps = copies.send_state, iter((2, 3, 4))

        async def send(*given: Any) -> None:
            for step in itertools.islice(steps, 1):
                await asyncio.to_thread(these.step, step)
            await plainly(*given)

        monkeypatch.setattr(copies, "send_state", send)
        found, right = dict[ExpertName, State](), plain(1)
        these.run(these[ORGANIZER].following.fetch("a", NAMES, 1, found.__setitem__))
        assert these["a"].keeping.step == 4
        assert all(is_as(right, name, found[name]) for name in NAMES)


def test_experts_are_fetched_of_stand_ins_once_their_keeper_has_failed_though_its_record_lives_on() -> None:
    with group("ab") as these:
        these.assign("a", "b")
        organizer, found, right = these[ORGANIZER], dict[ExpertName, State](), plain()
        holders = organizer.holders()
        these.last_words["a"] = holders["a"]
        these.kill("a")
        for there in ({"a", "b"}, {"b"}):
            assert not found
            these.run(organizer.following.gather(whom_to_ask(NAMES, holders, there), 0, found.__setitem__))
        assert [(peer, failure.kind) for peer, failure in organizer.failed] == [("a", "gone")]
        assert all(is_as(right, name, found[name]) for name in NAMES)
    assert whom_to_ask(NAMES, holders, ()).keys() == {"a"}
    assert not whom_to_ask(NAMES, {}, {"a"})


def test_a_stand_in_takes_over_what_its_keeper_has_rounded_otherwise_and_is_sent_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "COMPARE_SECONDS", 0.01)
    with group("ab") as these:
        these.assign("a", "b")
        these.step(1)
        keeper, stand_in = these["a"].keeping, these["b"].keeping
        these.until(lambda: same(keeper, stand_in, 1))
        plainly, sent = copies.send_state, list[Any]()

        async def send(*given: Any) -> None:
            sent.append(given)
            await plainly(*given)

        monkeypatch.setattr(copies, "send_state", send)
        drift(stand_in, NAMES[3], 1e-6)
        assert not same(keeper, stand_in, 1)
        these.until(lambda: these["b"].following.renewed == 1)
        assert same(keeper, stand_in, 1)
        assert len(sent) == 1
        these.step(2)
        these.until(lambda: same(keeper, stand_in, 2))
        assert not these["b"].failed


def test_of_a_keeper_that_has_another_expert_than_its_steps_lead_to_a_stand_in_takes_nothing_over_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "COMPARE_SECONDS", 0.01)
    with group("ab") as these:
        these.assign("a", "b")
        these.step(1)
        stand_in = these["b"].keeping
        these.until(lambda: same(these["a"].keeping, stand_in, 1))
        drift(these["a"].keeping, NAMES[3], 1e-3)
        these.until(lambda: bool(these["b"].failed))
        peer, failure = these["b"].failed[0]
        assert (peer, failure.kind, failure.wrong) == ("a", "unlike", True)
        assert same(stand_in, plain(1), 1)
        these.step(2)
        these.until(lambda: set(stand_in.bank.steps(NAMES)) == {2})
        assert stand_in.followed == set(NAMES)


def test_strangers_get_no_experts() -> None:
    with group("a") as these:
        stranger = Peer(these, "stranger")
        with pytest.raises(NoCopies):
            these.run(stranger.following.follow(ORGANIZER, NAMES))
        with pytest.raises(NoCopies):
            these.run(stranger.following.fetch(ORGANIZER, NAMES, 0, lambda *_: None))
        assert not stranger.keeping.bank.names


def nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each * float("nan") if name.startswith("model.") else each for name, each in tensors.items()}


def huge(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each * 1e9 if name.startswith("model.") else each for name, each in tensors.items()}


def negative(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the optimizer remembers leads to NaN with the next step."""
    return {name: each if name.startswith("model.") else each - 1.0 for name, each in tensors.items()}


@pytest.mark.parametrize(("change", "ahead"), [(nan, 0), (huge, 0), (negative, 0), (dict, 10**6)])
def test_what_cannot_be_an_expert_is_taken_over_from_no_keeper(change: Callable[..., Any], ahead: int) -> None:
    with group("ab") as these:
        these.assign("a")
        these.step(1)
        plainly = these["a"].service._send

        async def lie(name: ExpertName, state: State, *where: Any, **here: Any) -> None:
            tensors, at = state
            await plainly(name, (change(tensors), at + ahead), *where, **here)

        these["a"].service._send = lie  # type: ignore[assignment, method-assign]
        with pytest.raises(NoCopies):
            these.run(these["b"].following.follow("a", NAMES))
        assert not these["b"].keeping.bank.names
        with pytest.raises(NoCopies):
            these.run(these[ORGANIZER].following.fetch("a", NAMES, 1, lambda name, state: pytest.fail(f"{name} came")))


@pytest.mark.parametrize("field", [{"step": 4}, {"rate": 0.2}, {"exponent": 999}])
def test_a_step_that_cannot_be_right_is_not_taken(field: dict[str, Any]) -> None:
    with group("ab") as these:
        these.assign("a")
        running, follower = these["b"].running, these["b"].following
        assert running is not None
        running.cancel()
        coming = these.loop.start(follower.follow("a", NAMES))
        these.until(lambda: follower.live == set(NAMES))
        plainly = these["a"].service._tell

        async def lie(news: Any, stream: Any) -> None:
            message, exponent = news.message
            wrong = {key: each for key, each in field.items() if key != "exponent"}
            await plainly(replace(news, **wrong, message=(message, field.get("exponent", exponent))), stream)

        these.step(1)
        these.until(lambda: same(these["a"].keeping, these["b"].keeping, 1))
        these["a"].service._tell = lie  # type: ignore[method-assign]
        these.step(2)
        with pytest.raises(NoCopies):
            coming.result(HANG)
        right = {1: plain(1), 2: plain(1, 2)}  # of those that were told nothing a mean of nothing is right
        for name in NAMES:
            tensors, step = these["b"].keeping.bank.state(name)
            assert step == 1 or name.layer != LAYER
            assert all(torch.equal(each, right[step].bank.state(name)[0][key]) for key, each in tensors.items())


def test_sums_that_no_gradients_have_cost_only_themselves() -> None:
    with group("a") as these:
        these.assign("a")
        keeping = these["a"].keeping
        keeping.bank.add_sums(NAMES[0], {1: Sum(torch.ones(these["a"].coder.size), 1)})
        keeping.add(NAMES[0], {1: Sum(torch.full((these["a"].coder.size,), 3e38), 1)})
        told = sums(keeping.bank)
        assert torch.equal(told[f"{NAMES[0]} 1"], torch.ones(these["a"].coder.size))


@pytest.mark.parametrize("where", ["check", "load"])
def test_an_expert_for_which_a_host_has_no_memory_does_not_come_until_it_has_some_and_the_others_do(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNFIT_SECONDS", 1.0)
    with group("ab") as these:
        these.assign("a")
        stand_in, full = these["b"], True
        plainly = getattr(stand_in.keeping.bank, where)

        def work(name: ExpertName, *given: Any) -> None:
            if full and name == NAMES[1]:
                raise MemoryError
            plainly(name, *given)

        monkeypatch.setattr(stand_in.keeping.bank, where, work)
        these.plan = replace(these.plan, stand_ins=dict.fromkeys(NAMES, "b"))
        these.until(lambda: stand_in.following.live == set(NAMES) - {NAMES[1]})
        assert stand_in.keeping.followed == set(NAMES) - {NAMES[1]}
        full = False
        these.until(lambda: stand_in.following.live == set(NAMES))
        assert not stand_in.failed, "nobody else is to blame"
