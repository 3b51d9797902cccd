"""A coordinator that returns after a crash goes on with the reset on its disk only if it holds the state of that."""

from pathlib import Path

import pytest

from dedloc_kit.swarm.network.identity import Signer
from tests.identities import an_identity
from tests.swarm.p2p.in_memory import MemoryDisk
from tests.swarm.rounds.chained import BATCH, Coordinator, chains
from tests.tiny import tiny_run


class Recorded(MemoryDisk):
    """:ivar crashes: what a crash after each write would have left"""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.files = dict(content or {})
        self.crashes: list[dict[str, bytes]] = []

    async def write(self, name: str, content: bytes, /) -> None:
        await super().write(name, content)
        self.crashes.append(dict(self.files))


@pytest.mark.parametrize("rolls_back", [True, False])
def test_after_a_crash_no_parameters_go_by_the_reset_of_others(tmp_path: Path, rolls_back: bool) -> None:
    """A reset for a rollback names another state; one for new voters names this one."""
    run, disk = tiny_run(global_batch=BATCH), Recorded()
    with chains(Signer(an_identity(tmp_path / "organizer"))) as among:
        before = Coordinator(among, run, disk=disk)
        earlier = before.state.copy()
        before.step()
        before.step()
        newest, link = before.state.copy(), before.state.round
        disk.crashes.clear()
        if rolls_back:
            before.roll_back(*earlier, rate=0.5)
        else:
            before.replace_voters()
        term, signed = before.branch.term
        crashes = [content for content in disk.crashes if content.get("reset") == disk.files["reset"]]
        assert len(crashes) > 1, "it is written before it is taken"
        for content in crashes:
            again = Coordinator(among, run, checkpoint=newest, disk=Recorded(content))
            assert again.state.round == (link if rolls_back else signed)
            assert (again.branch.term == (term, signed)) is not rolls_back
            later = again.roll_back(*earlier, rate=0.5)
            assert again.branch.term == (term + 1, later), "no term is signed twice"
            assert again.state.rate == 0.5
