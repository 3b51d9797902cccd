"""One all-reduce among real processes, with members that die, stall, lie or send nonsense."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.swarm.harness import Puppet


class Member(Puppet):
    def __init__(self, folder: Path, peers: tuple[str, ...], **who: Any) -> None:
        super().__init__("tests.swarm.averaging.averaging_peer", folder)
        self.samples, self.value, self.fault = who["samples"], who["value"], who["fault"]
        self.client_mode: bool = who["client_mode"]
        self.say({"folder": str(folder), "peers": peers, **who})

    def meet(self) -> dict[str, Any]:
        answer = self.hear()
        self.peer: str = answer["peer"]
        self.addresses: list[str] = answer["addresses"]
        return answer


@contextmanager
def group(
    folder: Path,
    faults: list[str],
    *,
    clients: int = 0,
    compression: str = "none",
    samples: int = 4,
    checks: str = "off",
) -> Iterator[list[Member]]:
    """Members with these faults ("" for none), the last `clients` of them in client mode."""
    members: list[Member] = []
    addresses: tuple[str, ...] = ()
    anchor = ""
    try:
        for number, fault in enumerate(faults):
            member = Member(
                folder / str(number),
                addresses,
                value=float(number + 1),
                samples=0 if fault == "follows late" else samples * (number + 1),
                fault=fault,
                client_mode=number >= len(faults) - clients,
                compression=compression,
                checks=checks,
                anchor=anchor,
            )
            members.append(member)
            if not addresses:
                met = member.meet()
                addresses, anchor = tuple(met["addresses"]), met["anchor"]
        for member in members[1:]:
            member.meet()
        yield members
    finally:
        for member in members:
            member.end()


def a_round(members: list[Member], tolerance: float = 1e-6, patience: float = 10.0) -> list[dict[str, Any]]:
    """One round of all members; `right` in an answer is the share of numbers that equal the weighted mean of those who
    count."""
    everyone = {m.peer: (m.samples, m.value) for m in members}
    group = {m.peer: m.client_mode for m in members}
    addresses = {m.peer: m.addresses for m in members if m.addresses}
    job = {"nonce": secrets.token_hex(16), "members": group, "addresses": addresses, "all": everyone}
    for member in members:
        member.say({**job, "tolerance": tolerance, "patience": patience})
    return [member.hear() for member in members if member.fault not in ("dies", "stalls", "hangs up on one")]


@pytest.mark.soak
def test_every_member_ends_with_the_same_bits_of_the_weighted_mean(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", ""], clients=2, compression="float16") as members:
        answers = a_round(members, tolerance=1e-3)
    assert [answer["outcome"] for answer in answers] == ["complete"] * 3, answers
    assert len({answer["digest"] for answer in answers}) == 1
    assert answers[0]["right"] == 1.0


@pytest.mark.soak
def test_where_members_are_checked_who_sends_what_it_has_not_pledged_is_left_out_and_named(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", "breaks its pledge"], compression="8bit", checks="on") as members:
        answers = a_round(members, tolerance=0.02)[:2]
    assert [answer["outcome"] for answer in answers] == ["complete"] * 2, answers
    assert len({answer["digest"] for answer in answers}) == 1
    for answer in answers:
        assert (answer["members"], answer["right"]) == (2, 1.0), answers
        assert {*answer["culprits"], *answer["named"]} == {members[2].peer}, answers


@pytest.mark.soak
def test_a_follower_that_begins_when_the_others_have_everything_gets_the_average_too(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", "follows late"]) as members:
        answers = a_round(members)
    assert [answer["outcome"] for answer in answers] == ["complete"] * 3, answers
    assert len({answer["digest"] for answer in answers}) == 1


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["dies", pytest.param("stalls", marks=pytest.mark.soak)])
def test_a_member_that_goes_silent_in_the_middle_is_left_out_and_costs_no_round(tmp_path: Path, fault: str) -> None:
    with group(tmp_path, ["", "", "", fault]) as members:
        survivors = members[:3]
        answers = a_round(members)
        assert [answer["outcome"] for answer in answers] == ["complete"] * 3, answers
        assert len({answer["digest"] for answer in answers}) == 1
        for answer in answers:
            assert (answer["members"], answer["right"]) == (3, 1.0), answers
            assert {*answer["culprits"], *answer["named"]} <= {members[3].peer}, "no survivor is blamed"
        assert any(answer["culprits"] for answer in answers)
        if fault == "stalls":  # what it still sends of the round before comes in the middle of the next one
            os.killpg(members[3].process.pid, signal.SIGCONT)
        again = a_round(survivors)
        if fault == "stalls":
            late = members[3].hear()
            # It may still get what the others did, or nothing; never half an average.
            assert late["digest"] == answers[0]["digest"] if late["outcome"] == "complete" else late["unchanged"], late
    assert [answer["outcome"] for answer in again] == ["complete"] * 3, again
    assert len({answer["digest"] for answer in again}) == 1
    assert again[0]["right"] == 1.0


@pytest.mark.soak
@pytest.mark.parametrize("fault", [pytest.param("misses one", marks=pytest.mark.soak), "hangs up on one"])
def test_a_member_that_does_not_bring_its_gradients_to_all_costs_no_round_and_is_named(
    tmp_path: Path, fault: str
) -> None:
    with group(tmp_path, ["", "", fault]) as members:
        answers = a_round(members, patience=3.0)[:2]
    assert [answer["outcome"] for answer in answers] == ["complete"] * 2, answers
    assert len({answer["digest"] for answer in answers}) == 1
    for answer in answers:  # it is left out, or counts if its share of that one went to the others
        assert answer["right"] == 1.0, answers
        assert {*answer["culprits"], *answer["named"]} <= {members[2].peer}
    assert any(answer["culprits"] for answer in answers), answers


@pytest.mark.soak
def test_a_member_that_calls_the_group_off_is_left_out_and_nobody_is_blamed(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", "calls off the group"]) as members:
        answers = a_round(members)[:2]
    for answer in answers:
        assert (answer["outcome"], answer["members"], answer["right"]) == ("complete", 2, 1.0), answers
        assert [*answer["culprits"], *answer["named"]] == [], answers


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["sends nan", pytest.param("truncates", marks=pytest.mark.soak)])
def test_a_member_that_sends_what_cannot_be_right_poisons_nobody_and_is_named(tmp_path: Path, fault: str) -> None:
    with group(tmp_path, ["", "", fault]) as members:
        answers = a_round(members)
    assert [answer["outcome"] for answer in answers] == ["complete", "complete", "failed"], answers
    assert all(answer["right"] == 1.0 for answer in answers[:2])
    assert any(members[2].peer in answer["culprits"] for answer in answers[:2]), answers


@pytest.mark.soak
def test_a_member_that_claims_a_huge_weight_is_not_believed(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", "claims weight"]) as members:
        answers = a_round(members)
    assert all(answer["outcome"] == "complete" for answer in answers)
    # The liar can only falsify the third that it reduces itself; what the honest ones reduce is right.
    assert answers[0]["right"] > 0.6


@pytest.mark.soak
def test_a_group_without_enough_samples_averages_nothing(tmp_path: Path) -> None:
    with group(tmp_path, ["", "", ""], samples=1) as members:  # 1 + 2 + 3 of 10
        answers = [answer for _ in range(2) for answer in a_round(members, patience=60.0)]
    assert [answer["outcome"] for answer in answers] == ["refused"] * 6, answers
    assert all(answer["unchanged"] for answer in answers)
    assert all(answer["members"] == 3 for answer in answers)
    assert all(answer["seconds"] < 30.0 for answer in answers), "who begins last is told, and waits for nobody"
