"""A run in stages trains as one process does, whoever comes and goes."""

import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dedloc_kit.blocks.plans.stages import Move
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Joined, Left, LocalProgress, State
from dedloc_kit.machine.hardware import Machine
from dedloc_kit.records.stages import StageMove
from dedloc_kit.roles import stage_volunteer
from dedloc_kit.roles.volunteer import volunteer
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.pipeline.client import AGAIN_SECONDS, SILENT_SECONDS
from dedloc_kit.swarm.pipeline.member import STILL_SECONDS, PipelineMember
from dedloc_kit.swarm.pipeline.moving import Mover
from tests.invitations import invited
from tests.swarm.harness import Peer, Swarm, difference, ledger_of, processes_of, wait_until
from tests.swarm.pipeline.test_moving import Swarm as Records
from tests.tiny import tiny_run
from tests.tiny_stages import LENGTH, TOLD, TinyStages, plain_loop

STAGES, STEPS, BATCH, ROWS = 3, 5, 24, 2
SETTINGS: dict[str, Any] = {"task_module": "tests.tiny_stages", "until_step": STEPS}


def staged_run(**pipeline: Any) -> RunConfig:
    return tiny_run(
        "staged",
        BATCH,
        task={"name": "tiny-stages"},
        pipeline={"stages": STAGES, "activations": "none", "microbatch_tokens": ROWS * LENGTH, **pipeline},
        averaging={"overlap": False, "compression": "none"},
    )


class Staged:
    """A coordinator and volunteers in each stage, `0a`, `0b`, `1a`, ..."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.run, self.folder, self.steps = staged_run(), folder, steps
        self._settings = {**SETTINGS, "until_step": steps}
        self.told = folder / "told"
        self.told.mkdir()
        self.swarm = Swarm(self.run, folder)
        self.coordinator = self.swarm.coordinator(**self._settings)
        self.start = folder / "start"
        self.peers: dict[str, Peer] = {}

    def fill(self, *idle: str, alone: Collection[int] = (), clients: Collection[str] = ()) -> None:
        """:param idle: who drives nothing
        :param alone: stages with one volunteer
        :param clients: who cannot be reached
        """
        names = [
            f"{stage}{letter}" for letter in "ab" for stage in range(STAGES) if letter == "a" or stage not in alone
        ]
        self.peers |= {name: self.add(name, drives=name not in idle, client_mode=name in clients) for name in names}
        for peer in self.peers.values():
            assert peer.joined.step == 0
        self.start.touch()

    def check(self) -> None:
        """All who have stayed hold what one process does that computes the same microbatches."""
        for peer in self.peers.values():
            peer.wait_for(Left)
        self.coordinator.wait_for_step(self.steps)
        assert self.coordinator.worker.stop() == 0
        steps, batches = self.coordinator.steps, self.batches(self.steps)
        assert [event.step.samples for event in steps] == [ROWS * len(each) for each in batches]
        assert all(event.step.samples >= BATCH for event in steps)
        expected, found = plain_loop(self.run, batches), self.coordinator.parameters()
        assert difference(found, expected) < 1e-5
        for name, peer in self.peers.items():
            begin = f"stages.{name[0]}."
            own = {name.removeprefix(begin): each for name, each in found.items() if name.startswith(begin)}
            assert difference(peer.parameters(), own) == 0.0

    def add(self, name: str, *, drives: bool = True, chosen: bool = True, **settings: Any) -> Peer:
        environment = {TOLD: str(self.told), "START_FILE": str(self.start if drives else self.folder / "never")}
        stage = int(name[0]) if chosen else None
        return self.swarm.volunteer(name, environment, **{"stage": stage, **self._settings, **settings})

    def drivers(self) -> set[str]:
        """Peer ids of those whose microbatches were added anywhere."""
        return {json.loads(line)["driver"] for line in self.lines()}

    def lines(self) -> list[str]:
        return [line for file in self.told.glob("*.jsonl") for line in file.read_text().splitlines()]

    def wait_for_more(self) -> None:
        """Until it is in the middle of a step."""
        lines = len(self.lines())
        wait_until(lambda: len(self.lines()) > lines + 3, "nothing is added")

    def batches(self, steps: int) -> list[list[dict[str, torch.Tensor]]]:
        """Of each global step, as the stages have added them; each of them has the same."""
        added: list[dict[tuple[int, str, int], dict[str, Any]]] = [{} for _ in range(STAGES)]
        for line in map(json.loads, self.lines()):
            added[line["stage"]][line["step"], line["driver"], line["number"]] = line
        first, *_, last = added
        keys = [key for key in sorted(first) if key[0] < steps]
        for others in added[1:]:
            assert [key for key in sorted(others) if key[0] < steps] == keys, "every stage has the same microbatches"
        found: dict[int, list[dict[str, torch.Tensor]]] = defaultdict(list)
        for key in keys:
            ids, labels = first[key]["input_ids"], last[key]["labels"]
            found[key[0]].append({"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)})
        return [found[step] for step in range(steps)]


def signalled(peer: Peer, number: signal.Signals) -> None:
    """All its processes get this."""
    for process in processes_of(peer.worker.pid):
        with suppress(ProcessLookupError):
            os.kill(process, number)


@pytest.mark.soak
def test_a_stage_that_this_machine_does_not_hold_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, peer = TinyStages(staged_run()), JoinOptions(folder=tmp_path, devices="cpu")
    events = list[AnyEvent]()
    assert stage_volunteer._fitting(staged_run(), peer, task, events.append) == {0, 1, 2}
    small = Machine(cores=2, memory=10**8, free_memory=10**8, free_disk=10**9, gpus=())
    monkeypatch.setattr(stage_volunteer, "machine_at", lambda _: small)
    with pytest.raises(UserError, match=r"the smallest one, stage 1 of 3 takes 0.6 GB .* has 0.1 GB"):
        stage_volunteer._fitting(staged_run(), peer, task, events.append)
    asked = peer.model_copy(update={"stage": 2})
    with pytest.raises(UserError, match=r"^stage 2 of 3 takes"):
        stage_volunteer._fitting(staged_run(), asked, task, events.append)


class Going:
    """A volunteer `a` of stage 0 that moves to stage 1: what it says and does, in the middle of others' records.

    :ivar events: what happens in each of its turns, in their order
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: int) -> None:
        self.swarm, self.events, self.did = Records(monkeypatch, *held), list[Callable[[], object]](), list[str]()
        self.idle = False  # what it has begun is on its way
        self.step: int | None = 5  # that all stages hold
        self.turns = SimpleNamespace(take=lambda _: None)
        self.counter = SimpleNamespace(samples=4, applied=30)
        self._work = work = stage_volunteer._Work.__new__(stage_volunteer._Work)
        optimizer = SimpleNamespace(counter=self.counter, step=5, boundary=lambda: None, refresh=lambda _: None)
        profile = SimpleNamespace(session="5e55")
        work._me, work._stop = cast(SwarmPeer, SimpleNamespace(optimizer=optimizer, profile=profile)), threading.Event()
        work._member, work._gradients = cast(PipelineMember, self), cast(Any, self)
        work._fits = frozenset({0, 1})
        work._moving, work._stage = self.swarm.plan("a"), cast(Any, SimpleNamespace(number=0, count=3, share=0.5))
        work._emit = lambda event: self.did.append(event.text)  # type: ignore[union-attr]
        monkeypatch.setattr(work, "_ends", lambda: False)
        monkeypatch.setattr(work, "_turn", lambda: self.events.pop(0)())

    def begin(self) -> Mover | None:
        return self._work._go(Move(1, self.swarm.now))

    def leave(self) -> None:
        self._work._leave()

    def go(self) -> None:
        self.did.append("goes")

    def move(self, move: Move) -> None:
        told = StageMove(stage=move.stage, announced=move.announced, begun=True)
        self.swarm.change("a", state="moving", moving=told)

    def refuse(self, refuses: bool) -> None:
        self.did.append("takes no more" if refuses else "takes calls again")

    def stop_driving(self) -> None:
        self.did.append("begins no more")

    def go_on_driving(self) -> None:
        self.did.append("drives again")

    def say(self, state: str) -> None:
        self.swarm.change("a", state=state, moving=None)

    def becomes(self, *, idle: bool, samples: int) -> None:
        self.idle, self.counter.samples = idle, samples


QUIET = "stage 1 of 3 lacks peers: moving there from stage 0"


def test_who_moves_in_peace_goes_once_all_that_it_computed_has_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    going = Going(monkeypatch, 0, 0, 1, 2)
    going.events += [
        lambda: going.becomes(idle=True, samples=4),  # the step is not taken
        lambda: going.becomes(idle=False, samples=0),  # what it drove may have to be sent again
        lambda: going.becomes(idle=True, samples=0),
    ]
    assert going.begin() == Mover(stage=1, session="5e55", given=15.0, fits=(0, 1))
    assert not going.events
    assert going.did == [QUIET, "begins no more", "takes no more", "goes"]


def test_whoever_was_at_the_stage_that_one_moves_to_may_vanish_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    going = Going(monkeypatch, 0, 0, 1, 2)
    going.events += [lambda: None, lambda: going.swarm.change("c", state="leaving")]
    mover = going.begin()
    assert mover is not None, "there nothing is waited for any more"
    assert (mover.stage, going.counter.samples) == (1, 4)


def test_who_is_the_last_one_of_its_stage_stays_though_it_has_begun_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    going = Going(monkeypatch, 0, 0, 1, 2)
    going.events += [lambda: going.swarm.absent.add("b")]
    assert going.begin() is None
    assert going.did[-3:] == ["takes calls again", "drives again", "staying at stage 0 of 3"]
    assert going.swarm.records["a"].state == "online"


@pytest.mark.parametrize("last", [5, None], ids=["all", "one has nobody any more"])
def test_at_the_end_of_the_run_a_driver_stays_until_all_stages_have_the_last_step(
    monkeypatch: pytest.MonkeyPatch, last: int | None
) -> None:
    going = Going(monkeypatch, 0, 0, 1, 2)
    going.step, going.turns = 4, SimpleNamespace(take=lambda _: going.events.pop(0)())
    going.events += [lambda: None, lambda: setattr(going, "step", last)]
    going.leave()
    assert not going.events
    assert going.did == ["leaving", "begins no more"]
    assert going.swarm.records["a"].state == "online", "nobody is to take its place"


@pytest.fixture
def staged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Staged]:
    found = Staged(tmp_path, steps=getattr(request, "param", STEPS))
    with found.swarm:
        yield found


@pytest.mark.real
def test_three_stages_of_two_peers_take_the_steps_of_one_process(staged: Staged) -> None:
    staged.fill()
    staged.check()


def test_driving_only_and_compiling_are_refused_where_they_mean_nothing(tmp_path: Path) -> None:
    def join(run: RunConfig, **settings: Any) -> None:
        peer = JoinOptions(folder=tmp_path, drive_only=True, **settings)
        volunteer(invited(run), peer, lambda _: None, threading.Event())

    with pytest.raises(UserError, match="leave --stage or --drive-only out"):
        join(staged_run(), stage=1)
    with pytest.raises(UserError, match="not cut into stages; leave --drive-only out"):
        join(tiny_run())
    with pytest.raises(UserError, match="leave --compile out"):
        join(staged_run(), compile=True)


@pytest.mark.soak
def test_who_only_drives_holds_nothing_and_all_samples_may_be_its_own(staged: Staged) -> None:
    names = [f"{stage}{letter}" for letter in "ab" for stage in range(STAGES)]
    staged.peers |= {name: staged.add(name, drives=False) for name in names}
    driver = staged.swarm.volunteer(
        "driver", {"START_FILE": str(staged.start)}, **SETTINGS, stage=None, drive_only=True
    )
    assert driver.joined.parameters == 0
    staged.start.touch()
    staged.coordinator.wait_for_step(STEPS)
    driver.wait_for(Left)
    staged.check()
    assert staged.drivers() == {driver.joined.peer}
    shown = [event for event in driver.events if isinstance(event, LocalProgress)]
    assert shown[-1].driven is not None
    assert shown[-1].driven >= BATCH * (STEPS - 1)
    assert all(each.session_samples == 0 and each.loss is not None for each in shown)
    counted = {peer for event in staged.coordinator.steps for peer in event.contributions}
    assert driver.joined.peer not in counted


@pytest.mark.soak
def test_what_a_peer_had_that_is_killed_is_done_again_by_others(staged: Staged) -> None:
    staged.fill("1b", alone=(0, 2))  # as few processes as it takes
    gone = staged.peers.pop("1b")
    gone.wait_for_step(2)
    staged.wait_for_more()
    signalled(gone, signal.SIGKILL)
    staged.check()


@pytest.mark.soak
@pytest.mark.parametrize("staged", [8], indirect=True)
def test_steps_are_those_of_one_process_though_some_stand_still_some_are_behind_firewalls_and_one_comes_late(
    staged: Staged,
) -> None:
    """One stands still for less, and one for longer, than others wait until they take a peer for gone. These two drive
    nothing: what a driver has begun that stands still for so long may count in some stages only."""
    staged.fill("1b", "2a", clients=("0b", "2b"))
    shorter, longer, gone = staged.peers["1b"], staged.peers["2a"], SILENT_SECONDS + AGAIN_SECONDS
    shorter.wait_for_step(2)
    late = staged.peers["2c"] = staged.add("2c")
    staged.wait_for_more()
    try:
        for peer in (shorter, longer):
            signalled(peer, signal.SIGSTOP)
        staged.start.unlink()  # what has been made of the data is enough to go on with
        time.sleep((STILL_SECONDS + gone) / 2)
        signalled(shorter, signal.SIGCONT)
        time.sleep(gone + 2 - (STILL_SECONDS + gone) / 2)
    finally:
        for peer in (shorter, longer):
            signalled(peer, signal.SIGCONT)
    assert 0 < late.joined.step < staged.steps
    staged.start.touch()
    staged.check()
    assert late.joined.peer in staged.drivers()
    for peer in (shorter, longer):
        assert "this computer stood still" in peer.worker.log.read_text(errors="replace")


@pytest.mark.soak
def test_one_that_is_not_pinned_moves_to_a_stage_that_has_lost_its_last_peer(staged: Staged) -> None:
    """It drives nothing: what a driver has begun that ends counts in some stages only."""
    for name in ("1a", "2a"):
        staged.peers[name] = staged.add(name, drives=name != "1a")
    for peer in staged.peers.values():
        assert peer.joined.step == 0
    moves = staged.add("1b", drives=False, chosen=False)
    moves.wait_for(State, lambda event: event.text == "computing stage 0 of 3")  # which nobody else has
    staged.peers["0a"] = staged.add("0a")
    assert staged.peers["0a"].joined.step == 0
    staged.start.touch()
    gone = staged.peers.pop("1a")
    gone.wait_for_step(2)
    signalled(gone, signal.SIGKILL)
    moves.wait_for(State, lambda event: event.text == "stage 1 of 3 has nobody: moving there from stage 0")
    staged.peers["1b"] = moves
    staged.check()
    assert len([event for event in moves.events if isinstance(event, Joined)]) == 1, "it is greeted once"
    given = {each.name: each.samples for each in ledger_of(staged.coordinator).contributors()}
    assert given["1b"] == moves.wait_for(Left).session_samples, "what it gave to both stages counts, and counts once"
