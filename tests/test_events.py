"""Events survive the trip through a pipe."""

import pytest

from dedloc_kit import events
from dedloc_kit.display.terminal import RunDisplay
from dedloc_kit.experts_state import ExpertHost, ExpertLayer
from dedloc_kit.records.orders import Announcement
from dedloc_kit.records.steps import GlobalStep
from tests.dashboard.staged_run import LIMITED

EVERY_EVENT: list[events.AnyEvent] = [
    events.State(text="connecting"),
    events.Loading(received_bytes=5, total_bytes=10),
    events.Hosted(kept=3, copies=2),
    events.ExpertsState(
        grid=(1, 2),
        layers=(ExpertLayer(layer=4, keepers=(0, None), stand_ins=(None, 0), tokens=(7, 0)),),
        hosts=(ExpertHost(peer="Qm1", name="Asha", organizer=False, kept=1, copies=1),),
    ),
    events.Joined(
        run_id="demo-0123456789abcdef",
        peer="12D3Koo",
        addresses=("/ip4/127.0.0.1/tcp/1234/p2p/12D3Koo",),
        session="ab12",
        step=3,
        device="CPU, 2 cores",
        parameters=1_000_000,
    ),
    events.LocalProgress(
        step=3,
        samples=4,
        swarm_samples=10,
        global_batch=64,
        session_samples=100,
        loss=None,
        samples_per_second=1.5,
    ),
    events.StepDone(
        step=GlobalStep(step=4, round="ab", time=1.0, samples=64, loss=2.5, peers=3, seconds=0.5),
        contributions={"12D3Koo": 64},
    ),
    events.Peers(
        peers=(
            events.PeerSeen(
                peer="12D3Koo",
                name="অমল",
                device="Tesla T4",
                step=4,
                samples=0,
                samples_per_second=0.0,
                follower=False,
                client_mode=True,
            ),
        ),
        last_step=5,
        announcement=Announcement(text="Half way!", time=1.0),
    ),
    LIMITED,
    events.Announced(text="শুভ নববর্ষ!"),
    events.Evaluated(
        step=4,
        loss=3.25,
        metrics={"masked accuracy": 0.25},
    ),
    events.Pushed(step=4, url="https://hub.example/us/model/commit/0123"),
    events.PushFailed(text="not on the Hub yet"),
    events.Rehearsed(
        parameters=1000,
        gradient_bytes=500,
        average_bytes=500,
        device="Tesla T4",
        cost=events.SampleCost(flops=1e9, kept_bytes=1000, microbatch=8, samples_per_second=2.5),
        stages=(
            events.StageCost(
                parameters=5,
                gradient_bytes=3,
                average_bytes=3,
                width=4,
                tokens=64,
                flops=1e9,
                kept_bytes=1000,
                seconds=0.5,
            ),
        ),
    ),
    events.Began(serving={"name": "toy"}),
    events.Served(
        layers=4,
        mine=None,
        servers=(
            events.ServerSeen.model_validate(
                {
                    **{"peer": "12D3Koo", "name": "ada", "team": "", "device": "CPU", "begin": 0, "end": 2},
                    **{"form": "int8", "version": "ab", "state": "online", "decoding": 1.5, "prompts": 2.0},
                    **{"passes": 0.0, "cache_tokens": 8, "free_tokens": 4, "sessions": 1, "served": 9},
                    "client_mode": True,
                }
            ),
        ),
        refused={"span": 1},
    ),
    events.Reached(reachable=None, text="nobody could tell"),
    events.Warned(text="two lines\nstay one line of JSON"),
    events.Failed(text="no address answered"),
    events.Left(step=4, session_samples=100),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_and_comes_back_equal(event: events.AnyEvent) -> None:
    line = event.model_dump_json()
    assert "\n" not in line
    assert events.parse_event(line) == event
    assert events.parse_event(line.encode()) == event


def test_every_kind_of_event_is_tested_here() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(events.Event.__subclasses__())


def test_the_name_tells_events_apart() -> None:
    assert isinstance(events.parse_event('{"event": "warning", "text": "x"}'), events.Warned)
    assert isinstance(events.parse_event('{"event": "failed", "text": "x"}'), events.Failed)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Traceback (most recent call last):",
        "{}",
        '{"event": "unheard of"}',
        '{"event": "state"}',
        '{"event": "state", "text": "x", "more": 1}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_a_value_error(line: str | bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        events.parse_event(line)


def test_a_download_tells_how_fast_it_goes_also_where_hardly_anything_comes() -> None:
    now = [0.0]
    told: list[events.AnyEvent] = []
    display = RunDisplay(64, clock=lambda: now[0])
    tell = events.telling_loaded(told.append, clock=lambda: now[0])
    for received in (0, 20_000_000, 40_000_000, 40_000_020, 40_000_040):
        tell(received, 100_000_000)
        now[0] += 10.0
    texts = [event.text for event in told if isinstance(event, events.Loading)]
    assert texts[1] == "20.0 of 100.0 MB, 2.0 MB/s"
    assert texts[-1] == "40.0 of 100.0 MB, 0.002 kB/s"
    with display.console.capture() as shown:
        for event in told:
            display.show(event)
            now[0] += 10.0
    assert shown.get().splitlines()[-1] == f"the training state arrives: {texts[-1]}"
    assert len(shown.get().splitlines()) == 5, "a trickle is told too"
