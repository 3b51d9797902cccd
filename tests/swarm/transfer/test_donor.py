"""How many averages a donor keeps for those who missed them."""

import asyncio
from typing import Any

import pytest
import torch

from dedloc_kit.swarm.transfer.contents import RecentAverage, StateLayout
from dedloc_kit.swarm.transfer.donor import AVERAGE_BYTES, KEPT_AVERAGES, MOST_AVERAGES, Donor


async def nothing_newer(version: str) -> tuple[dict[str, Any], torch.Tensor] | None:
    return None


@pytest.mark.parametrize(
    ("size", "kept"), [(100, MOST_AVERAGES), (AVERAGE_BYTES // 8, 8), (AVERAGE_BYTES // 2, KEPT_AVERAGES)]
)
def test_averages_are_kept_as_long_as_they_have_few_bytes_and_a_few_in_any_case(size: int, kept: int) -> None:
    async def test() -> None:
        donor = Donor(nothing_newer, StateLayout([]))
        for step in range(MOST_AVERAGES + 1):
            donor.keep(RecentAverage(f"{step}", f"{step + 1}", step, b"", (bytes(size),)))
        there = [step for step in range(MOST_AVERAGES + 1) if donor.average_after(f"{step}") is not None]
        assert there == list(range(MOST_AVERAGES + 1))[-kept:]

    asyncio.run(test())
