"""Orders on the command line; test_cli gives some through the command itself."""

from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.memory import SwarmMemory, remember
from dedloc_kit.orders import OrderBook
from dedloc_kit.organizing import find_peer, give

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
    with pytest.raises(UserError, match="as the dashboard shows it"):
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
    assert "dedloc resume" in give("finish", tmp_path, "")
    assert book.read().finish
    assert "goes on" in give("resume", tmp_path, "")
    assert "see it" in give("announce", tmp_path, "Half way!")
    assert f"dedloc readmit {WHOLE}" in give("kick", tmp_path, WHOLE)
    assert book.read().kicked_peers == {WHOLE}
    assert "may come back" in give("readmit", tmp_path, WHOLE)
    assert "is gone" in give("announce", tmp_path, "")
    orders = ["announce", "readmit", "kick", "announce", "resume", "finish", "pause"]
    assert [given.order for given in book.given()] == orders


def test_the_coordinator_itself_cannot_be_kicked(tmp_path: Path) -> None:
    (tmp_path / "invitation.json").touch()
    remember(tmp_path, SwarmMemory(run_id="r", peer=WHOLE))
    with pytest.raises(UserError, match="dedloc finish"):
        give("kick", tmp_path, WHOLE)
