"""What servers' processes compute for users comes to their credit in the folder of whoever began the swarm."""

from pathlib import Path

import pytest

from dedloc_kit.access.office import invite
from dedloc_kit.events import Served
from dedloc_kit.ledger.served import credit
from tests.blocks import tiny
from tests.served import ServedModel
from tests.test_serving import TEXT, written

ANSWER = 2 * TEXT.numel() + 2 * TEXT.shape[0] * 3
"""Tokens times layers of four new tokens on a server with two layers."""


@pytest.mark.soak
def test_what_users_sign_is_credited_but_not_what_somebody_signs_for_their_own_server(tmp_path: Path) -> None:
    tiny.model("Llama").save_pretrained(tmp_path / "model")
    with ServedModel(tmp_path, tmp_path / "model", access="invite", span="0:2") as swarm:
        ada, bob = (invite(swarm.founder, name, days=1) for name in ("ada", "bob"))
        of_ada = swarm.join(span="2:4", code=ada)
        swarm.wait_until_served(tiny.LAYERS)
        for code, answers in ((bob, 1), (ada, 2)):
            model = swarm.model(code=code)
            for _ in range(answers):
                written(model, max_new_tokens=4)
            model.network.close()
        first = swarm.servers[0]
        assert of_ada.worker.stop() == 0
        first.wait_for(Served, lambda event: "receipt of one's own" in event.refused)
        assert first.worker.stop() == 0
        found = {each.name: each.tokens_layers for each in credit(swarm.founder)}
        assert found == {"server0": 3 * ANSWER, "server1": ANSWER}
