"""What the experts of a run take of hosts and lines, as an organizer is told before it begins."""

from typing import Any

import pytest

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.machine.memory_model import FIXED_BYTES, HOST_BYTES_PER_PARAMETER
from dedloc_kit.organizer.check import check
from dedloc_kit.organizer.experts import ExpertCosts, Hosts, describe_experts, describe_hosts, read_hosts
from dedloc_kit.organizer.prediction import Volunteers
from dedloc_kit.organizer.round_time import SHARE_OF_LINE
from tests.tiny import tiny_run

MBIT = 1e6 / 8
EXPERTS = {"layers": [1, 3, 5], "grid": [4, 5], "top_k": 2, "width": 512, "hidden": 1000}
PARAMETERS = 3 * 512 * 1000
TRAINERS = [Volunteers(4, "cpu", 20 * MBIT)]


def run(compression: str = "8bit", **task: Any) -> RunConfig:
    averaging = {"overlap": False, "compression": compression}
    return tiny_run(averaging=averaging, experts=EXPERTS, task={"name": "tiny", **task})


def hosts(number: int, held: float, line: float = 50.0) -> Hosts:
    """With the memory for so many experts each."""
    return Hosts(number, FIXED_BYTES + held * HOST_BYTES_PER_PARAMETER * PARAMETERS, line * MBIT)


@pytest.mark.parametrize(("compression", "of_value"), [("8bit", 1), ("4bit", 1), ("float16", 2), ("none", 4)])
def test_a_token_and_its_gradient_pass_both_ways_through_each_layer(compression: str, of_value: int) -> None:
    costs = ExpertCosts.of(run(compression))
    assert (costs.cells, costs.parameters) == (60, PARAMETERS)
    assert costs.token_bytes == 3 * 2 * 2 * 512 * of_value


@pytest.mark.parametrize(
    ("there", "copies"),
    [
        ([], 0),
        ([hosts(5, 11.5)], 0),  # 55 places for 60 cells
        ([hosts(6, 10.5)], 1),
        ([hosts(12, 10.5)], 2),
        ([hosts(1, 500)], 1),  # two copies are on two machines
        ([hosts(1, 500), hosts(5, 10.5)], 1),
        ([hosts(1, 500), hosts(6, 10.5)], 2),
        ([hosts(100, 0.5)], 0),
    ],
)
def test_each_cell_has_as_many_copies_as_the_hosts_have_places_for(there: list[Hosts], copies: int) -> None:
    assert ExpertCosts.of(run()).copies(there) == copies


def test_what_all_experts_are_and_whether_each_has_two_hosts_is_said() -> None:
    told = "\n".join(describe_experts(run(), 10_000_000))
    assert "60 networks of 92.2 million parameters in all beside the model, 102.2 million with it" in told
    assert "a token uses 19.2 million" in told
    assert "6.1 kB up and as much down" in told

    def said(*there: Hosts) -> str:
        return "\n".join(describe_hosts(run(), there, TRAINERS, 100 * MBIT))

    assert "12 machines with room for 120 experts: each of 60 cells has two, on different machines" in said(
        hosts(12, 10.5)
    )
    assert "not all have the second" in said(hosts(6, 10.5))
    assert "too few for 60 cells" in said(hosts(2, 10.5))
    assert "machine" not in said(), "the organizer holds them all"


def test_the_slower_of_the_two_sides_lines_says_how_many_tokens_pass() -> None:
    token = ExpertCosts.of(run()).token_bytes
    trainers = SHARE_OF_LINE * 80 * MBIT / token
    assert trainers == pytest.approx(1252, abs=1)

    def lines(there: list[Hosts], **task: Any) -> str:
        return "\n".join(describe_hosts(run(**task), there, TRAINERS, 10 * MBIT))

    assert "limited by those who train" in lines([hosts(12, 10.5)])
    assert "limited by hosts" in lines([hosts(12, 10.5, line=1.0)])
    alone = lines([])
    assert "of the organizer, who answers for all" in alone
    assert f"{round(trainers / 8)} at most" in alone
    assert "global step" not in alone
    seconds = round(64 * 128 / trainers)
    assert f"a global step of 8,192 tokens takes {seconds} s or more" in lines([hosts(12, 10.5)], sequence_length=128)


def test_hosts_are_read_as_they_are_written_and_nonsense_is_refused_in_a_line() -> None:
    assert read_hosts("") == ()
    assert read_hosts("10x8GB@50mbit, 1.5gb@1gbit") == (Hosts(10, 8e9, 50 * MBIT), Hosts(1, 1.5e9, 1000 * MBIT))
    for wrong in ("10", "x8GB@50mbit", "0x8GB@50mbit", "10x8@50mbit", "10x8GB", "10x8GB@fast"):
        with pytest.raises(UserError, match="write"):
            read_hosts(wrong)
    with pytest.raises(UserError, match="--hosts are of a run with"):
        check(tiny_run(), TRAINERS, coordinator_line=MBIT, hosts=[hosts(1, 1.0)])
