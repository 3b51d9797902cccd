"""A peer introduces itself to a round of one name once, whoever leads and whenever it was started."""

import asyncio
from pathlib import Path

import pytest
import torch

from dedloc_kit.swarm.averaging.pledges import introduced_rounds
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from tests.swarm.averaging.test_service import Party
from tests.tiny import tiny_run


def test_a_round_is_named_once_also_for_who_is_started_again(tmp_path: Path) -> None:
    rounds = IntroducedRounds(tmp_path / "rounds")
    rounds.add("ab")
    rounds.add("cd")
    for each in (rounds, IntroducedRounds(tmp_path / "rounds")):
        with pytest.raises(ValueError, match="one of before"):
            each.add("ab")
    IntroducedRounds(tmp_path / "rounds").add("ef")


def test_the_last_few_are_remembered_and_what_cannot_be_read_or_written_costs_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introduced_rounds, "REMEMBERED", 2)
    path = tmp_path / "rounds"
    path.write_bytes(b"\xff\xfe\x00")
    rounds = IntroducedRounds(path)
    for name in ("ab", "cd", "ef", "ab"):
        rounds.add(name)
    assert path.read_text().split() == ["ef", "ab"]
    nowhere = IntroducedRounds(tmp_path / "gone" / "rounds")
    nowhere.add("ab")
    with pytest.raises(ValueError, match="one of before"):
        nowhere.add("ab")


def test_who_leads_cannot_make_an_honest_member_sign_twice_for_one_round(tmp_path: Path) -> None:
    """Two groups of one name: whoever had both introductions could have the member convicted."""

    async def check() -> None:
        run = tiny_run(global_batch=8, averaging={"compression": "4bit"}, trust={"checks": "on"})
        party = Party(tmp_path, run, [torch.ones(20_000)] * 2)
        assert [result.outcome for result in await party.results()] == ["complete"] * 2
        party.number -= 1
        for result in await party.results():
            assert (result.outcome, result.detail) == ("failed", "whoever leads names a round as one of before")

    asyncio.run(check())
