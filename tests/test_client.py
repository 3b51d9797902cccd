"""Getting the invitation, also on a day when the coordinator does not answer."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import dedloc_kit
from dedloc_kit.client import (
    VIEWS,
    NoAnswer,
    Refused,
    fetch_invitation,
    fetch_state,
    find_invitation,
    keep_invitation,
    kept_invitation,
)
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.errors import UserError
from dedloc_kit.events import Peers, PeerSeen
from dedloc_kit.known_peers import Memory
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import check_organizer
from dedloc_kit.records.steps import GlobalStep
from tests.commands import dedloc
from tests.invitations import MALLORY, NOBODY, ORGANIZER, invited
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.tiny import tiny_run


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
        dashboard.entrance.give_out(invited(tiny_run(), peers, dashboard.url))
        assert fetch_invitation(dashboard.url).peers == peers


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


def test_an_invitation_on_the_hub_is_taken_as_it_was_pushed_last(hub: LoopbackHub) -> None:
    peers = [(NOBODY,), (NOBODY.replace("/9/", "/10/"),)]
    invitations = [invited(tiny_run(), peer).model_dump_json().encode() for peer in peers]
    hub.commits["us/model"] = []
    for invitation, expected in zip(invitations, peers, strict=True):
        hub.commits["us/model"].append({"invitation.json": invitation})
        assert fetch_invitation("us/model").peers == expected


def test_the_coordinator_that_an_invitation_on_the_hub_names_knows_better(
    hub: LoopbackHub, dashboard: Dashboard
) -> None:
    kept = invited(tiny_run(), (NOBODY,), dashboard.url)
    hub.commits["us/model"] = [{"invitation.json": kept.model_dump_json().encode()}]
    assert fetch_invitation("us/model") == kept, "it is still starting"
    newer = NOBODY.replace("/9/", "/10/")
    dashboard.entrance.give_out(invited(tiny_run(), (newer,), dashboard.url))
    assert fetch_invitation("us/model").peers == (newer,)
    dashboard.entrance.give_out(invited(tiny_run("other"), (newer,), dashboard.url))
    assert fetch_invitation("us/model") == kept, "another run has taken its place"
    dashboard.entrance.give_out(invited(tiny_run(), (newer,), dashboard.url))
    train(dashboard, "QmA", "QmB")
    with pytest.raises(Refused, match="as many volunteers as it has room for"):
        fetch_invitation("us/model")
    assert fetch_state("us/model").run_id == tiny_run().run_id, "anyone may watch"


def test_what_plain_http_says_of_another_organizer_does_not_replace_what_the_hub_says(
    hub: LoopbackHub, dashboard: Dashboard
) -> None:
    """Attack 7: in a run for accounts of the Hub, the other organizer would be given the volunteer's token."""
    kept = invited(tiny_run(), url=dashboard.url)
    hub.commits["us/model"] = [{"invitation.json": kept.model_dump_json().encode()}]
    its_own = MALLORY.invites(tiny_run(), url=dashboard.url)
    theirs = invited(tiny_run(), url=dashboard.url).model_copy(update={"organizer": MALLORY.peer, "key": its_own.key})
    for forged in (its_own, theirs, theirs.signed(MALLORY.key), theirs.model_copy(update={"signature": ""})):
        dashboard.entrance.give_out(forged)
        assert fetch_invitation("us/model") == kept
    # On a machine that has never seen the run the word of the Hub is the first one.
    assert fetch_invitation("us/model").organizer == ORGANIZER.peer


def test_an_organizer_is_remembered_at_first_sight_and_another_one_is_refused(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    assert find_invitation(dashboard.url, tmp_path)[1]
    dashboard.entrance.give_out(MALLORY.invites(tiny_run(), url=dashboard.url))
    told = (
        rf"another organizer claims the run {tiny_run().run_id}: .*{ORGANIZER.peer}.*{MALLORY.peer}.*; .* ask the org"
    )
    with pytest.raises(UserError, match=told) as caught:
        find_invitation(dashboard.url, tmp_path)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, NoAnswer), "or the invitation of the last time would be tried"
    dashboard.entrance.give_out(MALLORY.invites(tiny_run("other"), url=dashboard.url))
    assert fetch_invitation(dashboard.url).organizer == MALLORY.peer, "whose run is another one"
    dashboard.entrance.give_out(MALLORY.invites(tiny_run(), url=dashboard.url))
    Path(str(caught.value).rpartition(" remove ")[2]).unlink()
    assert fetch_invitation(dashboard.url).organizer == MALLORY.peer, "the volunteer has made sure"


def test_an_invitation_that_names_its_organizer_is_answered_by_nobody_else(dashboard: Dashboard) -> None:
    """So the first sight is no leap of faith: a notebook brings the name."""
    dashboard.entrance.give_out(MALLORY.invites(tiny_run(), url=dashboard.url))
    with pytest.raises(UserError, match=r"somebody else than the organizer of your invitation answers.*: ask the org"):
        fetch_invitation(f"{dashboard.url}#{ORGANIZER.peer}")
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    assert fetch_invitation(f"{dashboard.url}/#{ORGANIZER.peer}").organizer == ORGANIZER.peer
    assert fetch_state(f"{dashboard.url}#{ORGANIZER.peer}").run_id == tiny_run().run_id


@pytest.mark.parametrize("where", ["", " \n"])
def test_an_empty_invitation_is_named_as_such(where: str) -> None:
    for fetch in (fetch_invitation, fetch_state):
        with pytest.raises(
            UserError, match=r"the invitation is empty; give the coordinator's URL \(http://...\), a fi"
        ):
            fetch(where)


def test_a_path_that_cannot_be_is_one_line() -> None:
    with pytest.raises(UserError, match=r"holds a character that does not belong there: control \(U\+0000\)"):
        fetch_invitation("a\0b")


def test_an_address_copied_from_a_browser_brings_no_key(dashboard: Dashboard) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    for behind in ("#swarm", "/#me", "#", "#/people", "?fbclid=1#view", "/?lang=bn", "#Swarm"):
        assert fetch_invitation(f"{dashboard.url}{behind}").organizer == ORGANIZER.peer
        assert fetch_state(f"{dashboard.url}{behind}").run_id == tiny_run().run_id


def test_a_key_that_was_cut_or_changed_on_its_way_is_no_attack_and_is_not_ignored(dashboard: Dashboard) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    for key in (ORGANIZER.peer[:-5], f"{ORGANIZER.peer}.", f"{ORGANIZER.peer}?fbclid=1"):
        with pytest.raises(UserError, match=r"key behind the # of .* is cut or changed; copy the whole line again"):
            fetch_invitation(f"{dashboard.url}#{key}")


def test_of_the_address_of_a_view_the_right_one_is_named(dashboard: Dashboard) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    for view in (*VIEWS, f"people/{ORGANIZER.peer}#me"):
        with pytest.raises(UserError, match=f"Try {re.escape(dashboard.url)}$"):
            fetch_invitation(f"{dashboard.url}/{view}")
    page = Path(dedloc_kit.__file__).with_name("dashboard").joinpath("static/router.js").read_text(encoding="utf-8")
    assert set(re.findall(r'path: "(\w+)"', page)) == set(VIEWS)


def test_an_invitation_of_the_last_time_by_another_organizer_is_not_used(tmp_path: Path) -> None:
    check_organizer(tiny_run().run_id, ORGANIZER.peer)
    keep_invitation(tmp_path, "http://one", MALLORY.invites(tiny_run()))
    assert kept_invitation(tmp_path, "http://one") is None


def test_where_no_organizer_can_be_remembered_it_is_said(
    dashboard: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path / "file"))
    dashboard.entrance.give_out(invited(tiny_run()))
    with pytest.raises(UserError, match="set DEDLOC_HOME"):
        fetch_invitation(dashboard.url)


def test_a_token_that_the_hub_refuses_does_not_hide_a_public_invitation(hub: LoopbackHub) -> None:
    invitation = invited(tiny_run(), (NOBODY,))
    hub.commits["us/model"] = [{"invitation.json": invitation.model_dump_json().encode()}]
    hub.refused = "of-a-test"
    assert fetch_invitation("us/model") == invitation
    with pytest.raises(UserError, match="no us/none on the Hub"):
        fetch_invitation("us/none")


def test_what_is_no_invitation_on_the_hub_is_explained(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no us/model on the Hub that you may read, and no such file"):
        fetch_invitation("us/model")
    hub.commits["us/model"] = [{"README.md": b""}]
    with pytest.raises(UserError, match=r"us/model holds no invitation.json"):
        fetch_invitation("us/model")
    for content, why in ((b"{}", "is not an invitation"), (b"\xff", "cannot be read"), (b" " * 2_000_000, "too large")):
        hub.commits["us/model"].append({"invitation.json": content})
        with pytest.raises(UserError, match=why):
            fetch_invitation("us/model")
    hub.failing.set()
    with pytest.raises(NoAnswer, match="503"):
        fetch_invitation("us/model")


def test_a_file_comes_before_a_repository(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "us").mkdir()
    invitation = invited(tiny_run(), (NOBODY,))
    (tmp_path / "us" / "model").write_text(invitation.model_dump_json())
    assert fetch_invitation("us/model") == invitation


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
    dashboard.entrance.give_out(invited(tiny_run(), (NOBODY,), dashboard.url))
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
    dashboard.entrance.give_out(invited(tiny_run(), (NOBODY,), dashboard.url))
    train(dashboard, "QmA", "QmGhost")
    with pytest.raises(UserError, match="room for"):
        find_invitation(dashboard.url, tmp_path)
    Memory(tmp_path, tiny_run().run_id, "QmGhost", port=0).update({})
    assert find_invitation(dashboard.url, tmp_path) == (dashboard.entrance.invitation, True)


def test_whoever_comes_after_the_last_step_is_thanked_and_shown_the_result(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), (NOBODY,), dashboard.url))
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
    invitation = invited(tiny_run(), (NOBODY,))
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
        keep_invitation(tmp_path / "missing", "http://one", invited(tiny_run(), (NOBODY,)))


@pytest.mark.real
def test_who_joined_before_tries_the_peers_it_knows_when_the_coordinator_is_down(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    dashboard.entrance.give_out(invited(tiny_run(), (NOBODY,), dashboard.url))
    for coordinator_is_up in (True, False):
        if not coordinator_is_up:
            dashboard.stop()
        result = dedloc("join", dashboard.url, "--task-module", "tests.tiny", folder=tmp_path)
        assert result.returncode == 2
        assert "nobody answers at 127.0.0.1, port 9" in result.stderr
        told = f"no coordinator answers at {dashboard.url}; trying the peers known from the last time"
        assert (told in " ".join(result.stdout.split())) is not coordinator_is_up


@pytest.mark.soak
def test_a_peer_cannot_be_both_a_client_and_reachable(tmp_path: Path) -> None:
    result = dedloc("join", "invitation.json", "--client-mode", "--reachable", folder=tmp_path)
    assert result.returncode == 2
    assert "not allowed with" in result.stderr
