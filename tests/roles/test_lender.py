"""Whoever lends a line averages for others and trains nothing."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dedloc_kit
from dedloc_kit.cli.main import parser
from dedloc_kit.errors import UserError
from dedloc_kit.events import LocalProgress, Peers, StepDone
from dedloc_kit.machine.account import CODE
from dedloc_kit.roles import lender
from dedloc_kit.roles.volunteer import volunteer
from dedloc_kit.run import PeerConfig
from tests.invitations import invited
from tests.roles.test_stage_volunteer import staged_run
from tests.swarm.harness import Swarm
from tests.tiny import tiny_run


def test_a_lender_takes_all_steps_and_reduces_and_everyone_finds_what_it_carried(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        start = tmp_path / "start"
        environment = {"TINY_PAUSE": "0.02", "START_FILE": str(start)}
        giver = swarm.volunteer("giver", environment, client_mode=True, microbatch=4)
        helper = swarm.volunteer("lender", lends=True, client_mode=False)
        lent = helper.joined.peer
        seen = coordinator.wait_for(Peers, lambda event: lent in {peer.peer for peer in event.peers})
        start.touch()
        step = coordinator.wait_for(StepDone, lambda event: lent in event.step.carried)
        told = helper.wait_for(LocalProgress, lambda event: bool(event.carried))
        giver.wait_for_step(step.step.step)
    assert [peer.follower for peer in seen.peers if peer.peer == lent] == [True]
    assert lent not in step.contributions
    carried = step.step.carried[lent]
    assert carried.name == "lender"
    assert 0 < carried.bytes < 2 * 4 * coordinator.joined.parameters + 200, "a part up and an average down at most"
    assert told.samples == told.session_samples == 0
    assert coordinator.joined.peer not in step.step.carried


def test_a_line_that_nobody_reaches_is_not_lent_and_its_owner_is_told_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict[str, object]()

    @contextmanager
    def connected(*_: object, **settings: object) -> Iterator[SimpleNamespace]:
        given.update(settings)
        yield SimpleNamespace(profile=SimpleNamespace(client_mode=True))

    monkeypatch.setattr(lender, "connected", connected)
    monkeypatch.setenv(CODE, "a code")
    peer = PeerConfig(folder=tmp_path, lends=True)
    with pytest.raises(UserError, match="a line helps only those who reach it; open a port for it"):
        volunteer(invited(tiny_run()), peer, lambda _: None, threading.Event())
    assert (given["secret"], given["follower"]) == ("a code", True), "it is let in as a volunteer is"
    assert CODE not in os.environ


def test_a_run_in_stages_has_no_use_for_a_line_alone(tmp_path: Path) -> None:
    peer = PeerConfig(folder=tmp_path, lends=True)
    with pytest.raises(UserError, match="cut into stages"):
        volunteer(invited(staged_run()), peer, lambda _: None, threading.Event())


def test_a_notebook_and_a_terminal_lend_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[dict[str, Any]]()

    def session(where: str, *, settings: dict[str, Any], **_: object) -> SimpleNamespace:
        begun.append({"where": where, **settings})
        return SimpleNamespace(snapshot=lambda: SimpleNamespace(problem=None))

    def take_part(_where: str, _sessions: object, start: Callable[[str], object], *_: object, **__: object) -> None:
        start("")

    monkeypatch.setattr("dedloc_kit.notebook.join.Session", session)
    monkeypatch.setattr("dedloc_kit.notebook.join.take_part", take_part)
    monkeypatch.setattr("dedloc_kit.session.session.Session", session)
    monkeypatch.setattr("dedloc_kit.session.display.watch", lambda _: None)
    monkeypatch.setattr("dedloc_kit.cli.commands.lend.code_for", lambda _: "")
    dedloc_kit.lend("run.json", name="Lena")
    options = parser().parse_args(["lend", "run.json", "--name", "Lena", "--swarm-port", "31337"])
    assert options.call(options) == 0
    assert [(each["where"], each["name"], each["lends"]) for each in begun] == [("run.json", "Lena", True)] * 2
    assert begun[1]["port"] == 31337
    assert PeerConfig(folder=Path("x"), **{k: v for k, v in begun[1].items() if k != "where"}).devices == "cpu"
