"""Divides the few peers of a test into two rows, in a worker and what it forks, and notes how the rows met."""

import json
from pathlib import Path
from typing import Any

from dedloc_kit.swarm.averaging.matchmaking.group import Group, GroupRequest
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import RowJoin, RowService
from dedloc_kit.swarm.directory import rows

ROWS = 2
FEWEST = 4
"""Peers that are divided."""


def divide(notes: Path) -> None:
    """From now on; the leader of all notes the size of each row that has come."""

    def rows_for(peers: int) -> int:
        return ROWS if peers >= FEWEST else 1

    form = RowService._form

    async def noted(self: RowService, request: GroupRequest, joins: tuple[RowJoin, ...]) -> Group:
        with notes.open("a") as file:
            file.write(json.dumps([request.step, *sorted(len(join.party) for join in joins)]) + "\n")
        return await form(self, request, joins)

    module: Any = rows
    module.rows_for = rows_for
    service: Any = RowService
    service._form = noted
