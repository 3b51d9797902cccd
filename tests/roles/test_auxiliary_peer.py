"""Whoever lends a line averages for others and trains nothing."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import P2P, PeerID

import dedloc_kit
from dedloc_kit.cli.main import parser
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.errors import UserError
from dedloc_kit.events import LocalProgress, Peers, StepDone
from dedloc_kit.machine.account import CODE
from dedloc_kit.roles import auxiliary_peer
from dedloc_kit.roles.volunteer import volunteer
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.transfer.protocol import Header, Request, request_header
from dedloc_kit.swarm.transfer.service import TransferService
from tests.invitations import invited
from tests.roles.test_stage_volunteer import staged_run
from tests.swarm.harness import Peer, Swarm, outside
from tests.tiny import tiny_run


def asked_for_its_state(swarm: Swarm, donor: Peer) -> Header:
    """What it answers to somebody outside."""

    async def ask(p2p: P2P) -> Header:
        service = Names(swarm.run.run_id).service(TransferService.name)
        _, reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(donor.joined.peer), service)
        header = await request_header(Request(what="state"), Stream(reader, writer))
        writer.close()
        return header

    swarm.invitation = swarm.invitation.model_copy(update={"peers": donor.joined.addresses})
    found: Header = outside(swarm, ask)
    return found


@pytest.mark.real
def test_lenders_take_all_steps_and_reduce_and_of_two_one_gives_the_state_and_everyone_finds_what_they_carried(
    tmp_path: Path,
) -> None:
    several_chunks = {"name": "tiny", "hidden": 1100}  # one chunk would always have the same reducer
    with Swarm(tiny_run(global_batch=32, task=several_chunks), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        start = tmp_path / "start"
        environment = {"TINY_PAUSE": "0.02", "START_FILE": str(start)}
        giver = swarm.volunteer("giver", environment, client_mode=True, microbatch=4)
        helper = swarm.volunteer("lender", auxiliary=True, client_mode=False)
        keeper = swarm.volunteer("keeper", auxiliary=True, give_state=True, client_mode=False)
        lent, kept = helper.joined.peer, keeper.joined.peer
        seen = coordinator.wait_for(Peers, lambda event: {lent, kept} <= {peer.peer for peer in event.peers})
        start.touch()
        step = coordinator.wait_for(StepDone, lambda event: lent in event.step.carried)
        told = helper.wait_for(LocalProgress, lambda event: bool(event.carried))
        giver.wait_for_step(step.step.step)
        keeper.wait_for_step(step.step.step)
        states = {peer.name: asked_for_its_state(swarm, peer) for peer in (helper, keeper)}
    assert [peer.follower for peer in seen.peers if peer.peer in (lent, kept)] == [True, True]
    assert states["lender"].answer == "nothing"
    assert states["keeper"].answer == "here"
    assert int(states["keeper"].version.partition("/")[0]) >= step.step.step
    assert states["keeper"].total > 4 * coordinator.joined.parameters
    assert not {lent, kept} & set(step.contributions)
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

    monkeypatch.setattr(auxiliary_peer, "connected", connected)
    monkeypatch.setenv(CODE, "a code")
    peer = JoinOptions(folder=tmp_path, auxiliary=True)
    with pytest.raises(UserError, match="a line helps only those who reach it; open a port for it"):
        volunteer(invited(tiny_run()), peer, lambda _: None, threading.Event())
    assert (given["secret"], given["follower"]) == ("a code", True), "it is let in as a volunteer is"
    assert CODE not in os.environ


def test_a_run_in_stages_has_no_use_for_a_line_alone(tmp_path: Path) -> None:
    peer = JoinOptions(folder=tmp_path, auxiliary=True)
    with pytest.raises(UserError, match="cut into stages"):
        volunteer(invited(staged_run()), peer, lambda _: None, threading.Event())


def test_a_notebook_and_a_terminal_lend_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[dict[str, Any]]()

    def session(where: str, *, settings: dict[str, Any], **_: object) -> SimpleNamespace:
        begun.append({"where": where, **settings})
        return SimpleNamespace()

    def take_part(
        begin: Callable[..., object], _kind: object, where: str, options: dict[str, Any], **_: object
    ) -> None:
        begin(where, settings=options)

    monkeypatch.setattr("dedloc_kit.notebook.join.TrainingSession", session)
    monkeypatch.setattr("dedloc_kit.notebook.join.take_part", take_part)
    monkeypatch.setattr("dedloc_kit.session.training_session.TrainingSession", session)
    monkeypatch.setattr("dedloc_kit.session.terminal.watch", lambda _: 0)
    monkeypatch.setattr("dedloc_kit.cli.commands.join.code_for", lambda _: "")
    asked = ("where", "name", "auxiliary", "give_state")
    for gives in (False, True):
        begun.clear()
        dedloc_kit.join("run.json", name="Lena", auxiliary=True, give_state=gives)
        words = ["join", "run.json", "--name", "Lena", "--auxiliary", "--swarm-port", "31337"]
        words += gives * ["--give-state"]
        options = parser().parse_args(words)
        assert options.call(options) == 0
        assert [[each.get(key, False) for key in asked] for each in begun] == [["run.json", "Lena", True, gives]] * 2
    assert begun[1]["swarm_port"] == 31337
