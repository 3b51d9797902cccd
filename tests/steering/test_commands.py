"""Orders on the command line; test_cli gives some through the command itself."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dedloc_kit.client import fetch_state
from dedloc_kit.errors import UserError
from dedloc_kit.events import Announced, Left, PeerSeen, State
from dedloc_kit.known_peers import SwarmMemory, remember
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.steering.alerts import raised_alerts
from dedloc_kit.steering.commands import cooldown, find_peer, give, known_peers, rollback, save_now
from dedloc_kit.steering.orders import Decaying, OrderBook, Rewinding
from dedloc_kit.worker import volunteer_job
from tests import commands
from tests.invitations import invited
from tests.swarm.harness import Peer, wait_until
from tests.tiny import tiny_run

KNOWN = {"QmAbc": "Rina", "QmAbd": "Rinat", "QmXyz": "rina b."}
WHOLE = "Qm" + "b" * 44


@pytest.mark.parametrize("text", ["QmAbc", "Rina", "rina"])
def test_a_whole_name_or_id_means_its_peer_even_if_others_begin_so(text: str) -> None:
    assert find_peer(text, KNOWN) == ("QmAbc", "Rina")


@pytest.mark.parametrize(("text", "peer"), [("QmX", "QmXyz"), ("rina ", "QmXyz"), ("Rinat", "QmAbd")])
def test_the_beginning_is_enough_where_it_is_of_one_peer_only(text: str, peer: str) -> None:
    assert find_peer(text, KNOWN)[0] == peer


@pytest.mark.parametrize("text", ["", "Mallory", "qmabc"])
def test_who_is_not_known_is_not_found(text: str) -> None:
    with pytest.raises(UserError, match="as the live page shows it"):
        find_peer(text, KNOWN)


def test_a_name_of_several_is_answered_with_their_ids() -> None:
    with pytest.raises(UserError, match=r"Asha \(QmOne\), Asha \(QmTwo\)"):
        find_peer("Asha", {"QmOne": "Asha", "QmTwo": "Asha"})


def test_a_whole_id_is_taken_even_before_its_first_contribution() -> None:
    assert find_peer(WHOLE, {}) == (WHOLE, "")


def test_every_order_is_given_and_answered_with_what_happens_now(tmp_path: Path) -> None:
    (tmp_path / "invitation.json").touch()
    book = OrderBook(tmp_path)
    assert "volunteers wait" in give("pause", tmp_path, "")
    assert book.read().paused
    assert "dedloc run resume" in give("finish", tmp_path, "")
    assert book.read().finish
    assert "goes on" in give("resume", tmp_path, "")
    assert "see it" in give("announce", tmp_path, "Half way!")
    assert f"dedloc run unban {tmp_path} {WHOLE}" in give("kick", tmp_path, WHOLE)
    assert book.read().kicked_peers == {WHOLE}
    assert "may come back" in give("unban", tmp_path, WHOLE)
    assert "is gone" in give("announce", tmp_path, "")
    orders = ["announce", "unban", "kick", "announce", "resume", "finish", "pause"]
    assert [given.order for given in book.given()] == orders


def test_who_came_and_has_given_nothing_yet_is_known_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    here = PeerSeen(
        peer="QmNew",
        name="Newcomer",
        device="CPU",
        step=0,
        samples=0,
        samples_per_second=0.0,
        follower=False,
        client_mode=True,
    )
    ledger.record_presence([here])
    ledger.close()
    assert known_peers(tmp_path) == {"QmNew": "Newcomer"}


def test_the_coordinator_itself_cannot_be_kicked(tmp_path: Path) -> None:
    (tmp_path / "invitation.json").touch()
    remember(tmp_path, SwarmMemory(run_id="r", peer=WHOLE))
    with pytest.raises(UserError, match="dedloc run finish"):
        give("kick", tmp_path, WHOLE)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A run with the checkpoints of steps 2 and 4, at step 5, that is up."""
    (tmp_path / "invitation.json").touch()
    (tmp_path / "checkpoints").mkdir()
    for step in (2, 4):
        (tmp_path / "checkpoints" / f"step-{step:08d}.safetensors").touch()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=5, round="ab", time=1.0, samples=8, loss=1.0, peers=2, seconds=0.0), {})
    ledger.close()
    with peer_folder(tmp_path):
        yield tmp_path


def test_a_rewind_is_given_once_until_it_is_done(running: Path) -> None:
    assert "takes over the state of step 2, with 0.5 times" in rollback(running, "2", "0.5")
    assert OrderBook(running).read().rewind == Rewinding(checkpoint=2, rate=0.5, after=5)
    with pytest.raises(UserError, match="the rollback to step 2 that was ordered before is not done yet"):
        rollback(running, "4", "1")
    ledger = Ledger(running / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=6, round="cd", time=1.0, samples=0, loss=None, peers=0, seconds=0.0), {})
    ledger.close()
    assert "state of step 0;" in rollback(running, "0", "1")
    assert OrderBook(running).read().rewind == Rewinding(checkpoint=0, rate=1.0, after=6)


@pytest.mark.parametrize(
    ("step", "rate", "why"),
    [
        ("3", "1", "no checkpoint of step '3' in .*, only of these: 2, 4"),
        ("-1", "1", "no checkpoint of step '-1'"),
        ("two", "1", "no checkpoint of step 'two'"),
        ("4", "1", "at step 4 the training had diverged; take a checkpoint of before"),
        ("2", "0", "above 0 and at most 10, not '0'"),
        ("2", "10.1", "not '10.1'"),
        ("2", "nan", "not 'nan'"),
        ("2", "half", "not 'half'"),
    ],
)
def test_what_no_rewind_can_be_is_said_in_one_line(running: Path, step: str, rate: str, why: str) -> None:
    Ruined(running / "checkpoints").judge(4, False)
    with pytest.raises(UserError, match=why) as caught:
        rollback(running, step, rate)
    assert "\n" not in str(caught.value)
    assert OrderBook(running).read().rewind is None


def test_a_run_that_is_not_up_or_finished_does_not_go_back(running: Path, tmp_path: Path) -> None:
    give("finish", running, "")
    with pytest.raises(UserError, match="dedloc run resume"):
        rollback(running, "2", "1")
    (running / "lock").unlink()
    with pytest.raises(UserError, match="is not running; start it with 'dedloc launch'"):
        rollback(running, "2", "1")


def test_a_checkpoint_is_ordered_and_waited_for(running: Path) -> None:
    looked = list[float]()

    def wait(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            (running / "checkpoints" / "step-00000005.safetensors").touch()

    saved = save_now(running, wait=wait)
    assert (saved.step, saved.path) == (5, running / "checkpoints" / "step-00000005.safetensors")
    assert len(looked) == 3
    assert OrderBook(running).read().checkpoint > 0
    assert save_now(running, wait=wait) == saved, "the newest step has one already"
    assert len(looked) == 3


def test_a_checkpoint_that_does_not_come_is_said_with_where_to_look(running: Path) -> None:
    waited = list[float]()
    with pytest.raises(UserError, match=rf"of global step 5 has come within 9 seconds; .*{running / 'checkpoints'}"):
        save_now(running, 9.0, waited.append)
    assert sum(waited) == pytest.approx(9.0)


def test_without_a_coordinator_or_a_step_there_is_nothing_to_save(running: Path, tmp_path: Path) -> None:
    (running / "lock").unlink()
    with pytest.raises(UserError, match=r"is not running; its newest checkpoint is .*step-00000004\.safetensors"):
        save_now(running)
    assert OrderBook(running).read().checkpoint == 0
    (new := tmp_path / "new").mkdir()
    (new / INVITATION_FILE).touch()
    with peer_folder(new), pytest.raises(UserError, match="no global step is done yet"):
        save_now(new)


def waits_to_decay(folder: Path, schedule: str = "warmup-stable-decay") -> None:
    """The run in this folder has ten steps and this schedule."""
    run = tiny_run(optimizer={"schedule": schedule, "warmup_steps": 0, "total_steps": 10})
    (folder / INVITATION_FILE).write_text(invited(run).model_dump_json())


def test_a_decay_is_ordered_once_and_not_while_a_rewind_is_to_be_done(running: Path) -> None:
    waits_to_decay(running)
    rollback(running, "2", "1")
    with pytest.raises(UserError, match="the rollback to step 2 that was ordered before is not done yet"):
        cooldown(running, "3")
    ledger = Ledger(running / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=6, round="cd", time=1.0, samples=0, loss=None, peers=0, seconds=0.0), {})
    ledger.close()
    assert "over 3 steps; then the run ends" in cooldown(running, "3")
    assert OrderBook(running).read().decay == Decaying(steps=3, after=6)
    with pytest.raises(
        UserError, match="a cooldown over 3 global steps was ordered after step 6, and a run has one; to go"
    ):
        cooldown(running, "2")


@pytest.mark.parametrize("steps", ["0", "-1", "6", "1.5", "many", "9" * 20])
def test_what_no_number_of_steps_can_be_is_said_with_how_many_are_left(running: Path, steps: str) -> None:
    waits_to_decay(running)
    with pytest.raises(UserError, match=f"1 to 5, which is how many the run has left, not '{steps}'") as caught:
        cooldown(running, steps)
    assert "\n" not in str(caught.value)
    assert OrderBook(running).read().decay is None


def test_a_run_that_is_over_or_has_another_schedule_does_not_decay(running: Path) -> None:
    waits_to_decay(running, "linear")
    with pytest.raises(UserError, match=r"optimizer\.schedule is 'linear'.*dedloc run finish"):
        cooldown(running, "3")
    waits_to_decay(running)
    give("finish", running, "")
    with pytest.raises(UserError, match="dedloc run resume"):
        cooldown(running, "3")
    give("resume", running, "")
    ledger = Ledger(running / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=10, round="cd", time=1.0, samples=8, loss=1.0, peers=2, seconds=0.0), {})
    ledger.close()
    with pytest.raises(UserError, match="the run is over: global step 10 was its last one"):
        cooldown(running, "3")


RUN = """
name = "tiny"
global_batch = 64
task.name = "tiny"
data.train = [{ dataset = "none/none" }]
optimizer = { learning_rate = 0.01, warmup_steps = 0, total_steps = 1000 }
"""


@contextmanager
def launched(folder: Path) -> Iterator[list[str]]:
    """`dedloc launch` without a terminal, as under systemd, up; a SIGTERM ends it. Yields its output's lines so far."""
    (folder / "run.toml").write_text(RUN)
    places = ("--folder", "run", "--swarm-host", "127.0.0.1", "--host", "127.0.0.1", "--port", "0")
    with commands.running("launch", "run.toml", "--task-module", "tests.tiny", *places, folder=folder) as command:
        command.wait_for("only this machine can join")
        yield (command.said() + command.errors()).splitlines()


@pytest.mark.soak
def test_a_launched_run_is_paused_announced_stopped_restarted_finished_and_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    folder = tmp_path / "run"

    def status() -> str:
        return str(fetch_state(str(folder / "invitation.json")).status)

    with ExitStack() as at_last:
        with launched(tmp_path) as lines:
            assert any("dedloc run admin-link" in line for line in lines)
            assert not any("key=" in line for line in lines), "the link is for the eyes at a terminal only"
            invitation = Invitation.parse((folder / "invitation.json").read_text())
            volunteer = Peer(
                "volunteer",
                "Asha",
                tmp_path,
                lambda config: volunteer_job(invitation, config),
                {"TINY_PAUSE": "0.2"},
                microbatch=4,
            )
            at_last.callback(volunteer.worker.kill)
            volunteer.wait_for_step(2)
            give("announce", folder, "Half way!")
            assert volunteer.wait_for(Announced).text == "Half way!"
            give("pause", folder, "")
            volunteer.wait_for(State, lambda event: "paused" in event.text)
            wait_until(lambda: status() == "paused", "the page does not say so")
        with launched(tmp_path):
            assert Invitation.parse((folder / "invitation.json").read_text()).peers[0] == invitation.peers[0]
            assert "has started again, at global step" in raised_alerts(folder, 1)[0].text
            wait_until(lambda: status() == "paused", "a restart does not lift orders")
            give("finish", folder, "")
            end = volunteer.wait_for(Left)
            assert volunteer.worker.wait(30.0) == 0
            wait_until(lambda: status() == "finished", "the page does not say so")
            last = folder / "checkpoints" / f"step-{end.step:08d}.safetensors"
            wait_until(last.exists, "the last step is not kept")
        with launched(tmp_path) as lines:
            assert any("you have finished this run" in line and "dedloc run resume" in line for line in lines)
            wait_until(lambda: status() == "finished", "the page does not say so")
            give("resume", folder, "")
            wait_until(lambda: status() == "waiting for volunteers", "it is not open again")
