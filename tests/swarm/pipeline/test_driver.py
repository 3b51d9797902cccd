"""Microbatches go through all stages, each counts once in each, whoever comes and goes."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from dedloc_kit.records.stages import Begun
from dedloc_kit.swarm.pipeline import client, peers, spilled
from dedloc_kit.swarm.pipeline import driver as driver_module
from dedloc_kit.swarm.pipeline.computing import Given
from dedloc_kit.swarm.pipeline.service import FollowingService, StageService
from dedloc_kit.swarm.remote.judging import Refusal
from tests.swarm.pipeline.local_pipeline import ROWS, Pipeline, close, microbatches, plain_sum


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def test_gradients_over_the_peers_of_each_stage_are_those_of_one_process(pipeline: Pipeline) -> None:
    batches = microbatches(12)
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(batches))
    assert pipeline.samples() == [12 * ROWS] * 3
    assert driver.driven == 12 * ROWS
    assert driver.kept_bytes > 0
    pipeline.step()
    pipeline.until(lambda: driver.step == 1 and not driver.kept_bytes)


def test_a_driver_tells_where_its_microbatches_are_and_which_way_they_go(pipeline: Pipeline) -> None:
    on, back = threading.Event(), threading.Event()
    for peer in pipeline.of(1):
        peer.before = lambda given: on.wait() if given.call.what == "forward" else True
    for peer in pipeline.of(2):
        peer.before = lambda given: back.wait() if given.call.what == "backward" else True
    driver = pipeline.drive("d", microbatches(4))
    try:
        pipeline.until(lambda: driver.in_flight_at == ((0, 0), (4, 0), (0, 0)))
        on.set()
        pipeline.until(lambda: driver.in_flight_at == ((0, 0), (0, 0), (0, 4)))
    finally:
        on.set()
        back.set()
    pipeline.until(lambda: driver.driven == 4 * ROWS and driver.in_flight_at == ((0, 0),) * 3)


def test_two_drivers_fill_a_batch_and_say_what_is_in_it(pipeline: Pipeline) -> None:
    batches = {name: microbatches(12, seed) for seed, name in enumerate("de")}
    drivers = [pipeline.drive(name, given) for name, given in batches.items()]
    pipeline.until(lambda: pipeline.full() and not any(driver.in_flight for driver in drivers))
    counted = [b for d, name in zip(drivers, "de", strict=True) for b in batches[name][: d.begun.samples // ROWS]]
    assert close(pipeline.sums(), plain_sum(counted))
    assert pipeline.samples() == [ROWS * len(counted)] * 3
    assert len(counted) >= 12


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_a_peer_that_is_gone_in_the_middle_costs_nothing(pipeline: Pipeline, what: str) -> None:
    batches, dying = microbatches(12), pipeline.peers["1b"]

    def die(given: Given) -> None:
        if given.call.what == what and sum(call.call.what == what for call in dying.calls) == 1:  # its second
            until = time.monotonic() + 30
            while what == "backward" and not driver._kept.of("1b") and time.monotonic() < until:
                time.sleep(0.01)  # the answer to the first one is on its way
            pipeline.loop.soon(pipeline.network.cut, "1b")
            time.sleep(0.1)

    dying.before = die
    pipeline.slow("1a")
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full(but=["1b"]) and not driver.in_flight)
    assert close(pipeline.sums(but=["1b"]), plain_sum(batches))
    assert pipeline.samples(but=["1b"]) == [12 * ROWS] * 3
    assert set(pipeline.gone) == {"1b"}
    pipeline.until(lambda: driver.again > 0 or what == "forward")


def test_what_a_peer_takes_with_it_after_the_last_microbatch_is_computed_again(pipeline: Pipeline) -> None:
    pipeline.slow("0b")
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    lost = pipeline.added("0a")
    pipeline.cut("0a")
    pipeline.until(lambda: pipeline.full(but=["0a"]) and driver.again == lost > 0)
    assert close(pipeline.sums(but=["0a"]), plain_sum(batches))


def test_what_memory_is_too_small_for_is_computed_again_from_the_disk(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "MEMORY_BYTES", 1000)
    pipeline.slow("1b")
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert driver.kept_bytes > 5000
    lost = pipeline.added("1a")
    pipeline.cut("1a")
    pipeline.until(lambda: pipeline.full(but=["1a"]) and driver.again == lost > 0)
    assert close(pipeline.sums(but=["1a"]), plain_sum(batches))


def test_where_the_disk_is_full_no_more_is_begun_until_it_has_room(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "MEMORY_BYTES", 1000)
    monkeypatch.setattr(spilled, "MIN_DISK_BYTES", 2**60)
    driver = pipeline.drive("d", batches := microbatches(12), in_flight=2)
    pipeline.until(lambda: driver.kept_bytes > 1000 and not driver.in_flight)
    begun = driver.begun.samples
    time.sleep(2 * peers.TICK_SECONDS)
    assert begun == driver.begun.samples < 12 * ROWS
    assert not driver.begun.final
    monkeypatch.setattr(spilled, "MIN_DISK_BYTES", 0)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(batches))


def test_after_a_step_what_is_begun_is_computed_with_the_new_parameters(pipeline: Pipeline) -> None:
    batches = microbatches(24)
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.step()
    pipeline.until(
        lambda: driver.begun.step == 1 and driver.begun.final and pipeline.full(step=1) and not driver.in_flight
    )
    parameters = [list(pipeline.of(stage)[0].model.parameters()) for stage in range(3)]
    assert close(pipeline.sums(), plain_sum(batches[12:], parameters))


def test_a_driver_that_has_nothing_to_send_holds_up_no_step(pipeline: Pipeline) -> None:
    driver, idle = pipeline.drive("d", microbatches(24)), pipeline.drive("i", [])
    for step in range(2):
        pipeline.until(lambda step=step: driver.begun.step == step and pipeline.full(step=step))  # type: ignore[misc]
        pipeline.until(lambda: not driver.in_flight)
        pipeline.step()
    assert idle.begun.samples == 0


def test_what_is_final_by_the_time_a_line_is_open_is_told_on_it(pipeline: Pipeline) -> None:
    def begun() -> Begun:
        return Begun(step=0, samples=0, final=next(asked) > 0)

    asked, drivers = itertools.count(), pipeline.peers["0a"].drivers
    follower = client.StageClient(pipeline.endpoint("d"), "0a", pipeline.stages[0])
    following = pipeline.loop.start(follower.follow(begun, lambda: None))
    pipeline.until(lambda: "d" in (told := drivers.told()) and told["d"].final)
    following.cancel()


def test_a_stage_with_nobody_is_named_until_somebody_comes(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.driven > 0)
    pipeline.cut("1a")
    pipeline.cut("1b")
    pipeline.until(lambda: driver.missing == "stage 1 of 3 has nobody")
    pipeline.add("1c", 1)
    pipeline.until(lambda: pipeline.full(but=["1a", "1b"]) and not driver.in_flight)
    assert not driver.missing
    assert close(pipeline.sums(but=["1a", "1b"]), plain_sum(batches))


def test_what_a_peer_had_that_has_stood_still_counts_once(pipeline: Pipeline) -> None:
    """It begins anew, for its drivers may have done so already, and what is on its way to it is for nobody."""
    slept, began = pipeline.peers["1b"], list[str]()

    def sleep(given: Given) -> None:
        if given.call.what == "backward" and len(slept.calls) > 4 and not began:
            began.append(slept.session)
            slept.begin_anew()

    slept.before = sleep
    pipeline.slow("1a")
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: bool(began) and driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(batches))
    assert pipeline.samples() == [12 * ROWS] * 3
    pipeline.until(lambda: driver.again > 0)


def test_a_driver_rests_that_is_to_hear_of_others_first(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", [])
    pipeline.until(lambda: driver._peers.ready)
    pipeline.loop.soon(driver.rest, 60.0)
    pipeline.until(lambda: driver._rests_until > 0 and not driver._may_begin())
    pipeline.loop.soon(driver.rest, 0.0)
    pipeline.until(driver._may_begin)


def test_a_silent_peer_is_left(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped (SIGSTOP): its connections stand, and nothing comes any more."""
    monkeypatch.setattr(client, "MIN_PATIENCE", 2.5)
    monkeypatch.setattr(client, "SILENT_SECONDS", 2.5)
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0.5)
    stopped = pipeline.peers["1b"]
    pipeline.slow("1a")
    stopped.before = lambda given: pipeline.network.freeze("1b") if len(stopped.calls) == 3 else None
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full(but=["1b"]) and not driver.in_flight)
    assert close(pipeline.sums(but=["1b"]), plain_sum(batches))
    assert "1b" in pipeline.gone


def test_what_a_peer_had_that_was_taken_for_gone_and_was_not_counts_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line alone was silent, and it has not stood still. It is followed again before it gets work."""
    monkeypatch.setattr(peers, "AVOIDED_SECONDS", 600.0)
    monkeypatch.setattr(client, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0.0)
    pipeline.slow("1a")
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert pipeline.peers["1b"].sums.samples
    pipeline.loop.soon(pipeline.network.mute_lines, "d", "1b", FollowingService.name)
    pipeline.until(lambda: "1b" in pipeline.gone and pipeline.full(but=["1b"]))
    pipeline.until(lambda: "1b" in (there := driver._peers._clients) and there["1b"].step == 0)
    assert not pipeline.peers["1b"].sums.samples
    assert close(pipeline.sums(), plain_sum(batches))


def test_a_peer_whose_line_alone_falls_silent_keeps_what_it_was_sent(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the one stands still that forwards it."""
    monkeypatch.setattr(client, "SILENT_SECONDS", 1.5)
    driver = pipeline.drive("d", microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.loop.soon(pipeline.network.mute_lines, "d", "0a", FollowingService.name)
    pipeline.peers["0a"].sums.step = 1  # it says so on the next line
    pipeline.until(lambda: driver._peers._clients["0a"].step == 1)
    assert not driver.again
    assert not pipeline.gone


def test_a_peer_that_is_behind_is_called_once_it_has_the_step(pipeline: Pipeline) -> None:
    behind = pipeline.peers["1b"].sums
    behind.step = 5
    pipeline.cut("1a")
    driver = pipeline.drive("d", batches := microbatches(12))
    for name in ("0a", "0b", "2a", "2b"):
        pipeline.peers[name].sums.step = 6
    pipeline.until(lambda: driver.step == 5)
    assert not driver.driven
    behind.step = 6
    pipeline.until(lambda: pipeline.full(but=["1a"], step=6) and not driver.in_flight)
    assert close(pipeline.sums(but=["1a"]), plain_sum(batches))


def test_a_step_that_all_peers_of_another_stage_have_taken_is_closed(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", [])
    pipeline.until(lambda: len(driver._peers._clients) == len(pipeline.peers) and driver.step == 0)

    def behind() -> bool:
        return driver.is_behind(0)

    pipeline.peers["2a"].sums.step = 1
    pipeline.until(lambda: driver._peers._clients["2a"].step == 1)
    assert not behind(), "one alone may lie"
    pipeline.peers["2b"].sums.step = 1
    pipeline.until(behind)


def test_a_microbatch_of_a_step_that_is_over_begins_again_and_is_of_that_one_no_more(pipeline: Pipeline) -> None:
    stages = range(3)
    driver = pipeline.drive("d", microbatches(40), in_flight=1)

    def over(given: Given) -> None:
        if given.call.what == "forward" and given.call.step == 0:
            for peer in pipeline.peers.values():  # another driver has filled it
                peer.sums.step = 1

    for peer in pipeline.of(1):
        peer.before = over
    pipeline.until(lambda: driver.begun.step == 1 and driver.begun.final and pipeline.full(step=1))
    pipeline.until(lambda: not driver.in_flight)
    assert pipeline.samples() == [12 * ROWS for _ in stages]
    assert close(pipeline.sums(), plain_sum(microbatches(40)[:12])), "none was left out, or came twice"
    assert not driver.partly


def test_an_answer_that_is_lost_is_asked_for_again_where_the_microbatch_has_been_added(pipeline: Pipeline) -> None:
    """A line alone has broken: elsewhere it would be added twice in one stage."""
    broken = list[int]()

    def break_line(given: Given) -> None:
        if given.call.what == "backward" and not broken:
            broken.append(given.call.number)
            pipeline.loop.soon(pipeline.network.break_lines, "d", "0a", StageService.name)

    pipeline.peers["0a"].before = break_line
    pipeline.slow("0b")
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.until(lambda: not pipeline.peers["0a"].turns.waiting)
    assert broken
    assert close(pipeline.sums(), plain_sum(batches))
    assert pipeline.samples() == [12 * ROWS] * 3


def test_a_peer_of_a_stage_may_drive_through_it_too(pipeline: Pipeline) -> None:
    pipeline.cut("0b")
    driver = pipeline.drive("0a", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(batches))


def test_a_peer_whose_line_alone_breaks_keeps_what_it_was_sent(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.loop.soon(pipeline.network.break_lines, "d", "0a", FollowingService.name)
    pipeline.peers["0a"].sums.step = 1  # it says so on the next line
    pipeline.until(lambda: driver.step == 0 and driver._peers._clients["0a"].step == 1)
    assert not driver.again
    assert not pipeline.gone
    assert close(pipeline.sums(), plain_sum(batches))


def test_a_microbatch_that_is_refused_everywhere_is_of_no_step(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "AVOIDED_SECONDS", 0.05)
    monkeypatch.setattr(driver_module, "FIRST_NUMBER_BITS", 0)

    def refuse(given: Given) -> None:
        if given.call.number == 1:
            raise Refusal("failed", "as the test wants it")

    for peer in pipeline.of(1):
        peer.before = refuse
    driver = pipeline.drive("d", batches := microbatches(13))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert driver.begun.samples == 12 * ROWS
    assert close(pipeline.sums(), plain_sum(batches[1:]))


def test_no_stage_waits_for_what_nobody_computes_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "AVOIDED_SECONDS", 0.05)
    pipeline.slow("0b")
    driver = pipeline.drive("d", microbatches(13))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    lost = next(given.call.number for given in pipeline.peers["0a"].calls if given.call.what == "backward")

    def refuse(given: Given) -> None:
        if given.call.number == lost:
            raise Refusal("failed", "as the test wants it")

    pipeline.peers["0b"].before = refuse
    pipeline.cut("0a")
    full = [12 * ROWS, 13 * ROWS, 13 * ROWS]
    pipeline.until(lambda: driver.begun.final and pipeline.samples(but=["0a"]) == full)
    assert driver.begun.samples == 12 * ROWS, "another one has taken its place"
    assert driver.partly == ROWS


def test_the_quicker_peer_gets_more_calls(pipeline: Pipeline) -> None:
    pipeline.peers["1b"].before = lambda given: time.sleep(0.3)
    driver = pipeline.drive("d", microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert len(pipeline.peers["1a"].calls) > 1.5 * len(pipeline.peers["1b"].calls)


def test_no_driver_uses_the_numbers_of_one_that_its_peer_had_before(pipeline: Pipeline) -> None:
    drivers = [pipeline.drive(name, microbatches(3)) for name in "de"]
    pipeline.until(lambda: all(driver.driven == 3 * ROWS for driver in drivers))
    used = {(given.driver, given.call.number) for peer in pipeline.of(0) for given in peer.calls}
    assert len(used) == len({number for _, number in used}) == 6


def test_a_driver_hears_how_many_calls_others_have_at_a_peer(pipeline: Pipeline) -> None:
    """All drivers call: what the last answer to one of them said is soon old."""
    may_go = threading.Event()
    pipeline.peers["1a"].before = lambda given: may_go.wait()
    idle = pipeline.drive("e", [])
    pipeline.drive("d", microbatches(12))

    def queue() -> int:
        client = idle._peers._clients.get("1a")
        return 0 if client is None else client.hop.queue

    try:
        pipeline.until(lambda: queue() > 0)
    finally:
        may_go.set()
    pipeline.until(lambda: queue() == 0)
