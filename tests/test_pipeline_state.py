"""How a pipeline stands, by what its peers say."""

import pytest

from dedloc_kit.events import PipelineState, parse_event
from dedloc_kit.pipeline_state import MAX_TOLD, accused, limiting, throughput
from tests.dashboard.staged_run import COUNT, GAP, LIMITED, WHOLE, Begun, Moved, Offer, offer, pipeline


def test_who_holds_a_stage_counts_and_who_loads_one_or_leaves_does_not() -> None:
    held = [(stage.holders, round(stage.throughput, 6), stage.queue) for stage in LIMITED.stages]
    assert held == [(3, 7.8, 3), (2, 5.5, 2), (1, 3.1, 12), (3, 5.5, 3)]
    loading = LIMITED.stages[2].peers[-1]
    assert (loading.peer, loading.state) == ("Qm6", "joining"), "behind those who hold it, whatever it claims"
    assert LIMITED.stages[1].peers[1].moving_to == 2
    assert [(driver.peer, driver.driven, driver.begun) for driver in LIMITED.drivers] == [("Qm10", 640, 24)]


@pytest.mark.parametrize(
    ("state", "limits", "told"),
    [
        (LIMITED, (2,), "stage 2 of 4 limits the run: 3.1 of 7.8 microbatches/s"),
        (GAP, (2,), "stage 2 of 4 has nobody"),
        (pipeline(offer(0, 1)), (0, 2, 3), "stages 0, 2, 3 of 4 have nobody"),
        (WHOLE, (), "no stage limits the run: each passes 4 microbatches/s or more"),
        (pipeline(*(offer(n, n, 3.0 * (n != 3)) for n in range(COUNT))), (), "stage 3 of 4 is not measured yet"),
        (pipeline(*(offer(n, n, 0.0) for n in range(COUNT - 1))), (3,), "stage 3 of 4 has nobody"),
        (
            pipeline(*(offer(n, n, 150.0 if n else 0.025) for n in range(COUNT))),
            (0,),
            "stage 0 of 4 limits the run: 0.025 of 150 microbatches/s",
        ),
    ],
)
def test_what_limits_the_run_is_a_sentence(state: PipelineState, limits: tuple[int, ...], told: str) -> None:
    assert (limiting(state.stages), state.bottleneck) == (limits, told)


def test_what_hostile_peers_say_can_be_told_and_names_no_stage_that_there_is_not() -> None:
    most = {"queue": 2**53, "served": 2**53, "step": 2**53}
    crowd = [offer(n, 0, 1e6, driven=2**53, begun=Begun(2**53), moving=Moved(63), **most) for n in range(1200)]
    state = pipeline(*crowd, *(offer(n, n) for n in range(1, COUNT)), offer(0, 63))
    assert parse_event(state.model_dump_json()) == state
    assert [stage.holders for stage in state.stages] == [1200, 1, 1, 1]
    assert (len(state.stages[0].peers), len(state.drivers)) == (MAX_TOLD, MAX_TOLD)
    assert {peer.moving_to for peer in state.stages[0].peers} == {None}
    assert (throughput(state.stages), state.bottleneck[:23]) == (2.0, "stage 1 of 4 limits the")


def test_how_many_drivers_accuse_a_peer_is_told_and_each_counts_once() -> None:
    state = pipeline(
        *(offer(n, n) for n in range(COUNT)),
        offer(4, None, accuses=("Qm1",) * 8, begun=Begun(4)),
        offer(5, 2, accuses=("Qm1", "Qm0", "nobody"), begun=Begun(4)),
        offer(6, 3, accuses=("Qm3",)),
    )
    told = {peer.peer: peer.accusers for stage in state.stages for peer in stage.peers if peer.accusers}
    assert told == {"Qm1": 2, "Qm0": 1}, "who does not drive has compared nothing"
    assert [(stage, peer.peer) for stage, peer in accused(state.stages)] == [(1, "Qm1")]


def test_where_the_microbatches_of_all_drivers_are_is_told_of_each_stage() -> None:
    state = pipeline(
        *(offer(n, n) for n in range(COUNT)),
        offer(4, None, begun=Begun(4), in_flight=((1, 0), (0, 2), (3, 0), (0, 1))),
        offer(5, 2, begun=Begun(4), in_flight=((1, 1), (0, 0), (1, 4), (0, 0), (9, 9))),
        offer(6, 3, begun=Begun(4), in_flight=((1, 0),)),
        offer(7, 3, in_flight=((7, 7),) * COUNT),
    )
    told = [(stage.forward, stage.backward) for stage in state.stages]
    assert told == [(3, 1), (0, 2), (4, 4), (0, 1)], "no stage that there is not, and nobody who does not drive"


def test_one_peer_alone_does_not_say_how_far_a_stage_is() -> None:
    assert LIMITED.stages[3].step == 7
    assert pipeline(Offer(0, step=2**53), Offer(0, step=7)).stages[0].step == 7


def test_stages_that_are_not_numbered_from_0_are_refused() -> None:
    with pytest.raises(ValueError, match="not numbered from 0"):
        PipelineState(stages=WHOLE.stages[::-1])
    with pytest.raises(ValueError, match="stages"):
        PipelineState(stages=WHOLE.stages[:1])
