"""The invitation that a coordinator publishes; test_demo and test_collaboration start real ones."""

from pathlib import Path

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.distribution import running_wheel
from dedloc_kit.events import Joined, Peers
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.known_peers import Memory
from dedloc_kit.organizer.earlier_runs import earlier_run
from dedloc_kit.organizer.launch import LISTED_VOLUNTEERS, Coordinator
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.version import __version__
from tests.identities import an_identity
from tests.tiny import tiny_run


def address(peer: str, host: str = "192.0.2.1") -> str:
    return f"/ip4/{host}/tcp/31337/p2p/{peer}"


def test_the_invitation_lists_the_coordinator_and_some_volunteers_that_agree_to_it(tmp_path: Path) -> None:
    run = tiny_run()
    coordinator = Coordinator(
        run, CoordinatorConfig(folder=tmp_path), host="127.0.0.1", port=0, on_event=lambda event: None
    )
    me = str(an_identity(tmp_path / IDENTITY_FILE).peer_id)
    mine = (address(me), address(me, "10.0.0.1"))
    joined = Joined(run_id=run.run_id, peer=me, session="a", addresses=mine, step=0, device="CPU", parameters=18)
    coordinator._heard(joined)
    assert coordinator.invitation().peers == mine
    assert coordinator.invitation().version == __version__
    assert coordinator.invitation().parameters == 18

    memory = Memory(tmp_path, run.run_id, "QmMe", port=31337)
    memory.update({"V": [address("V")]})
    coordinator._heard(Peers(peers=()))
    assert coordinator.invitation().peers == mine, "it knows where they are, and tells nobody"

    coordinator._heard(Peers(peers=(), listed=tuple(address(f"W{n}") for n in range(20))))
    peers = coordinator.invitation().peers
    assert peers[:2] == mine
    assert len({peer.rpartition("/")[2] for peer in peers}) == 1 + LISTED_VOLUNTEERS
    assert coordinator.invitation().run_config() == run
    assert Invitation.parse(coordinator.invitation().model_dump_json()).organizer == me
    assert coordinator.invitation().wheel == running_wheel().pinned


def test_an_edited_run_tells_of_the_older_one_beside_it(tmp_path: Path) -> None:
    older, edited, other = tiny_run(), tiny_run(global_batch=128), tiny_run("another")
    for run, step in ((older, 8), (other, 99)):
        (tmp_path / run.run_id / "checkpoints").mkdir(parents=True)
        (tmp_path / run.run_id / "checkpoints" / f"step-{step:08d}.safetensors").touch()
    folder = tmp_path / edited.run_id
    assert earlier_run(edited, folder) == (
        f"this run begins at step 0, for its file says something else than that of {older.run_id}, which is at step 8; "
        f"to go on from there:  --resume {tmp_path / older.run_id}"
    )
    assert earlier_run(older, tmp_path / older.run_id) == "", "it goes on by itself"
    (folder / "checkpoints").mkdir(parents=True)
    assert earlier_run(edited, folder), "nothing of it was saved yet"
    (folder / "checkpoints" / "step-00000001.safetensors").touch()
    assert earlier_run(edited, folder) == ""
    assert earlier_run(tiny_run("tiny-2"), tmp_path / "else" / tiny_run("tiny-2").run_id) == ""
