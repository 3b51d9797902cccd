"""Getting the invitation, also on a day when the coordinator does not answer."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.client import NoAnswer, fetch_invitation, find_invitation, keep_invitation, kept_invitation
from dedloc_kit.dashboard.server import Dashboard
from dedloc_kit.errors import UserError
from dedloc_kit.events import Peers, PeerSeen
from dedloc_kit.ledger import Ledger
from dedloc_kit.memory import Memory
from dedloc_kit.records import GlobalStep, Invitation
from tests.test_cli import dedloc
from tests.tiny import tiny_run

NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(tiny_run(), tmp_path / "ledger.sqlite", most_volunteers=2)
    served.start()
    yield served
    served.stop()


def test_an_invitation_is_fetched_as_it_is_now(dashboard: Dashboard) -> None:
    with pytest.raises(NoAnswer, match="still starting"):
        fetch_invitation(dashboard.url)
    for peers in ((NOBODY,), (NOBODY, NOBODY.replace("/9/", "/10/"))):
        dashboard.invitation = Invitation.of(tiny_run(), peers, dashboard.url)
        assert fetch_invitation(dashboard.url).peers == peers


def train(dashboard: Dashboard, *volunteers: str) -> None:
    """Tell the dashboard that these train now, beside the coordinator."""
    seen: dict[str, Any] = {
        "name": "",
        "device": "",
        "step": 0,
        "samples": 0,
        "samples_per_second": 1.0,
        "client_mode": True,
    }
    peers = [PeerSeen(peer=peer, follower=peer == "QmC", **seen) for peer in ("QmC", *volunteers)]
    dashboard.publish(Peers(peers=tuple(peers)))


def test_a_full_run_asks_newcomers_to_come_later_and_lets_those_in_who_come_back(dashboard: Dashboard) -> None:
    dashboard.invitation = Invitation.of(tiny_run(), (NOBODY,), dashboard.url)
    train(dashboard, "QmA")
    fetch_invitation(dashboard.url)
    train(dashboard, "QmA", "QmB")
    for newcomer in ("", "QmNew"):
        with pytest.raises(UserError, match="as many volunteers as it has room for; try again later") as refused:
            fetch_invitation(dashboard.url, newcomer)
        assert dashboard.url in str(refused.value)
        assert not isinstance(refused.value, NoAnswer)  # then the invitation of the last time would be tried
    fetch_invitation(dashboard.url, "QmB")
    train(dashboard, "QmB")
    fetch_invitation(dashboard.url)


def test_a_volunteer_that_crashed_comes_back_into_a_full_run(dashboard: Dashboard, tmp_path: Path) -> None:
    dashboard.invitation = Invitation.of(tiny_run(), (NOBODY,), dashboard.url)
    train(dashboard, "QmA", "QmGhost")
    with pytest.raises(UserError, match="room for"):
        find_invitation(dashboard.url, tmp_path)
    Memory(tmp_path, tiny_run().run_id, "QmGhost", port=0).update({})
    assert find_invitation(dashboard.url, tmp_path) == (dashboard.invitation, True)


def test_whoever_comes_after_the_last_step_is_thanked_and_shown_the_result(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    dashboard.invitation = Invitation.of(tiny_run(), (NOBODY,), dashboard.url)
    last = GlobalStep(step=1000, round="ab", time=1.0, samples=64, loss=1.0, peers=2, seconds=0.5)
    Ledger(tmp_path / "ledger.sqlite").record_step(last, {})
    with pytest.raises(UserError, match="over, thank you") as refused:
        fetch_invitation(dashboard.url, "QmA")
    assert dashboard.url in str(refused.value)


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (503, '{"reason": "full", "more": "\x1b[2J"}', "no coordinator answers behind"),
        (503, '{"reason": "bored"}', "no coordinator answers behind"),
        (502, "<html>bad gateway", "no coordinator answers behind"),
        (404, "not found", "is this the address of a coordinator"),
        (410, "[]", "is this the address of a coordinator"),
    ],
)
def test_an_answer_that_is_no_refusal_is_not_taken_for_one(status: int, body: str, answer: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(UserError, match=answer) as caught:
            fetch_invitation(f"http://127.0.0.1:{server.server_port}")
    assert "\x1b" not in str(caught.value)


def test_an_invitation_is_kept_for_the_place_it_came_from(tmp_path: Path) -> None:
    invitation = Invitation.of(tiny_run(), (NOBODY,))
    assert kept_invitation(tmp_path, "http://one") is None
    keep_invitation(tmp_path, "http://one", invitation)
    assert kept_invitation(tmp_path, "http://one") == invitation
    assert kept_invitation(tmp_path, "http://other") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"from": "http://one", "invitation": {}}', '{"from": "http://one"}'])
def test_a_damaged_one_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "last-invitation.json").write_text(text)
    assert kept_invitation(tmp_path, "http://one") is None


def test_an_invitation_that_cannot_be_kept_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--folder"):
        keep_invitation(tmp_path / "missing", "http://one", Invitation.of(tiny_run(), (NOBODY,)))


def test_who_joined_before_tries_the_peers_it_knows_when_the_coordinator_is_down(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    dashboard.invitation = Invitation.of(tiny_run(), (NOBODY,), dashboard.url)
    for coordinator_is_up in (True, False):
        if not coordinator_is_up:
            dashboard.stop()
        result = dedloc("join", dashboard.url, "--task-module", "tests.tiny", folder=tmp_path)
        assert result.returncode == 2
        assert f"nobody answers at {NOBODY}" in result.stderr
        told = f"no coordinator answers at {dashboard.url}; trying the peers known from the last time"
        assert (told in " ".join(result.stdout.split())) is not coordinator_is_up


def test_a_peer_cannot_be_both_a_client_and_reachable(tmp_path: Path) -> None:
    result = dedloc("join", "invitation.json", "--client-mode", "--reachable", folder=tmp_path)
    assert result.returncode == 2
    assert "not allowed with" in result.stderr
