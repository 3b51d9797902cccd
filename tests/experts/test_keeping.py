"""Whoever keeps an expert takes its steps, and whoever follows it holds the same bits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import ExpertName, Microbatch, counting
from dedloc_kit.experts.expert import Sum
from dedloc_kit.experts.keeping import Given, Gone, Keeping, News, Stepped
from dedloc_kit.experts.refused import Refused
from tests.experts.mixed_run import WIDTH, mixed_run

RUN = mixed_run()
NAME, OTHER = ExpertName(2, 1, 2), ExpertName(0, 0, 0)


def keeping(*names: ExpertName) -> Keeping:
    made = Keeping(Bank(RUN, remembers=True), RUN, lambda step: 0.01 / step)
    made.bank.hold(names)
    made.tell_in(halved)
    return made


def halved(mean: Tensor) -> tuple[Any, Tensor]:
    """As a form that loses something."""
    read = mean.half().float()
    return read, read


def learn(one: Keeping, step: int, samples: int = 8) -> None:
    inputs = {NAME.cell: torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(step))}
    with counting(Microbatch(step, samples)):
        answers = one.bank.forward(NAME.layer, inputs, keep=True)
    one.bank.backward(NAME.layer, answers.ticket, inputs)


def hear(follower: Keeping, news: list[News]) -> None:
    for each in news:
        if isinstance(each, Stepped):
            follower.follow(each.name, each.step, each.message, each.rate)
        elif isinstance(each, Given):
            follower.keep(each.name, each.sums)
    news.clear()


def same(one: Keeping, other: Keeping) -> bool:
    (mine, step), (theirs, their_step) = one.bank.state(NAME), other.bank.state(NAME)
    return step == their_step and all(torch.equal(mine[key], theirs[key]) for key in mine)


def followed(keeper: Keeping) -> tuple[Keeping, list[News]]:
    follower, news = keeping(), list[News]()
    state = keeper.followed_by(NAME, news.append)
    assert state is not None
    follower.hold(NAME, state)
    return follower, news


def test_who_follows_an_expert_holds_the_bits_of_its_keeper_after_each_step_though_telling_loses_some() -> None:
    keeper, exact = keeping(NAME), keeping(NAME)
    learn(keeper, 1)
    keeper.stepped(1, 8)
    learn(exact, 1)
    exact.stepped(1, 8)
    follower, news = followed(keeper)
    assert follower.kept == set()
    assert follower.followed == {NAME}
    for step in (2, 3, 4):
        for one in (keeper, exact):
            learn(one, step)
            one.stepped(step, 8)
        follower.stepped(step, 8)  # it takes no steps of its own
        assert follower.bank.steps([NAME]) == [step - 1]
        hear(follower, news)
        assert same(follower, keeper)
    assert not same(keeper, exact), "the keeper takes what its message says"


def test_what_telling_loses_of_a_gradient_goes_into_the_next_one() -> None:
    keeper = keeping(NAME)
    told = list[Tensor]()

    def nothing(mean: Tensor) -> tuple[Any, Tensor]:
        told.append(mean.clone())
        return None, torch.zeros_like(mean)

    keeper.tell_in(nothing)
    keeper.followed_by(NAME, lambda news: None)
    learn(keeper, 1)
    keeper.stepped(1, 8)
    keeper.stepped(2, 8)
    assert told[0].any()
    assert torch.equal(*told)


def test_who_is_given_an_expert_goes_on_as_its_keeper_would_have() -> None:
    keeper, alone = keeping(NAME, OTHER), keeping(NAME, OTHER)
    follower, news = followed(keeper)
    third, its_news = followed(keeper)
    learn(keeper, 1)
    keeper.give(NAME, news.append)
    assert keeper.kept == {OTHER}
    assert isinstance(its_news[-1], Gone)
    hear(follower, news)
    assert follower.kept == {NAME}
    learn(alone, 1)
    for one in (follower, alone, keeper):
        one.stepped(1, 8)
    assert same(follower, alone)
    assert third.kept == set()


def test_a_stand_in_whose_keeper_is_gone_takes_the_steps_that_it_has_missed() -> None:
    keeper = keeping(NAME)
    follower, news = followed(keeper)
    keeper.stepped(1, 8)
    hear(follower, news)
    follower.stepped(1, 8)
    learn(follower, 2)  # trainers ask it meanwhile
    follower.stepped(2, 8)
    follower.stepped(3, 8)
    follower.keep(NAME)
    learn(keeper, 2)
    keeper.left_by(news.append)
    keeper._followers.clear()
    keeper.stepped(2, 8)
    keeper.stepped(3, 8)
    assert same(follower, keeper)


def test_a_step_that_does_not_follow_is_refused_and_so_are_numbers_that_are_none() -> None:
    keeper = keeping(NAME)
    follower, _ = followed(keeper)
    with pytest.raises(ValueError, match="does not follow"):
        follower.follow(NAME, 2, torch.zeros(10), 0.01)
    tensors, step = keeper.bank.state(NAME)
    with pytest.raises(ValueError, match="not finite"):
        keeping().hold(NAME, ({**tensors, "model.up": tensors["model.up"] * torch.nan}, step))
    with pytest.raises(ValueError, match="no expert"):
        keeping().hold(ExpertName(2, 7, 0), (tensors, step))


def test_an_expert_is_had_as_it_was_before_its_last_step_and_no_earlier() -> None:
    keeper = keeping(NAME)
    states = [keeper.bank.state(NAME)]
    for step in (1, 2):
        learn(keeper, step)
        keeper.stepped(step, 8)
        states.append(keeper.bank.state(NAME))
    for step in (1, 2):
        tensors, its_step = keeper.bank.pin(NAME, step).state()
        assert its_step == step
        assert all(torch.equal(tensors[key], states[step][0][key]) for key in tensors)
    with pytest.raises(Refused, match="stale"):
        keeper.bank.pin(NAME, 0)


def test_an_expert_that_is_pinned_stays_as_it_was_and_no_other_copy_of_it_is_made_meanwhile() -> None:
    made = list[int]()

    def room(size: int) -> Tensor:
        made.append(size)
        return torch.zeros(size)

    keeper = Keeping(Bank(RUN, remembers=True, experts_room=room), RUN, lambda step: 0.01 / step)
    keeper.bank.hold([NAME])
    right, step = keeper.bank.state(NAME)
    made.clear()
    pinned = keeper.bank.pin(NAME, step)
    assert not made
    for step in (1, 2, 3):
        learn(keeper, step)
        keeper.stepped(step, 8)
    of_all = sum(tensor.numel() for key, tensor in right.items())
    assert sum(size >= of_all for size in made) == 1
    newest = keeper.bank.pin(NAME, 3)
    learned, _ = keeper.bank.state(NAME)
    keeper.bank.load(NAME, right, 7)
    for each, tensors, step in ((pinned, right, 0), (newest, learned, 3)):
        state = each.state()
        assert state[1] == step
        assert all(torch.equal(state[0][key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("... DefaultCPUAllocator: can't allocate memory: ...")])
def test_a_step_for_which_there_is_no_memory_is_taken_before_the_next_one_as_if_there_had_been_some(
    error: Exception,
) -> None:
    full, other = False, keeping(NAME)

    def room(size: int) -> Tensor:
        if full:
            raise error
        return torch.zeros(size)

    keeper = Keeping(Bank(RUN, remembers=True, experts_room=room), RUN, lambda step: 0.01 / step)
    keeper.tell_in(halved)
    keeper.bank.hold([NAME])
    (follower, news), _ = followed(keeper), followed(other)
    size = keeper.bank._experts[NAME].layout.size
    for step in (1, 2, 3):
        for each in (keeper, other):
            told = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(step))
            each.bank.add_sums(NAME, {step: Sum(told, 1)})
        full = step == 2
        for each in (keeper, other):
            each.stepped(step, 8)
        assert keeper.bank.steps([NAME]) == [1 if full else step]
        full = False
        hear(follower, news)
    assert same(keeper, other)
    assert same(keeper, follower)
    assert keeper.bank.refused == {"memory": 1}
