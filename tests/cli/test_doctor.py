"""What the doctor finds: each thing that is wrong comes with its fix, and a token is never shown."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dedloc_kit.cli import doctor
from dedloc_kit.cli.doctor import examine
from dedloc_kit.cli.findings import Finding
from dedloc_kit.cli.main import main
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.keys import IDENTITY_FILE, read_key
from dedloc_kit.machine.account import Account
from dedloc_kit.machine.hardware import LARGEST_SKEW, machine_at
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from dedloc_kit.swarm.network.node import addresses_of
from tests.identities import an_identity
from tests.invitations import NOBODY, invited
from tests.swarm.harness import gate_of, open_node
from tests.tiny import tiny_run

SECRET = "hf_secret"


@pytest.fixture(autouse=True)
def a_healthy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "clock_skew", lambda url: 0.0)
    monkeypatch.setattr(doctor, "who_am_i", lambda chosen, folder: Account("alice", anonymous=False, token=SECRET))


def found(where: str | Path | None = None, port: int = 0, swarm_port: int = 0) -> list[Finding]:
    return list(examine(str(where) if where else None, port=port, swarm_port=swarm_port))


def invitation_in(folder: Path, *peers: str, url: str | None = None) -> Path:
    path = folder / INVITATION_FILE
    path.write_text(invited(tiny_run(), peers or (NOBODY,), url, parameters=1000).model_dump_json())
    return path


def told(findings: list[Finding], words: str) -> Finding:
    (finding,) = [finding for finding in findings if words in finding.what]
    return finding


@pytest.mark.soak
def test_a_healthy_machine_has_nothing_that_must_be_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for words in (
        "Python 3",
        "packages that it needs",
        "of memory",
        "the clock agrees",
        "token, of alice",
        "a network",
    ):
        assert words in said
    assert SECRET not in said


@pytest.mark.soak
def test_what_the_kit_cannot_do_with_this_machines_accelerator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    assert not told(found(), "the TPU of this machine is not used").must
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert told(found(), "Apple's GPU trains in float32").fix == "where one fails, join with --devices cpu"


@pytest.mark.soak
def test_a_package_of_a_wrong_version_is_named_and_so_is_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["numpy>=1000", "no-such-package>=1", "pydantic>=2", "seqeval>=1000; extra == 'evaluate'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needed)
    wrong = told(found(), "numpy")
    assert wrong.must
    assert "should be >=1000" in wrong.what
    assert "no-such-package is missing" in wrong.what
    assert "pydantic" not in wrong.what
    assert "seqeval" not in wrong.what
    assert "install" in wrong.fix


@pytest.mark.soak
def test_an_organizer_needs_what_organizers_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["no-such-package; extra == 'organizer'"])
    assert told(found(tmp_path), "no-such-package is missing").must
    assert not [finding for finding in found() if "no-such-package" in finding.what]


@pytest.mark.soak
def test_a_wrong_clock_must_be_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "clock_skew", lambda url: LARGEST_SKEW + 5)
    assert main(["doctor"]) == 2
    assert "timedatectl" in capsys.readouterr().out


@pytest.mark.soak
def test_a_token_that_the_hub_refuses_is_said_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account("alice", anonymous=False, warning="the Hub refuses the token; make a new one")
    monkeypatch.setattr(doctor, "who_am_i", lambda chosen, folder: account)
    assert told(found(), "refuses the token").fix == "make a new one"


@pytest.mark.soak
def test_an_invitation_that_leads_nowhere_must_be_fixed(tmp_path: Path) -> None:
    assert told(found(tmp_path / "none.json"), "there is no invitation").must
    path = invitation_in(tmp_path)
    nobody = told(found(path), "nobody answers at 127.0.0.1, port 9")
    assert nobody.must
    assert "ask the organizer" in nobody.fix


@pytest.mark.soak
def test_a_run_s_folder_tells_which_ports_are_taken_and_that_only_its_own_network_reaches_it(tmp_path: Path) -> None:
    invitation_in(tmp_path, NOBODY.replace("127.0.0.1", "10.0.0.5"), url="http://127.0.0.1:9")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        findings = found(tmp_path, port=port, swarm_port=port)
    assert told(findings, f"port {port} of the live page is in use").must
    assert "--swarm-port" in told(findings, f"port {port} of the swarm is in use").fix
    assert "--announce-host" in told(findings, "only machines in this network can join").fix


@pytest.mark.soak
def test_a_disk_on_which_the_checkpoints_do_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invitation_in(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / "step-1.safetensors").open("wb") as checkpoint:
        checkpoint.truncate(10**9)  # a hole: it takes no room itself
    monkeypatch.setattr(doctor, "machine_at", lambda folder: replace(machine_at(folder), free_disk=4 * 10**9))
    assert "keep_checkpoints" in told(found(tmp_path), "4.0 GB of the disk are free, a checkpoint takes 1.0 GB").fix


@pytest.mark.soak
def test_a_peer_of_the_run_tells_whether_this_machine_can_be_reached(tmp_path: Path) -> None:
    peer, identity = PeerConfig(folder=tmp_path, swarm_host="127.0.0.1"), an_identity(tmp_path / IDENTITY_FILE)
    node = open_node(peer, identity, gate=gate_of(identity, tiny_run().run_id), may_start_alone=True)
    try:
        invitation = Invitation.of(tiny_run(), addresses_of(node)).signed(read_key(tmp_path / IDENTITY_FILE))
        (tmp_path / INVITATION_FILE).write_text(invitation.model_dump_json())
        findings = found(tmp_path / INVITATION_FILE)
    finally:
        node.shutdown()
    assert told(findings, "peers of the run answer")
    assert told(findings, "others can reach this machine at 127.0.0.1")
