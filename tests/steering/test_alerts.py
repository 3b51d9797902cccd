"""What the organizer is alerted to, and that each trouble is told once."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dedloc_kit.events import (
    ExpertsState,
    Failed,
    Joined,
    Peers,
    PeerSeen,
    PipelineState,
    Pushed,
    PushFailed,
    StepDone,
    Warned,
)
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.steering import alerts
from dedloc_kit.steering.alerts import Alert, Alerts, raised_alerts
from dedloc_kit.steering.debounce import SETTLED_SECONDS
from tests.dashboard.expert_run import LACKING as experts_lack
from tests.dashboard.expert_run import WHOLE as all_held
from tests.dashboard.staged_run import COUNT, GAP, WHOLE, Begun, offer, pipeline

STALL = 600.0


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Watched:
    """Alerts with a clock and what they told."""

    def __init__(self, folder: Path, clock: Clock, last_step: int = 1000) -> None:
        self.clock, self.told = clock, list[Alert]()
        self.alerts = Alerts(folder, last_step, STALL, self.told.append)
        self.step = 0
        self.join(0)

    def join(self, step: int) -> None:
        self.alerts.hear(Joined(run_id="r", peer="c", session="a", addresses=(), step=step, device="CPU", parameters=1))

    def do_step(self, loss: float | None = 2.0, seconds: float = 1.0) -> None:
        self.clock.pass_by(seconds)
        self.step += 1
        step = GlobalStep(step=self.step, round="ab", time=1.0, samples=64, loss=loss, peers=2, seconds=0.1)
        self.alerts.hear(StepDone(step=step, contributions={}))

    def wait(self, seconds: float, peers: Peers | None = None) -> None:
        """Let time pass while the coordinator speaks, as it does every second."""
        for _ in range(int(seconds / 30)):
            self.clock.pass_by(30.0)
            self.alerts.hear(peers if peers is not None else Peers(peers=()))
            self.alerts.check()

    def texts(self) -> list[str]:
        return [alert.text for alert in self.told]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(alerts, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))
    return clock


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    usage = SimpleNamespace(free=1e12)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return usage


@pytest.fixture
def watched(tmp_path: Path, clock: Clock, disk: SimpleNamespace) -> Watched:
    return Watched(tmp_path, clock)


VOLUNTEER = PeerSeen(
    peer="p", name="Asha", device="CPU", step=1, samples=0, samples_per_second=1.0, follower=False, client_mode=True
)
HERE = Peers(peers=(VOLUNTEER,))


def test_a_loss_that_falls_and_wobbles_is_no_alert(watched: Watched) -> None:
    for number in range(200):
        watched.do_step(10 * 0.98**number + 0.1 * (number % 5))
    assert watched.told == []


def test_a_spike_is_told_once_when_it_comes_and_once_when_it_is_over(watched: Watched) -> None:
    for number in range(30):
        watched.do_step(2.0 + 0.01 * (number % 3))
    for loss in (7.5, 8.0, 7.0):
        watched.do_step(loss)
    (spike,) = watched.told
    assert spike.kind == "loss"
    assert "7.5 at global step 31, after about 2.01" in spike.text
    assert "dedloc run rollback" in spike.text
    watched.do_step(2.0)
    watched.do_step(2.0)
    assert watched.texts()[1:] == ["the training loss is down again, at 2 with global step 34"]


def test_a_loss_that_never_moved_does_not_make_the_least_change_a_spike(watched: Watched) -> None:
    for _ in range(30):
        watched.do_step(2.0)
    watched.do_step(2.1)
    assert watched.told == []


def test_the_first_steps_and_steps_without_a_loss_tell_nothing(watched: Watched) -> None:
    for loss in (2.0, 9.0, None, 30.0):
        watched.do_step(loss)
    assert watched.told == []


def test_a_run_that_is_stuck_is_told_with_who_is_there_and_when_it_goes_on(watched: Watched) -> None:
    watched.alerts.hear(HERE)
    watched.do_step()
    watched.wait(STALL - 60, HERE)
    assert watched.told == []
    watched.wait(120, HERE)
    assert watched.texts() == ["no global step for 10 min, after number 1; there is 1 volunteer"]
    watched.do_step()
    assert watched.texts()[1:] == ["the run goes on, with global step 2"]


def test_a_run_whose_steps_take_long_is_given_the_time_of_several(watched: Watched) -> None:
    for _ in range(5):
        watched.do_step(seconds=500.0)
    watched.wait(4 * 500.0, HERE)
    assert watched.told == []
    watched.wait(2 * 500.0, HERE)
    assert [alert.kind for alert in watched.told] == ["progress"]


def test_nobody_waits_for_steps_before_anyone_came_in_a_pause_or_after_the_end(
    tmp_path: Path, watched: Watched
) -> None:
    watched.wait(2 * STALL)
    watched.do_step()
    watched.wait(2 * STALL, Peers(peers=(VOLUNTEER,), paused=True))
    watched.wait(2 * STALL, Peers(peers=(), last_step=1))
    over = Watched(tmp_path, watched.clock, last_step=1)
    over.do_step()
    over.wait(2 * STALL)
    assert watched.told == over.told == []


def test_a_disk_that_is_almost_full_is_told_and_that_there_is_room_again(
    watched: Watched, disk: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / "step-00000001.safetensors").open("wb") as checkpoint:
        checkpoint.truncate(1_000_000_000)
    disk.free = 3.5e9
    watched.alerts.check()
    assert watched.told == []
    disk.free = 2.5e9
    watched.alerts.check()
    watched.alerts.check()
    disk.free = 9e9
    watched.alerts.check()
    full, room = watched.texts()
    assert "has only 2.5 GB left" in full
    assert "room again" in room


def test_a_coordinator_that_stops_falls_silent_or_starts_again_is_told(watched: Watched) -> None:
    assert watched.told == [], "a new run is no alert"
    watched.clock.pass_by(alerts.SILENCE_SECONDS + 1)
    watched.alerts.check()
    watched.alerts.check()
    watched.alerts.hear(HERE)
    watched.alerts.check()
    watched.alerts.hear(Failed(text="no memory"))
    watched.join(7)
    assert {alert.kind for alert in watched.told} == {"coordinator"}
    silent, speaks, stopped, again = watched.texts()
    assert "says nothing any more" in silent
    assert "speaks again" in speaks
    assert stopped == "the coordinator stopped: no memory"
    assert again == "the coordinator has started again, at global step 7"


def test_a_coordinator_that_cannot_even_start_is_no_alert(tmp_path: Path) -> None:
    told: list[Alert] = []
    Alerts(tmp_path, 10, STALL, told.append).hear(Failed(text="there is no tokenizer"))
    assert told == []


def test_pushes_that_fail_for_long_are_told_with_why_and_when_they_succeed_again(watched: Watched) -> None:
    watched.alerts.hear(PushFailed(text="the Hub answers 503"))
    watched.wait(alerts.HUB_SECONDS - 60)
    watched.alerts.hear(PushFailed(text="the Hub answers 500"))
    assert watched.told == []
    watched.wait(120)
    (failing,) = watched.texts()
    assert failing == "pushes to the Hub have failed for 10 min: the Hub answers 500"
    watched.alerts.hear(Pushed(step=3, url="https://hub.example"))
    watched.wait(120)
    assert watched.texts()[1:] == ["pushes to the Hub succeed again, with global step 3"]


def test_alerts_are_kept_in_the_folder_newest_first(watched: Watched, tmp_path: Path) -> None:
    watched.alerts.hear(Failed(text="one"))
    watched.alerts.hear(Warned(text="no alert"))
    watched.alerts.hear(Failed(text="two"))
    assert [alert.text for alert in raised_alerts(tmp_path, 10)] == [
        "the coordinator stopped: two",
        "the coordinator stopped: one",
    ]
    assert raised_alerts(tmp_path, 1) == watched.told[-1:]


def test_a_full_disk_does_not_keep_an_alert_from_being_told(tmp_path: Path, clock: Clock) -> None:
    gone = Watched(tmp_path / "gone", clock)
    gone.alerts.hear(Failed(text="no space left"))
    assert gone.texts() == ["the coordinator stopped: no space left"]


def test_what_the_coordinator_found_gone_is_told_at_once_and_no_other_warning(watched: Watched) -> None:
    watched.alerts.hear(Warned(text="the hub is slow"))
    watched.alerts.hear(Warned(text="the ledger had gone", alert=True))
    assert [(alert.kind, alert.text) for alert in watched.told] == [("record", "the ledger had gone")]


def test_a_training_that_has_diverged_is_told_once_with_the_way_out_and_when_it_is_over(watched: Watched) -> None:
    for problem in ["", "the training has diverged: so", "the training has diverged: or so", "", ""]:
        watched.alerts.hear(Peers(peers=(VOLUNTEER,), problem=problem))
    begun, over = watched.told
    assert begun.kind == over.kind == "divergence"
    assert begun.text.startswith("the training has diverged: so; ")
    assert "dedloc run rollback" in begun.text
    assert "STEP --rate 0.5" in begun.text
    assert "nothing tells any more that the training has diverged" in over.text


def wait_with(watched: Watched, pipeline: PipelineState, seconds: float) -> list[str]:
    """What is told while the coordinator says every second that the stages stand so."""
    before = len(watched.told)
    for _ in range(int(seconds) + 1):
        watched.alerts.hear(pipeline)
        watched.clock.pass_by(1.0)
    assert {alert.kind for alert in watched.told} <= {"stages"}
    return watched.texts()[before:]


def test_a_stage_that_nobody_or_one_peer_alone_holds_is_told_once_and_when_it_is_well_again(watched: Watched) -> None:
    watched.alerts.hear(HERE)
    assert wait_with(watched, WHOLE, 300) == []
    assert wait_with(watched, GAP, SETTLED_SECONDS - 5) == []
    assert wait_with(watched, GAP, 10) == [
        "nobody holds stage 2 of 4, so no microbatch gets through",
        "one peer alone holds stage 3 of 4: find another",
    ]
    assert wait_with(watched, GAP, 300) == []
    assert wait_with(watched, WHOLE, SETTLED_SECONDS / 2) == []
    assert wait_with(watched, WHOLE, SETTLED_SECONDS) == [
        "each stage has a peer again",
        "no stage has one peer only any more",
    ]


def accusing(drivers: int, *accused: str) -> PipelineState:
    """Two peers at each stage, `Qm0` to `Qm7`, of which so many say that these answer wrongly."""
    offers = [offer(k, k % COUNT, begun=Begun(4), accuses=accused if k < drivers else ()) for k in range(2 * COUNT)]
    return pipeline(*offers)


def test_who_answers_wrongly_as_one_driver_says_is_no_alert_and_as_two_say_is_one(watched: Watched) -> None:
    watched.alerts.hear(HERE)
    everyone = [f"Qm{number}" for number in range(2 * COUNT)]
    assert wait_with(watched, accusing(1, *everyone), 300) == []
    (told,) = wait_with(watched, accusing(2, "Qm5"), 300)
    assert told.startswith(
        "drivers say that these stage peers answer wrongly: Qm5 at stage 1 (2 drivers); 'dedloc run kick"
    )
    (told,) = wait_with(watched, accusing(2, *everyone), 300)
    assert "Qm2 at stage 2 (2 drivers) and 5 more;" in told
    assert wait_with(watched, WHOLE, 300) == ["no two drivers say any more that a stage peer answers wrongly"]


def test_experts_without_a_keeper_or_on_one_machine_alone_are_told_once_and_when_it_is_well_again(
    watched: Watched,
) -> None:
    def wait(experts: ExpertsState, seconds: float) -> list[str]:
        before = len(watched.told)
        for _ in range(int(seconds) + 1):
            watched.alerts.hear(experts)
            watched.clock.pass_by(1.0)
        assert {alert.kind for alert in watched.told} <= {"experts"}
        return watched.texts()[before:]

    assert wait(experts_lack, 300) == [], "nobody has come yet"
    watched.alerts.hear(HERE)
    assert wait(all_held, 300) == []
    assert wait(experts_lack, SETTLED_SECONDS + 5) == [
        "nobody keeps 1 of 12 experts (3.1.2), so tokens go to others",
        "one machine alone has 1 of 12 experts (1.1.2): find another host (dedloc join --host-experts)",
    ]
    assert wait(experts_lack, 300) == []
    assert wait(all_held, SETTLED_SECONDS + 5) == ["each expert has a keeper again", "each expert is on two machines"]


def test_before_the_first_volunteer_and_after_the_last_step_empty_stages_are_no_alert(watched: Watched) -> None:
    nobody = pipeline()
    assert wait_with(watched, nobody, 300) == []
    watched.alerts.hear(Peers(peers=(), last_step=0))
    assert wait_with(watched, nobody, 300) == []
