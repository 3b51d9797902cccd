"""What compression has lost goes on from contribution to contribution."""

from dedloc_kit.swarm.audits.residuals import Residuals
from tests.swarm.audits.audited import NOTHING_LOST, pledged, root


def test_a_member_goes_on_from_what_counted_or_from_nothing() -> None:
    residuals = Residuals(NOTHING_LOST)
    for step, before in (
        (1, NOTHING_LOST),
        (2, root("alice", 1)),
        (3, root("alice", 1)),  # it did not hear that it counted
        (4, root("alice", 3)),
        (5, NOTHING_LOST),  # it has fetched the state anew
    ):
        assert not residuals.follow(step, {"alice": pledged("alice", step, before=before)})
    assert residuals.follow(6, {"alice": pledged("alice", 6, before=root("alice", 3))}) == ["alice"], "of before"


def test_nobody_goes_on_from_what_another_one_has_lost() -> None:
    residuals = Residuals(NOTHING_LOST)
    both = {peer: pledged(peer, 1) for peer in ("alice", "bob")}
    assert not residuals.follow(1, both)
    assert residuals.follow(2, {"alice": pledged("alice", 2, before=root("bob", 1))}) == ["alice"]


def test_a_new_session_begins_with_nothing() -> None:
    residuals = Residuals(NOTHING_LOST)
    residuals.follow(1, {"alice": pledged("alice", 1)})
    assert not residuals.follow(2, {"alice": pledged("alice", 2, session="cd")})
    assert residuals.follow(3, {"alice": pledged("alice", 3, session="ef", before=root("alice", 2))}) == ["alice"]


def test_who_paused_for_some_steps_goes_on_from_where_it_was() -> None:
    residuals = Residuals(NOTHING_LOST)
    residuals.follow(1, {"alice": pledged("alice", 1)})
    for step in range(2, 9):
        residuals.follow(step, {})
    assert not residuals.follow(9, {"alice": pledged("alice", 9, before=root("alice", 1))})


def test_of_whom_nothing_is_known_anything_is_believed_once() -> None:
    residuals = Residuals(NOTHING_LOST)
    assert not residuals.follow(5, {"alice": pledged("alice", 5, before=root("alice", 4))}), "it was there before us"
    assert not residuals.follow(7, {"alice": pledged("alice", 7, before=root("alice", 6))}), "we have missed a step"
    assert residuals.follow(8, {"alice": pledged("alice", 8, before=b"x" * 32)}) == ["alice"]
