"""What a run is predicted to take: the arithmetic, and what is said of a mix that makes no sense."""

from collections.abc import Sequence

import pytest

from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.publishing.bucket_uploading import SHARE
from dedloc_kit.display.auxiliary_peers import AuxiliaryPeers, gain
from dedloc_kit.errors import UserError
from dedloc_kit.events import Rehearsed, SampleCost
from dedloc_kit.organizer.check import describe_prediction
from dedloc_kit.organizer.prediction import (
    COLLABORATING,
    DEVICES,
    ROUND_SECONDS,
    UPLOADS,
    Prediction,
    Volunteers,
    fits,
    predict,
    read_auxiliary,
    read_line,
    read_volunteers,
    samples_per_second,
    state_bytes,
)
from dedloc_kit.organizer.round_time import STAY, Line, round_time
from tests.tiny import tiny_run

MBIT = 1e6 / 8
V = 10_000_000


def rehearsed(rate: float = 4.0, parameters: int = 18_000_000) -> Rehearsed:
    cost = SampleCost(flops=1e12, kept_bytes=800_000_000, microbatch=1, samples_per_second=rate)
    return Rehearsed(parameters=parameters, gradient_bytes=V, average_bytes=V, device="CPU", cost=cost)


def run(global_batch: int = 4096, overlap: bool = True) -> RunConfig:
    return tiny_run(global_batch=global_batch, averaging={"overlap": overlap})


def test_a_mix_is_read_with_counts_lines_and_who_can_be_reached() -> None:
    assert read_volunteers("20x2xT4@50mbit, 5xCPU@1.5gbit/open,rtx3090") == (
        Volunteers(20, "t4", 50 * MBIT, devices=2),
        Volunteers(5, "cpu", 1500 * MBIT, reachable=True),
        Volunteers(1, "rtx3090"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "COUNTxDEVICE"),
        ("0xT4", "'0xT4'"),
        ("20x0xT4", "COUNTxGPUS"),
        ("3xABACUS", "ABACUS"),
        ("2xT4@fast", "'fast'"),
        ("T4@0mbit", "50mbit"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused_with_what_is_known(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_volunteers(text)
    with pytest.raises(UserError):
        read_line("quick")


def test_computing_decides_while_averaging_hides_behind_it() -> None:
    slow = predict(run(), rehearsed(), [Volunteers(10, "cpu")], 100 * MBIT)
    assert slow.computing == pytest.approx(4096 / (COLLABORATING * 10 * 4.0))
    assert (slow.step, slow.limit) == (slow.computing, "computing")
    assert slow.days == pytest.approx(slow.step * 1000 / 86_400)
    exact = predict(run(overlap=False), rehearsed(), [Volunteers(10, "cpu")], 100 * MBIT)
    assert exact.step == pytest.approx(slow.computing + slow.network + slow.matchmaking + slow.vanishing)


def test_a_volunteer_with_two_gpus_computes_twice_as_much_over_one_line() -> None:
    one, two = (predict(run(), rehearsed(), [Volunteers(10, "t4", MBIT, devices=n)], 100 * MBIT) for n in (1, 2))
    assert two.computing == pytest.approx(one.computing / 2)
    assert two.network == one.network


def test_a_slow_line_and_a_tiny_batch_are_named_as_what_limits() -> None:
    assert predict(run(64), rehearsed(100.0), [Volunteers(10, "cpu", 1 * MBIT)], 100 * MBIT).limit == "network"
    assert predict(run(8), rehearsed(100.0), [Volunteers(2, "cpu", 1e9)], 1e9).limit == "matchmaking"


def test_a_round_has_the_volunteers_and_the_coordinator_as_its_members() -> None:
    mix = [Volunteers(20, "t4", 50 * MBIT), Volunteers(3, "cpu", 10 * MBIT, reachable=True)]
    lines = [
        Line(20, 50 * MBIT, reachable=False),
        Line(3, 10 * MBIT, reachable=True),
        Line(1, 100 * MBIT, reachable=True, gives=False),
    ]
    found, predicted = round_time(lines, V, V), predict(run(), rehearsed(parameters=0), mix, 100 * MBIT)
    assert (predicted.network, predicted.vanishing) == (found.network, found.vanishing)
    assert predicted.matchmaking == ROUND_SECONDS + found.streams


def test_a_gpu_is_estimated_by_its_peak_and_this_machine_by_what_it_did() -> None:
    assert samples_per_second("cpu", rehearsed(4.0)) == 4.0
    assert samples_per_second("t4", rehearsed()) == pytest.approx(DEVICES["t4"].peak * DEVICES["t4"].share / 1e12)
    room = fits("t4", rehearsed())
    assert room is not None
    assert 10 < room < 20
    assert fits("cpu", rehearsed()) is None


def test_helpers_are_read_and_what_makes_no_sense_is_refused() -> None:
    assert read_auxiliary("") == ()
    assert read_auxiliary("3@1gbit, 1@100mbit") == (AuxiliaryPeers(3, 1000 * MBIT), AuxiliaryPeers(1, 100 * MBIT))
    for text in ("3", "0@1gbit", "x@1gbit", "2@fast", "5000@1gbit", "-1@1gbit"):
        with pytest.raises(UserError):
            read_auxiliary(text)


def with_auxiliary(volunteers: int, global_batch: int = 4096, line: float = 50 * MBIT) -> dict[int, Prediction]:
    mix = [Volunteers(volunteers, "t4", line)]
    return {
        n: predict(run(global_batch), rehearsed(parameters=0), mix, 50 * MBIT, [AuxiliaryPeers(n, 50 * MBIT)] * (n > 0))
        for n in (0, 1, 2)
    }


def test_where_the_coordinators_line_is_the_last_helpers_with_such_a_line_divide_the_time() -> None:
    found = with_auxiliary(60)
    for auxiliary, predicted in found.items():
        assert predicted.network == pytest.approx(found[0].network / (1 + auxiliary), rel=0.05)
    few = with_auxiliary(1)
    assert few[2].network == pytest.approx(few[0].network, rel=0.02), "a volunteer's own line is the last one there"


def test_newcomers_states_go_over_the_lines_of_those_who_average_unless_a_bucket_gives_them() -> None:
    stored = tiny_run(averaging={"state_bucket": "us/down"})
    for count, parameters, most in ((20, 1_000_000, 1.0), (20, 18_000_000, 1.0), (100, 1_000_000_000, 0.5)):
        mix = [Volunteers(count, "t4", 50 * MBIT)]
        asked, fetched = (predict(each, rehearsed(parameters=parameters), mix, 100 * MBIT) for each in (run(), stored))
        alone = predict(run(), rehearsed(parameters=0), mix, 100 * MBIT).network
        assert asked.newcomers == pytest.approx(min(most, count * 12 * parameters / STAY / (100 * MBIT)))
        assert asked.network == pytest.approx(alone / (1 - asked.newcomers), rel=0.01)
        assert fetched.newcomers == 0.0
        assert fetched.network == pytest.approx(alone * (count + 1 + UPLOADS) / (count + 1), rel=0.01)
    told = [
        any("averaging.state_bucket" in line for line in describe_prediction(run(), each)) for each in (asked, fetched)
    ]
    assert told == [True, False]
    assert UPLOADS == 1 + 1 / SHARE


def test_a_state_is_the_parameters_and_what_the_optimizer_of_global_steps_remembers() -> None:
    runs = {12: run(), 6: tiny_run(optimizer={"state_dtype": "8bit"}), 8: tiny_run(averaging={"mode": "local-steps"})}
    assert {size: state_bytes(each, 1000) for size, each in runs.items()} == {size: 1000 * size for size in runs}


def test_the_organizer_is_told_in_plain_words_what_an_auxiliary_peer_would_change() -> None:
    def told(count: int, line: float, auxiliary: Sequence[AuxiliaryPeers] = (), own: float = 50 * MBIT) -> str:
        mix = [Volunteers(count, "t4", own)]
        return gain(lambda more: predict(run(), rehearsed(), mix, line, more).step, auxiliary)

    assert told(10, 100 * MBIT) == "", "computing takes longer than the network"
    assert told(19, 50 * MBIT) == (
        "half of your volunteers' time is spent waiting for the coordinator's line; one auxiliary peer with 100 Mbit/s "
        "would end that (dedloc join --auxiliary)"
    )
    assert "; 2 auxiliary peers with 1000 Mbit/s each would end that" in told(60, 100 * MBIT)
    assert told(60, 100 * MBIT, [AuxiliaryPeers(2, 1000 * MBIT)]) == ""
    assert "; 5 auxiliary peers with 1000 Mbit/s each would leave " in told(2000, 5 * MBIT, own=1000 * MBIT)
    assert (
        "waiting for the lines of the coordinator and the auxiliary peers; one more auxiliary peer with 1000"
        in told(60, 100 * MBIT, [AuxiliaryPeers(1, 1000 * MBIT)])
    )
