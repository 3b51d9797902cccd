"""Getting the invitation, also on a day when the coordinator does not answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedloc_kit.client import NoAnswer, fetch_invitation, keep_invitation, kept_invitation
from dedloc_kit.dashboard.server import Dashboard
from dedloc_kit.errors import UserError
from dedloc_kit.records import Invitation
from tests.test_cli import dedloc
from tests.tiny import tiny_run

NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    served.start()
    yield served
    served.stop()


def test_an_invitation_is_fetched_as_it_is_now(dashboard: Dashboard) -> None:
    with pytest.raises(NoAnswer, match="still starting"):
        fetch_invitation(dashboard.url)
    for peers in ((NOBODY,), (NOBODY, NOBODY.replace("/9/", "/10/"))):
        dashboard.invitation = Invitation.of(tiny_run(), peers, dashboard.url)
        assert fetch_invitation(dashboard.url).peers == peers


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
