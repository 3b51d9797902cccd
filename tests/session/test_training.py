"""What a volunteer who trains reads, at each moment of a session."""

from dataclasses import replace

import pytest

from dedloc_kit.events import Announced, AnyEvent, Hosted, Left, Loading, LocalProgress, State, Warned
from dedloc_kit.records.contributors import Standing
from dedloc_kit.records.orders import Decay
from dedloc_kit.session.snapshot import Phase, Snapshot
from dedloc_kit.session.state import WAIT_SECONDS
from dedloc_kit.session.supervisor import Notice, Paused, Resting
from dedloc_kit.session.training import FULL_SECONDS, MAX_LOSSES, TrainingState
from tests.session.sessions import done, joined, progress

BEGUN = TrainingState(total_steps=1000, global_batch=512, run_id="toy-0123", name="Asha", url="http://h:8000")
HELPER = replace(BEGUN, auxiliary=True)


def after(*notices: Notice, state: TrainingState = BEGUN, every: float = 1.0) -> TrainingState:
    """One notice a second, from second 0 on."""
    for number, notice in enumerate(notices):
        state = state.heard(notice, number * every)
    return state


def shown(*notices: Notice, state: TrainingState = BEGUN, later: float = 0.5) -> Snapshot:
    """So long after the last of them."""
    return after(*notices, state=state).shown(max(0, len(notices) - 1) + later)


def facts(snapshot: Snapshot) -> dict[str, str]:
    return dict(snapshot.facts)


@pytest.mark.parametrize(
    ("notices", "text"),
    [
        ((), "Reading the invitation; then this machine begins to train."),
        ((State(text="connecting", then="the model is downloaded"),), "Connecting; then the model is downloaded."),
        ((State(text="loading the model"),), "Loading the model; then this machine begins to train."),
        (
            (Loading(received_bytes=1, total_bytes=2),),
            "Downloading the model; then this machine begins to train.",
        ),
        (
            (joined(),),
            "Computing the first samples, which takes minutes on a slow machine; then they count in everyone's batch.",
        ),
        (
            (joined(), progress()),
            "Training: your machine computes samples for everyone's batch; then the model takes its next step.",
        ),
        (
            (joined(), progress(swarm_samples=512)),
            "Training; the batch is full, and all machines average what they learned; then the model takes its next "
            "step.",
        ),
        ((Resting("signal SIGKILL", 2.0),), "The training stopped and starts again by itself: signal SIGKILL."),
        ((Paused(),), "Paused: nothing runs on this machine until you resume."),
    ],
)
def test_at_each_moment_a_sentence_says_what_happens_and_what_comes_next(
    notices: tuple[Notice, ...], text: str
) -> None:
    assert shown(*notices).text == text


@pytest.mark.parametrize(
    "notice",
    [
        State(text="connecting"),
        State(text="trying how many samples this machine takes at once"),
        State(text="compiling the model for this machine; that takes a minute or more"),
        joined(),
    ],
)
def test_a_wait_of_over_two_seconds_has_a_bar_also_where_nobody_knows_its_end(notice: AnyEvent) -> None:
    assert shown(notice, later=WAIT_SECONDS - 0.1).progress is None
    waiting = shown(notice, later=12.0).progress
    assert waiting is not None
    assert (waiting.fraction, waiting.text, waiting.remaining) == (None, "12 s so far", None)
    assert shown(notice, notice, later=11.0).progress == waiting, "the same again is no other wait"


def test_a_download_has_a_bar_with_its_rest() -> None:
    loading = Loading(received_bytes=20_000_000, total_bytes=80_000_000, bytes_per_second=2e6)
    bar = shown(loading).progress
    assert bar is not None
    assert (bar.fraction, bar.remaining) == (0.25, 30.0)
    assert bar.text == "20.0 of 80.0 MB, 2.0 MB/s"
    arrived = Loading(received_bytes=8, total_bytes=8)
    trial = State(text="trying how many samples this machine takes at once")
    assert shown(loading, trial, arrived).text.startswith("Trying how many samples")


def test_so_has_one_from_the_hub() -> None:
    bar = shown(State(text="downloading us/corpus: 23.0 of 92.0 MB, 1.5 MB/s", share=0.25)).progress
    assert bar is not None
    assert (bar.fraction, bar.text) == (0.25, "25\u00a0% so far")
    assert shown(State(text="downloading", share=0.25), State(text="connecting")).progress is None


def test_the_batch_has_a_bar_with_my_part_and_its_rest() -> None:
    bar = shown(joined(), progress(swarm_samples=64), progress(samples=64, swarm_samples=128), later=1.0).progress
    assert bar is not None
    assert (bar.fraction, bar.mine) == (0.25, 0.125)
    assert bar.text == "step 41 of 1,000: 128 of 512 samples, 64 by you"
    assert (bar.remaining, bar.left) == (5.0, "about 5 s left"), "64 samples a second, and a second is gone"
    assert replace(bar, remaining=0.4).left == ""
    full = shown(joined(), progress(swarm_samples=700, samples=600)).progress
    assert full is not None
    assert (full.fraction, full.mine, full.remaining) == (1.0, 1.0, None)


def test_the_next_start_after_a_crash_has_a_bar() -> None:
    bar = shown(Resting("x", 8.0), later=2.0).progress
    assert bar is not None
    assert (bar.fraction, bar.remaining) == (0.25, 6.0)


def test_the_cooldown_counts_its_own_steps() -> None:
    bar = shown(joined(), progress(decay=Decay(start=38, steps=50))).progress
    assert bar is not None
    assert bar.text.startswith("cooldown, step 4 of 50: ")


def test_a_step_says_what_this_machine_gave_and_what_that_meant() -> None:
    (note,) = shown(joined(), progress(), done(41, mine=128)).notes
    assert note == (
        "Newest step",
        "Your machine computed 128 of the 512 samples of step 41: 25\u00a0% of what the model learned in it. "
        "The loss is now 2.5000; lower is better.",
    )
    (others,) = shown(joined(), done(41, mine=0)).notes
    assert others[1].startswith("Others computed the 512 samples of step 41; yours count in a later one.")
    (helper,) = shown(joined(), progress(carried=5), done(41, mine=0), state=HELPER).notes
    assert helper[1].startswith("Others computed the 512 samples of step 41, and your machine helped to carry them.")


def test_facts_say_who_gave_what() -> None:
    standing = Standing(samples=1000, samples_total=4000, rank=2, contributors=3, volunteers=2, losses=())
    state = after(joined(), progress(session_samples=600)).stands(standing)
    assert facts(state.shown(1.0)) == {
        "you": "Asha",
        "given": "600 samples in 1 s",
        "in all": "1,000 samples",
        "share": "25\u00a0% of what all gave",
        "rank": "2 of 3 volunteers",
        "training now": "2 volunteers",
        "machine": "CPU, 31.4 samples/s",
    }
    assert facts(replace(state, anonymous=True).shown(1.0))["you"] == "Asha, anonymously"
    assert "rank" not in facts(shown(joined(), progress()))


def test_what_is_not_known_yet_is_not_shown() -> None:
    nothing = TrainingState().shown(0.0)
    assert facts(nothing) == {}
    assert (nothing.progress, nothing.losses, nothing.notes, nothing.links, nothing.title) == (None, None, (), (), "")
    assert shown(joined()).losses == (), "a curve to come"


def test_what_a_worker_gave_stays_when_the_next_one_begins_from_nothing() -> None:
    state = after(joined(), progress(session_samples=600), Left(step=42, session_samples=640), Resting("x", 2.0))
    assert state.session_samples == 640
    again = after(joined(), progress(session_samples=16), state=state)
    assert again.session_samples == 656
    assert again.warnings == ("the training was started again; it had stopped: x",)


def test_who_hosts_experts_sees_what_they_answered_beside_its_samples() -> None:
    hosting = after(joined(), Hosted(kept=12, copies=3), progress(answered=45_678))
    told = facts(hosting.shown(2.0))
    assert (told["experts"], told["answered"]) == ("12 and copies of 3 more", "45,678 tokens for others")
    assert "Your experts answered 45,678 tokens for others." in _thanks(hosting)
    assert "experts" not in facts(shown(joined(), progress()))


def test_an_auxiliary_peer_sees_what_it_carried_in_place_of_samples() -> None:
    standing = Standing(samples=0, samples_total=4000, rank=0, contributors=3, volunteers=2, losses=())
    carrying = after(joined(), progress(carried=1_200_000), state=HELPER).stands(standing)
    assert carrying.shown(1.0).text.startswith("Carrying data for the machines that train; then the model takes")
    told = facts(carrying.shown(1.0))
    assert told["given"] == "1.2 MB carried in 1 s"
    assert {"in all", "share", "rank"}.isdisjoint(told)
    bar = carrying.shown(1.0).progress
    assert bar is not None
    assert "by you" not in bar.text
    assert "You gave 1.2 MB carried in 1 s." in _thanks(carrying)


def test_thanks_say_what_was_given_and_how_to_come_back() -> None:
    standing = Standing(samples=1000, samples_total=4000, rank=2, contributors=3, volunteers=2, losses=())
    gave = after(joined(), progress(session_samples=600)).stands(standing)
    left = gave.wished("leave", 3.0).ended(None).shown(4.0)
    assert left.phase is Phase.LEFT
    assert left.notes == (
        (
            "Thank you, Asha",
            "You gave 600 samples in 1 s. With your earlier visits that is 1,000 samples. That is 25\u00a0% of all "
            "that everyone has given. To come back, run the same again.",
        ),
    )
    kept = replace(gave, next_session="Your identity is kept.").ended(None).shown(4.0)
    assert kept.phase is Phase.FINISHED
    assert kept.notes[1] == ("Next time", "Your identity is kept.")
    assert "come back" not in kept.notes[0][1]
    assert "No sample was finished" in _thanks(BEGUN)


def _thanks(state: TrainingState) -> str:
    return " ".join(text for _, text in state.wished("leave", 9.0).ended(None).shown(9.0).notes)


def test_a_failure_before_anything_was_given_thanks_nobody_and_has_its_reason_and_details() -> None:
    failed = replace(BEGUN, details="log").ended("http://x does not answer; check the address").shown(9.0)
    assert (failed.phase, failed.text) == (Phase.FAILED, "http://x does not answer; check the address")
    assert (failed.notes, failed.losses, failed.progress, failed.details) == ((), None, None, "log")
    assert replace(BEGUN, details="log").shown(1.0).details == ""


def test_what_the_volunteer_wishes_is_seen_at_once_and_leaving_is_for_good() -> None:
    training = after(joined(), progress())
    pausing = training.wished("pause", 2.0).heard(progress(), 2.1).shown(3.0)
    assert pausing.phase is Phase.LEAVING
    assert pausing.text.startswith("Pausing: the last samples are on their way; then nothing runs")
    assert training.wished("pause", 2.0).wished("work", 3.0).shown(3.0).phase is Phase.STARTING
    assert training.wished("work", 3.0) == training, "resumed without a pause"
    gone = training.wished("leave", 2.0)
    assert gone.wished("work", 3.0).wished("pause", 3.0) == gone


def test_a_run_that_ends_hands_in_the_last_samples() -> None:
    ending = shown(joined(), progress(), State(text="leaving"), progress())
    assert ending.phase is Phase.LEAVING
    assert ending.text == "Leaving: the last samples are on their way; then nothing runs any more."
    ended = after(joined(), progress(), State(text="leaving")).ended(None).shown(9.0)
    assert ended.text == "The run is over, and nothing runs any more."


def test_the_organizer_is_heard() -> None:
    announced = shown(joined(), Announced(text="[bold]Half way![/bold]"), progress())
    assert announced.notes == (("From the organizer", "[bold]Half way![/bold]"),)
    paused = "the organizer has paused the run; this machine goes on when the run does"
    waiting = shown(joined(), progress(), State(text=paused))
    assert waiting.phase is Phase.WAITING
    assert waiting.text == "The organizer has paused the run; this machine goes on when the run does."
    assert shown(joined(), progress(), State(text=paused), State(text="training"), progress()).phase is Phase.WORKING


def test_only_the_newest_warnings_are_kept_each_once() -> None:
    told = after(*(Warned(text=f"warning {number}") for number in (0, 1, 2, 3, 1)))
    assert told.warnings == ("warning 2", "warning 3", "warning 1")


def test_losses_keep_what_is_known_of_my_samples_and_stay_few() -> None:
    losses = ((41, 9.9), (42, 2.0))
    standing = Standing(samples=0, samples_total=0, rank=0, contributors=0, volunteers=0, losses=losses)
    state = after(joined(), done(41, mine=128)).stands(standing)
    assert [(point.step, point.loss, point.mine) for point in state.losses] == [(41, 2.5, 128), (42, 2.0, 0)]
    many = after(joined(), *(done(step, mine=1) for step in range(3 * MAX_LOSSES)))
    assert len(many.losses) == MAX_LOSSES
    assert many.losses[-1].step == 3 * MAX_LOSSES - 1


def test_the_links_lead_to_the_live_page_and_to_the_volunteers_own() -> None:
    assert shown(joined()).links == (("live page", "http://h:8000"), ("your page", "http://h:8000/people/Qm#me"))
    assert shown(joined(), state=replace(BEGUN, url=None)).links == ()
    assert shown().title == "toy"


# A slow machine is no broken line


def test_before_its_first_samples_a_machine_computes_however_long_it_takes() -> None:
    assert after(joined()).shown(100.0).phase is Phase.WORKING


def test_whoever_is_silent_for_much_longer_than_usual_waits_for_the_others() -> None:
    slow = after(joined(), progress(), every=40.0)
    assert slow.shown(140.0).phase is Phase.WORKING
    quick = after(joined(), progress(), every=0.1)
    assert quick.shown(9.0).phase is Phase.WORKING
    waiting = quick.shown(11.0)
    assert waiting.phase is Phase.WAITING
    assert "then this machine goes on by itself" in waiting.text
    assert waiting.progress is not None


def test_a_full_batch_is_told_of_only_after_a_time_in_which_no_round_began() -> None:
    now, state = 0.0, after(joined())

    def goes_on(said: LocalProgress) -> None:
        nonlocal now, state
        for _ in range(6):  # it is never silent
            state = state.heard(said, now)
            assert state.at(now).phase is Phase.WORKING
            now += 0.15 * FULL_SECONDS

    for step in range(5):  # of one volunteer, which gathers many batches in each round
        goes_on(progress(step=step, swarm_samples=4000))
        goes_on(progress(step=step, swarm_samples=5000, averaging=True))
        state = state.heard(done(step, mine=1), now)
    goes_on(progress(swarm_samples=1000))
    goes_on(progress(swarm_samples=4000))
    now += 0.15 * FULL_SECONDS
    state = state.heard(progress(swarm_samples=5000), now)
    full = state.shown(now)
    assert full.phase is Phase.WAITING
    assert "the other volunteers do not come" in full.text
    assert state.heard(progress(swarm_samples=5000, averaging=True), now).at(now).phase is Phase.WORKING
